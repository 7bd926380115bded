"""Public embedding models, rerankers and similar ones: the proposals for their files."""

from typing import Any

import pytest

from launch.proposal.draft import Machine
from launch.proposal.propose import Proposal, propose
from launch.request import ModelRequest
from registry.errors import Unfit
from registry.files.shape import shape_of
from registry.recipes.definition import Task
from registry.recipes.fields import HubSource
from tests.unit.launch.listings import listing_of

GIB = 2**30
GPU = Machine("cuda", 68 * GIB, 90)
SENTENCE = "sentence_transformers.models."
POOLED = [{"path": "", "type": f"{SENTENCE}Transformer"}, {"path": "1_Pooling", "type": f"{SENTENCE}Pooling"}]
WEIGHTS = {"model.safetensors": 10**9, "tokenizer.json": 10**6}

DISTIL: dict[str, Any] = {
    "architectures": ["DistilBertModel"], "model_type": "distilbert", "dim": 768, "hidden_dim": 3072, "n_heads": 12,
    "n_layers": 6, "max_position_embeddings": 512, "vocab_size": 119547,
}  # fmt: skip
T5: dict[str, Any] = {
    "architectures": ["T5EncoderModel"], "model_type": "t5", "d_ff": 4096, "d_kv": 64, "d_model": 1024,
    "num_heads": 16, "num_layers": 24, "n_positions": 512, "vocab_size": 32128, "feed_forward_proj": "relu",
}  # fmt: skip


def proposal(
    small: dict[str, object], large: dict[str, int] | None = None, machine: Machine = GPU, **overrides: object
) -> Proposal:
    listing = listing_of(small, large or WEIGHTS)
    expected = ModelRequest("x", overrides=overrides)
    return propose(listing, HubSource(hub="a/model", revision="0" * 40), expected, machine)


@pytest.mark.parametrize("config", [DISTIL, T5], ids=lambda config: config["model_type"])
def test_sizes_may_have_the_names_of_their_architecture(config: dict[str, Any]) -> None:
    """DistilBERT and T5 could not be added, because the number of heads was not found."""
    from transformers import AutoConfig

    settings = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
    known = AutoConfig.for_model(config["model_type"], **settings)
    shape = shape_of(config)
    assert (shape.layers, shape.hidden, shape.heads, shape.head_size) == (
        known.num_hidden_layers, known.hidden_size, known.num_attention_heads, 64,
    )  # fmt: skip
    assert shape.feed_forward == config.get("hidden_dim", config.get("d_ff"))
    assert proposal({"config.json": config, "modules.json": POOLED}).recipe.task is Task.EMBED


BERT: dict[str, Any] = {
    "architectures": ["BertModel"], "model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12,
    "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 512, "vocab_size": 30522,
}  # fmt: skip
JINA_2 = "jinaai/jina-bert-implementation--"
FLASH = "jinaai/xlm-roberta-flash-implementation--"
NOMIC = {
    "AutoConfig": "nomic-ai/nomic-bert-2048--configuration_hf_nomic_bert.NomicBertConfig",
    "AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel",
}


@pytest.mark.parametrize(
    ("kind", "code", "more", "words"),
    [
        ("bert", {"AutoConfig": f"{JINA_2}configuration_bert.JinaBertConfig",  # jina-embeddings-v2
                  "AutoModel": f"{JINA_2}modeling_bert.JinaBertModel"}, {}, "(bert, of jinaai/jina-bert-impl"),
        ("xlm-roberta", {"AutoConfig": f"{FLASH}configuration_xlm_roberta.XLMRobertaFlashConfig",  # -v3
                         "AutoModel": f"{FLASH}modeling_lora.XLMRobertaLoRA"}, {}, "of jinaai/xlm-roberta-flash"),
        ("qwen2", {"AutoModel": "modeling_qwen.Qwen2Model"}, {}, "(qwen2)"),  # gte-Qwen2: its attention sees both ways
        ("nomic_bert", NOMIC, {"moe_every_n_layers": 2}, "of nomic-ai/nomic-bert-2048"),  # nomic-embed-text-v2-moe
    ],
)  # fmt: skip
def test_code_under_the_name_of_a_known_architecture_is_found(
    kind: str, code: dict[str, str], more: dict[str, Any], words: str
) -> None:
    """transformers would load its own network of that name, with random weights."""
    config = {**BERT, "model_type": kind, "auto_map": code, **more}
    with pytest.raises(Unfit, match=r"write a recipe for it with engine\.flags\.trust_remote_code: true") as refused:
        proposal({"config.json": config, "modules.json": POOLED})
    assert refused.value.code == "needs_code"
    assert words in refused.value.message


def test_modules_with_code_in_the_repository_are_found() -> None:
    steps = [{"path": "", "type": "custom_st.Transformer", "kwargs": ["task"]}, POOLED[1]]
    with pytest.raises(Unfit, match=r"as code \(custom_st.Transformer\)"):
        proposal({"config.json": BERT, "modules.json": steps})
    flash = {**BERT, "auto_map": {"AutoModel": f"{FLASH}modeling_lora.XLMRobertaLoRA"}}
    with pytest.raises(Unfit, match=r"\(custom_st.Transformer, of jinaai/xlm-roberta-flash-implementation\)"):
        proposal({"config.json": flash, "modules.json": steps})
    trusted = proposal({"config.json": BERT, "modules.json": steps}, **{"engine.flags.trust_remote_code": True})
    assert trusted.recipe.task is Task.EMBED


def test_code_that_is_in_transformers_by_now_is_not_needed() -> None:
    config = {**BERT, "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "auto_map": NOMIC}
    assert proposal({"config.json": config, "modules.json": POOLED}).recipe.task is Task.EMBED


@pytest.mark.parametrize(
    ("pooling", "words"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "the first token."),
        ({"embedding_dimension": 768, "pooling_mode": "lasttoken"}, "the last token."),
        ({"embedding_dimension": 768, "pooling_mode": ["cls", "mean"]}, "the first token, the mean over the tokens."),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "the sum over the root of their number."),
    ],
)
def test_the_pooling_is_reported_as_older_and_newer_files_have_it(pooling: dict[str, Any], words: str) -> None:
    found = proposal({"config.json": BERT, "modules.json": POOLED, "1_Pooling/config.json": pooling})
    assert f"Pooling, according to its files: {words}" in found.notes


@pytest.mark.parametrize(
    ("card", "asks"),
    [
        ("input_texts = ['query: how much protein should a female eat',", "query: "),  # e5
        ("sentences = ['search_query: Who is Laurens van Der Maaten?']", "search_query: "),  # nomic-embed-text
        ("| `Represent this sentence for searching relevant passages: ` |",  # bge-*-en-v1.5
         "Represent this sentence for searching relevant passages: "),
        ("    return f'Instruct: {task_description}\\nQuery: {query}'", "Instruct: "),  # multilingual-e5-*-instruct
        ("sentences = ['This is an example sentence']", ""),
    ],
)  # fmt: skip
def test_a_cards_prefix_of_queries_is_reported_if_the_files_have_no_prompts(card: str, asks: str) -> None:
    """Without it, the vectors are worse."""
    small: dict[str, object] = {"config.json": BERT, "modules.json": POOLED, "README.md": card}
    notes = [note for note in proposal(small).notes if "Its files have no prompts" in note]
    assert [f"'{asks}'" in note for note in notes] == ([True] if asks else [])
    small["config_sentence_transformers.json"] = {"prompts": {"query": "query: ", "document": "passage: "}}
    assert not any("Its files have no prompts" in note for note in proposal(small).notes)


@pytest.mark.parametrize(
    ("default", "words"),
    [
        ("query", "'query' is put before every input."),
        (None, "clients choose one, or write it themselves."),
    ],
)
def test_prompts_are_reported_with_who_puts_them_before_inputs(default: str | None, words: str) -> None:
    own = {"prompts": {"query": "query: ", "document": "passage: "}, "default_prompt_name": default}
    small: dict[str, object] = {"config.json": BERT, "modules.json": POOLED, "config_sentence_transformers.json": own}
    assert f"Prompts, according to its files: document, query; {words}" in proposal(small).notes


@pytest.mark.parametrize(
    ("similarity", "steps", "is_noted"),
    [("dot", [], True), ("cosine", [], False), (None, [], False), ("dot", [{"type": f"{SENTENCE}Normalize"}], False)],
)
def test_vectors_whose_length_counts_are_reported(
    similarity: str | None, steps: list[dict[str, str]], is_noted: bool
) -> None:
    """As of multi-qa-mpnet-base-dot-v1, for which length 1 changes the order of results."""
    own = {"similarity_fn_name": similarity}
    small: dict[str, object] = {"config.json": BERT, "modules.json": [*POOLED, *steps]}
    notes = proposal({**small, "config_sentence_transformers.json": own}).notes
    assert any("normalize: false" in note for note in notes) == is_noted


def test_sizes_that_vectors_may_be_cut_to_come_from_fields() -> None:
    """The word in a card means nothing, because sentence-transformers writes a link with it into each one."""
    small: dict[str, object] = {"config.json": BERT, "modules.json": POOLED, "README.md": "With Matryoshka learning"}
    flag = "engine.flags.matryoshka_dimensions"
    plain = proposal(small)
    assert not any("atryoshka" in note for note in plain.notes)
    assert "matryoshka_dimensions" not in plain.recipe.engine.flags
    named = proposal({**small, "config.json": {**BERT, "matryoshka_dimensions": [64, 32]}})
    assert named.recipe.engine.flags["matryoshka_dimensions"] == [32, 64]
    small["config.json"] = {**BERT, "is_matryoshka": True}
    assert any(flag in note for note in proposal(small).notes)
    requested = proposal(small, **{flag: [256, "512"]})
    assert not any(flag in note for note in requested.notes)
    assert requested.recipe.engine.flags["matryoshka_dimensions"] == [256, "512"]


@pytest.mark.parametrize(
    ("sizes", "hidden", "proposed"),
    [
        ([768, 64], 768, [64, 768]),
        ([64, 769], 768, None),
        ([0, 64], 768, None),
        ([64, "x"], 768, None),
        ([], 768, None),
        ("64", 768, None),
        ([64, 4096], None, [64, 4096]),
    ],
)
def test_only_sizes_within_a_models_own_are_proposed(sizes: object, hidden: int | None, proposed: object) -> None:
    """A load fails with any other."""
    config = {**(T5 if hidden is None else BERT), "matryoshka_dimensions": sizes}  # a T5's size has another name
    small: dict[str, object] = {"config.json": config, "modules.json": POOLED}
    assert proposal(small).recipe.engine.flags.get("matryoshka_dimensions") == proposed


@pytest.mark.parametrize(("machine", "step"), [(GPU, (256, 32_768)), (Machine("cpu", 8 * GIB), (64, 8192))])
def test_the_step_of_a_proposal_is_that_of_the_device(machine: Machine, step: tuple[int, int]) -> None:
    batching = proposal({"config.json": BERT, "modules.json": POOLED}, machine=machine).recipe.batching
    assert (batching.max_requests, batching.max_tokens) == step


def test_a_pooling_without_a_folder_is_read_from_the_usual_one() -> None:
    steps = [POOLED[0], {"type": f"{SENTENCE}Pooling"}]
    small = {"config.json": BERT, "modules.json": steps, "1_Pooling/config.json": {"pooling_mode": "max"}}
    assert "Pooling, according to its files: the largest values." in proposal(small).notes


@pytest.mark.parametrize("pooling", [{}, {"pooling_mode": "mean"}])
def test_a_pooling_that_is_the_librarys_default_contradicts_nothing(pooling: dict[str, Any]) -> None:
    notes = proposal({"config.json": BERT, "1_Pooling/config.json": pooling}).notes
    assert "It has no modules.json, so vectors are the mean over the tokens, the library's default." in notes


def test_contradicting_poolings_are_one_note_that_says_which_is_used() -> None:
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    notes = proposal({"config.json": BERT, "1_Pooling/config.json": pooling}).notes
    assert [note for note in notes if "mean" in note or "ooling" in note] == [
        "It has no modules.json, so vectors are the mean over the tokens, the library's default, though "
        "1_Pooling/config.json says the first token."
    ]
    steps = [{"path": "p", "type": "sentence_transformers.models.Pooling"}]
    first = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    notes = proposal({"config.json": BERT, "modules.json": first + steps, "p/config.json": pooling}).notes
    assert "Pooling, according to its files: the first token." in notes


@pytest.mark.parametrize(("kind", "dtype"), [("bert", "float16"), ("qwen3", "float32")])
def test_an_old_gpu_gets_no_bfloat16(kind: str, dtype: str) -> None:
    """Models trained in bfloat16 would overflow in float16."""
    small: dict[str, object] = {"config.json": {**BERT, "model_type": kind}, "modules.json": POOLED}
    assert proposal(small, machine=Machine("cuda", 15 << 30, 75)).recipe.dtype == dtype
    newer = proposal(small, machine=Machine("cuda", 15 << 30, 80)).recipe.dtype
    assert newer == ("float16" if kind == "bert" else "bfloat16")


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("deberta", "float32"), ("fnet", "float32"), ("deberta-v2", "bfloat16"), ("bert", "float16")],
)
def test_networks_that_fail_in_16_bits_get_float32(kind: str, dtype: str) -> None:
    """With 16 bits no load of them succeeds."""
    small: dict[str, object] = {"config.json": {**BERT, "model_type": kind}, "modules.json": POOLED}
    assert proposal(small).recipe.dtype == dtype


def test_a_reranker_from_a_chat_model_may_need_a_prompt_around_its_texts() -> None:
    """Qwen3-Reranker as a classifier scores plain pairs badly, which a note has to say."""
    config = {**BERT, "architectures": ["Qwen3ForSequenceClassification"], "model_type": "qwen3",
              "id2label": {"0": "LABEL_0"}}  # fmt: skip
    small: dict[str, object] = {"config.json": config, "tokenizer_config.json": {"chat_template": "{{ messages }}"}}
    assert any("made from a chat model" in note for note in proposal(small).notes)
    del small["tokenizer_config.json"]
    assert proposal(small).notes == ()


@pytest.mark.parametrize(
    "name", ["vocab.txt", "vocab.json", "spiece.model", "spm.model", "sentencepiece.bpe.model", "tokenizer.model"]
)
def test_a_missing_tokenizer_is_reported_before_a_download(name: str) -> None:
    """transformers would make one without any words, with which all texts have the same vector."""
    weights = {"model.safetensors": 10**9}
    with pytest.raises(Unfit, match="has no tokenizer"):
        proposal({"config.json": DISTIL, "tokenizer_config.json": {}}, weights)
    assert proposal({"config.json": DISTIL}, {**weights, name: 10**6})
