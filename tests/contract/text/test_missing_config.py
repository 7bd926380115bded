"""Models with incomplete files, as people have them, are served as they were meant or refused with the cause."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from models.messages import EmbedRequest, RerankRequest
from models.text import embeddings, rerank
from registry.errors import BadRequest, EngineFailed, Unfit
from tests.contract.text.fixtures import Reports, minilm, recipe, text

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]
SIZES = {
    "vocab_size": 30522, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 128, "initializer_range": 0.3,
}  # fmt: skip
QUERY, DOCUMENTS = "which brake stops the engine?", ["steam", text(30), text(9, 4)]
REQUESTED = RerankRequest(query=QUERY, documents=DOCUMENTS)
CHATML = (
    "{% for m in messages %}{% if m.role in ('user', 'assistant', 'system') %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
)


def write(folder: Path, network: Any, tokenizer: dict[str, Any] | None = None, **config: Any) -> Path:
    """Write a network with MiniLM's tokenizer.

    tokenizer: additions to the tokenizer's config. config: changes to the network's config.
    """
    network.save_pretrained(folder)
    own = Tokenizer.from_file(str(minilm() / "tokenizer.json"))
    own.no_padding()
    own.no_truncation()
    own.save(str(folder / "tokenizer.json"))
    stated = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 128, "unk_token": "[UNK]"}
    named = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = {"model_input_names": ["input_ids", "attention_mask"]}
    tokenizer_config = {**stated, **named, **inputs, **(tokenizer or {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return folder


def bert(**more: Any) -> Any:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    return BertModel(BertConfig(**{**SIZES, **more}))


def bert_scorer() -> Any:
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(3)
    return BertForSequenceClassification(BertConfig(**SIZES, num_labels=1))


def llama_scorer() -> Any:
    """Return a network that scores by the last token that is no padding."""
    import torch
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(3)
    return LlamaForSequenceClassification(LlamaConfig(**SIZES, num_labels=1))


def rename(folder: Path, change: Callable[[str], str | None]) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    kept = {new: tensor for name, tensor in load_file(file).items() if (new := change(name))}
    save_file(kept, file, {"format": "pt"})


async def vectors(folder: Path, texts: Sequence[str]) -> Any:
    engine = embeddings.engine()
    await engine.load(recipe("embed"), folder, "cpu", Reports())
    try:
        found, _ = await engine.model.embed(EmbedRequest(inputs=list(texts), normalize=False))
    finally:
        await engine.close()
    return np.frombuffer(found.vectors, "<f4").reshape(len(texts), -1)


async def logits(folder: Path) -> list[float]:
    engine = rerank.engine()
    await engine.load(recipe("rerank"), folder, "cpu", Reports())
    try:
        return (await engine.model.rerank(REQUESTED))[0].logits
    finally:
        await engine.close()


def scored(network: Any, folder: Path, types: bool = False) -> list[float]:
    """Return the network's own scores, computed pair by pair."""
    import torch

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = []
    for document in DOCUMENTS:
        pair = tokenizer.encode(QUERY, document)
        more = {"token_type_ids": torch.tensor([pair.type_ids])} if types else {}
        with torch.inference_mode():
            found.append(float(network.eval()(torch.tensor([pair.ids]), **more).logits))
    return found


async def test_missing_weights_are_not_replaced_by_random_ones(tmp_path: Path) -> None:
    """As in folders with a whole SentenceTransformer's state, or without the head."""
    folder = write(tmp_path / "prefix", bert())
    rename(folder, lambda name: f"0.auto_model.{name}")
    with pytest.raises(EngineFailed, match=r"lack \d+ of the weights of a BertModel, such as embeddings"):
        await vectors(folder, ["steam"])
    folder = write(tmp_path / "head", bert_scorer())
    rename(folder, lambda name: None if "classifier" in name else name)
    with pytest.raises(EngineFailed, match=r"lack 2 .* BertForSequenceClassification, such as classifier\.bias"):
        await logits(folder)
    whole = await vectors(write(tmp_path / "whole", bert()), ["steam"])
    folder = write(tmp_path / "unread", bert())
    rename(folder, lambda name: None if name.startswith("pooler.") else name)
    np.testing.assert_allclose(await vectors(folder, ["steam"]), whole, atol=1e-6)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_hidden_layers": 1}, r"have encoder\.layer\.1\.\S+, of a layer that config\.json does not have"),
        ({"intermediate_size": 24}, r"6 of its weights have other sizes .* \[48\], not \[24\]"),
    ],
)
async def test_weights_that_config_json_leaves_out_are_refused(
    config: dict[str, int], message: str, tmp_path: Path
) -> None:
    """The library computed without the last layers."""
    folder = write(tmp_path, bert(), **config)
    with pytest.raises(Unfit, match=message):
        await vectors(folder, ["steam"])


async def test_weights_that_the_librarys_network_has_no_place_for_are_refused(tmp_path: Path) -> None:
    """transformers 5 has no relative positions of BERT any more, and gave other vectors without them."""
    import torch
    from safetensors.torch import load_file, save_file

    file = write(tmp_path, bert(), position_embedding_type="relative_key") / "model.safetensors"
    name = "encoder.layer.0.attention.self.distance_embedding.weight"
    save_file({**load_file(file), name: torch.randn(255, 8)}, file, {"format": "pt"})
    with pytest.raises(Unfit, match=rf"have {name}, which a BertModel of .* does not have"):
        await vectors(tmp_path, ["steam"])


async def test_texts_end_as_the_tokenizers_config_says(tmp_path: Path) -> None:
    """e5-mistral's tokenizer.json has no end, and transformers 5 ignores `add_eos_token` beside it."""
    import torch
    from transformers import MistralConfig, MistralModel

    torch.manual_seed(3)
    network = MistralModel(MistralConfig(**SIZES, num_key_value_heads=2)).eval()
    more = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "[CLS]", "eos_token": "[SEP]", "add_eos_token": True}
    file = write(tmp_path, network, more) / "tokenizer.json"
    whole = Tokenizer.from_file(str(file)).encode("steam").ids
    content = json.loads(file.read_text())
    content["post_processor"]["single"].pop()
    file.write_text(json.dumps(content))
    assert Tokenizer.from_file(str(file)).encode("steam").ids == whole[:-1]
    with torch.inference_mode():
        expected = network(input_ids=torch.tensor([whole])).last_hidden_state[0].mean(0)
    np.testing.assert_allclose((await vectors(tmp_path, ["steam"]))[0], expected, atol=1e-5)


@pytest.mark.parametrize("padding", [None, "<added>"])
async def test_a_tokenizer_without_padding_of_the_networks_embeds(tmp_path: Path, padding: str | None) -> None:
    texts = ["steam", text(20)]
    whole = await vectors(
        write(tmp_path / "padded", bert(hidden_act="relu")), texts
    )  # an activation that our own BERT does not support
    found = await vectors(write(tmp_path / "other", bert(hidden_act="relu"), {"pad_token": padding}), texts)
    np.testing.assert_allclose(found, whole, atol=1e-6)


@pytest.mark.parametrize(
    ("tokenizer", "config"),
    [
        ({}, {"pad_token_id": 0}),
        ({}, {"pad_token_id": None}),
        ({"pad_token": None}, {"pad_token_id": None}),
        ({"pad_token": None}, {"pad_token_id": 0}),
        ({"pad_token": "<added>"}, {"pad_token_id": None}),
        ({}, {"pad_token_id": -1}),
        ({}, {"pad_token_id": 103}),
        ({"padding_side": "left"}, {"pad_token_id": None}),
        ({"chat_template": CHATML}, {"pad_token_id": 0}),
    ],
)
async def test_a_reranker_of_a_chat_models_kind_scores_each_pair_as_if_alone(
    tmp_path: Path, tokenizer: dict[str, Any], config: dict[str, Any]
) -> None:
    network = llama_scorer()
    folder = write(tmp_path / "model", network, tokenizer, **config)
    np.testing.assert_allclose(await logits(folder), scored(network, folder), atol=1e-4)


async def test_a_bert_whose_tokenizer_has_no_token_types_scores_without_them(tmp_path: Path) -> None:
    network = bert_scorer()
    folder = write(tmp_path / "model", network)
    np.testing.assert_allclose(await logits(folder), scored(network, folder), atol=1e-4)
    assert abs(np.subtract(scored(network, folder, types=True), scored(network, folder))).max() > 1e-2


async def test_a_token_of_every_text_that_the_network_lacks_is_refused_at_the_load(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", bert(vocab_size=102))
    with pytest.raises(EngineFailed, match=r"writes '.*' \(\d+\) into every text, but its network has 102"):
        await vectors(folder, ["steam"])


async def test_vectors_are_cut_to_the_models_dimensions(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    whole = SentenceTransformer(str(write(tmp_path / "bare", bert())), device="cpu", truncate_dim=8)
    whole.save_pretrained(str(tmp_path / "saved"))
    texts = ["steam", text(20)]
    expected = whole.encode(texts)
    assert expected.shape == (2, 8)
    np.testing.assert_allclose(await vectors(tmp_path / "saved", texts), expected, atol=1e-5)


async def test_a_recipe_that_allows_only_the_whole_vector_allows_no_cut(tmp_path: Path) -> None:
    engine = embeddings.engine()
    flags = {"matryoshka_dimensions": [SIZES["hidden_size"]]}
    await engine.load(recipe("embed", flags), write(tmp_path / "model", bert()), "cpu", Reports())
    with pytest.raises(BadRequest, match="have 32 dimensions and cannot be cut"):
        await engine.model.embed(EmbedRequest(inputs=["steam"], dimensions=8))
    await engine.close()


async def test_texts_that_go_into_a_chat_template_first_are_refused_at_the_load(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = write(tmp_path / "bare", bert(), {"chat_template": CHATML})
    SentenceTransformer(str(folder), device="cpu").save_pretrained(str(tmp_path / "saved"))
    with pytest.raises(EngineFailed, match="writes each text into its chat template first"):
        await vectors(tmp_path / "saved", ["steam"])


def convbert() -> Any:
    """Return a network whose convolution reaches from a text's last token into the padding after it."""
    import torch
    from transformers import ConvBertConfig, ConvBertModel

    torch.manual_seed(3)
    return ConvBertModel(ConvBertConfig(**SIZES, embedding_size=32))


async def test_a_text_has_the_same_vector_whatever_shares_its_step(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = write(tmp_path / "model", convbert())
    texts = ["steam", text(40), text(3)]
    library = SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(await vectors(folder, texts), [library.encode([one])[0] for one in texts], atol=1e-4)


async def test_a_pair_has_the_same_score_whatever_shares_its_step(tmp_path: Path) -> None:
    import torch
    from transformers import FNetConfig, FNetForSequenceClassification

    torch.manual_seed(3)  # this network mixes all tokens of a step, also padding
    network = FNetForSequenceClassification(FNetConfig(**SIZES, num_labels=1))
    folder = write(tmp_path / "model", network)
    np.testing.assert_allclose(await logits(folder), scored(network, folder), atol=1e-3)


async def test_a_model_that_ends_in_unknown_code_is_refused(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense

    whole = SentenceTransformer(str(write(tmp_path / "bare", bert())), device="cpu")
    whole.append(Dense(32, 8))
    whole.save_pretrained(str(tmp_path / "saved"))
    assert (await vectors(tmp_path / "saved", ["steam"])).shape == (1, 8)
    file = tmp_path / "saved" / "2_Dense" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"activation_function": "transformers.activations.Mish"}))
    with pytest.raises(EngineFailed, match=r"2_Dense ends in transformers\.activations\.Mish"):
        await vectors(tmp_path / "saved", ["steam"])


def bare(folder: Path) -> Path:
    """Remove the special tokens that tokenizers put around each text."""
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {"post_processor": None}))
    return folder


@pytest.mark.parametrize("act", ["gelu", "relu"])
async def test_a_text_of_no_tokens_is_the_clients_fault(tmp_path: Path, act: str) -> None:
    folder = bare(write(tmp_path / "model", bert(hidden_act=act)))
    assert (await vectors(folder, ["steam"])).shape == (1, 32)
    with pytest.raises(BadRequest, match="Input 1 has no tokens"):
        await vectors(folder, ["steam", "\u200b"])


async def test_a_pair_of_no_tokens_is_the_clients_fault(tmp_path: Path) -> None:
    engine = rerank.engine()
    await engine.load(recipe("rerank"), bare(write(tmp_path / "model", bert_scorer())), "cpu", Reports())
    with pytest.raises(BadRequest, match="have no tokens"):
        await engine.model.rerank(RerankRequest(query=" ", documents=["steam", "\u200b"]))
    assert len((await engine.model.rerank(RerankRequest(query="steam", documents=["", "\u200b"])))[0].logits) == 2
    await engine.close()


async def test_a_text_is_cut_at_the_length_of_the_processing(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    whole = SentenceTransformer(str(write(tmp_path / "bare", bert())), device="cpu")
    whole.save_pretrained(str(tmp_path / "saved"))
    file = tmp_path / "saved" / "sentence_bert_config.json"
    tokenizer_config = json.loads(file.read_text()) | {"processing_kwargs": {"text": {"max_length": 24}}}
    file.write_text(json.dumps(tokenizer_config))
    engine = embeddings.engine()
    loaded = await engine.load(recipe("embed"), tmp_path / "saved", "cpu", Reports())
    found, _ = await engine.model.embed(EmbedRequest(inputs=[text(40)], truncate=True, normalize=False))
    await engine.close()
    assert (loaded.context_length, found.tokens) == (24, [24])
    expected = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode([text(40)])
    np.testing.assert_allclose(np.frombuffer(found.vectors, "<f4"), expected[0], atol=1e-4)


async def test_a_reranker_that_scores_by_the_next_token_computes_only_that_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.modules import LogitScore
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    folder = write(tmp_path / "bare", LlamaForCausalLM(LlamaConfig(**SIZES)))
    library = CrossEncoder(str(folder), device="cpu")
    library.save_pretrained(str(tmp_path / "saved"))
    expected = library.predict([(QUERY, one) for one in DOCUMENTS], batch_size=1, activation_fn=torch.nn.Identity())
    shapes: list[tuple[int, ...]] = []
    forward = LogitScore.forward

    def watched(module: Any, features: Any, **more: Any) -> Any:
        shapes.append(tuple(features["causal_logits"].shape[1:]))
        return forward(module, features, **more)

    monkeypatch.setattr(LogitScore, "forward", watched)
    np.testing.assert_allclose(await logits(tmp_path / "saved"), expected, atol=1e-3)
    assert set(shapes) == {(1, SIZES["vocab_size"])}


@pytest.mark.parametrize("tokenizer_config", [{"tokenizer_class": "BertTokenizer"}, None])
async def test_a_missing_tokenizer_is_not_made_up(tmp_path: Path, tokenizer_config: dict[str, str] | None) -> None:
    """The library makes one of five special tokens, with which all texts of three words have the same vector."""
    folder = write(tmp_path / "model", bert())
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    if tokenizer_config:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    with pytest.raises(EngineFailed, match=r"has no tokenizer\.json, nor vocab\.txt"):
        await vectors(folder, ["steam", "rail"])
    words = Tokenizer.from_file(str(minilm() / "tokenizer.json")).get_vocab()
    (folder / "vocab.txt").write_text("\n".join(sorted(words, key=words.__getitem__)))
    one, other = await vectors(folder, ["steam", "rail"])
    assert abs(one - other).max() > 1e-2


async def test_rotary_positions_depend_on_a_texts_own_length(tmp_path: Path) -> None:
    """Phi-3 scales them for a whole step if one of its texts is longer than in the first training."""
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers import Phi3Config, Phi3Model

    torch.manual_seed(3)
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    config = Phi3Config(
        **SIZES, rope_parameters=rope | {"original_max_position_embeddings": 24}, original_max_position_embeddings=24,
        pad_token_id=0,
    )  # fmt: skip
    folder = write(tmp_path / "model", Phi3Model(config))
    texts = [text(9), text(60), text(3)]
    library = SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(await vectors(folder, texts), [library.encode([one])[0] for one in texts], atol=1e-4)


async def test_separate_steps_for_queries_are_refused_at_the_load(tmp_path: Path) -> None:
    """All texts would get the steps for documents."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Router

    whole = SentenceTransformer(str(write(tmp_path / "bare", bert())), device="cpu")
    whole.append(Router({"query": [Dense(32, 8)], "document": [Dense(32, 8)]}, default_route="document"))
    whole.save_pretrained(str(tmp_path / "saved"))
    with pytest.raises(EngineFailed, match="separate steps for queries"):
        await vectors(tmp_path / "saved", ["steam"])


@pytest.mark.parametrize("kind", ["SparseEncoder", "MultiVectorEncoder", "CrossEncoder"])
async def test_a_model_of_another_kind_is_not_averaged(tmp_path: Path, kind: str) -> None:
    """The library would make a SentenceTransformer of it, whose vectors mean nothing."""
    folder = write(tmp_path / "model", bert())
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(EngineFailed, match=f"saved as a {kind}"):
        await vectors(folder, ["steam"])


async def test_a_model_without_a_network_is_refused_at_the_load(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    tokens = Tokenizer.from_file(str(minilm() / "tokenizer.json"))
    SentenceTransformer(modules=[StaticEmbedding(tokens, embedding_dim=4)], device="cpu").save(str(tmp_path))
    with pytest.raises(EngineFailed, match="begins with StaticEmbedding; only models that begin with a Transformer"):
        await vectors(tmp_path, ["steam"])


async def test_a_network_that_also_sees_is_refused_at_the_load(tmp_path: Path) -> None:
    import torch
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    torch.manual_seed(3)
    half = {name: size for name, size in SIZES.items() if name != "initializer_range"}
    seen = {**half, "image_size": 32, "patch_size": 16}
    network = CLIPModel(CLIPConfig(text_config=half, vision_config=seen, projection_dim=16))
    folder = write(tmp_path / "model", network)
    CLIPImageProcessor().save_pretrained(folder)
    with pytest.raises(EngineFailed, match="made by get_text_features"):
        await vectors(folder, ["steam"])
