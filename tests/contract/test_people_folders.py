"""Folders as people have them are read as peft and the models' libraries read them, or refused with the right cause."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.check_process import check
from adapters.jobs import CheckAnswer, Job
from adapters.types import Base
from launch.checks.process import check as check_model
from models.messages import EmbedRequest
from models.text import embeddings
from registry.bounds import Bounds
from tests.contract import people_folders as made
from tests.contract.people_folders import ADAPTER, CHAT, TAKEN_ADAPTERS, TAKEN_CHATS, TAKEN_MODELS, Maker
from tests.unit.launch.test_checks import faults, proposal_of

pytestmark = pytest.mark.real
BASE = Base("starter-chat", CHAT, 16)
TEXTS = ["steam", "Zug, 列車: naïve café!", "the quick brown fox jumps over the lazy dog " * 5]


def checked(source: Path, folder: Path) -> CheckAnswer:
    for name in ("unpacked", "out"):
        (folder / name).mkdir()
    unpack_to = folder / "unpacked" if source.is_file() else None
    return check(Job(source=source, base=BASE, bounds=Bounds(), unpack_to=unpack_to, out=folder / "out", trusted=True))


@pytest.fixture(scope="module")
def network() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(str(CHAT), dtype=torch.float32)


def logits(network: Any, folder: Path) -> torch.Tensor:
    """Return the logits of peft with the adapter in this folder."""
    from peft import PeftModel

    tokens = torch.arange(60, 100).unsqueeze(0)
    wrapped = PeftModel.from_pretrained(network, str(folder))
    try:
        with torch.inference_mode():
            result: torch.Tensor = wrapped(tokens).logits
            return result
    finally:
        wrapped.unload()


@pytest.mark.parametrize("maker", TAKEN_ADAPTERS, ids=lambda maker: maker.__name__)
def test_an_adapter_is_read_as_peft_reads_it(maker: Maker, tmp_path: Path, network: Any) -> None:
    answer = checked(maker(tmp_path / "it"), tmp_path)
    assert answer.outcome == "fit", answer.faults
    expected, stored = logits(network, ADAPTER), logits(network, tmp_path / "out")
    with torch.inference_mode():
        base = network(torch.arange(60, 100).unsqueeze(0)).logits
    assert (expected - base).abs().max() > 1, "the adapter has an effect"
    assert torch.allclose(stored, expected, atol=1e-2)


def test_an_adapter_whose_tokens_the_base_lacks_is_refused(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    folder = made.own_template(tmp_path / "it")
    answer = checked(folder, tmp_path)
    assert answer.outcome == "unfit"
    assert "2 tokens that the base lacks ('<|im_end|>', '<|im_start|>')" in " ".join(answer.faults)
    rows = AutoConfig.from_pretrained(str(CHAT)).vocab_size
    assert max(AutoTokenizer.from_pretrained(str(folder)).convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])) >= rows


def missing_weights(folder: Path) -> set[str]:
    from transformers import AutoModelForCausalLM

    _, info = AutoModelForCausalLM.from_pretrained(str(folder), output_loading_info=True)
    return set(info["missing_keys"])


def test_a_model_without_its_output_is_refused(tmp_path: Path) -> None:
    folder = made.tie_key_missing(tmp_path / "it")
    result = faults(folder)
    assert "lm_head.weight is not in the files" in result
    assert '"tie_word_embeddings": true' in result, "the remedy"
    assert missing_weights(folder) == {"lm_head.weight"}
    made.edit(folder / "config.json", tie_word_embeddings=True)
    assert faults(folder) == "", "the remedy helps"


def test_a_model_under_pefts_names_is_refused(tmp_path: Path) -> None:
    folder = made.peft_names(tmp_path / "it")
    result = faults(folder)
    assert "named base_model.model." in result
    assert "merge_and_unload" in result
    assert "model.embed_tokens.weight" in missing_weights(folder)


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = made.no_tokenizer(tmp_path / "it")
    assert "tokenizer cannot be loaded" in faults(folder)
    with pytest.raises((OSError, ValueError)):
        AutoTokenizer.from_pretrained(str(folder))


@pytest.mark.parametrize("maker", TAKEN_CHATS, ids=lambda maker: maker.__name__)
def test_a_complete_chat_model_is_accepted(maker: Maker, tmp_path: Path) -> None:
    assert faults(maker(tmp_path / "it")) == ""


def test_a_template_in_a_processors_file_is_used(tmp_path: Path) -> None:
    """vLLM would not find it there, and would say that the model has no chat template."""
    folder = made.template_of_a_processor(tmp_path / "it")
    recipe = proposal_of(folder).recipe
    assert recipe.engine.flags["chat_template"] == (CHAT / "chat_template.jinja").read_text()
    (folder / "preprocessor_config.json").write_text("{}")
    assert "chat_template" not in proposal_of(folder).recipe.engine.flags, "vLLM finds it in the processor"
    assert faults(folder) == ""


REFUSED_CHATS = (
    (made.named_templates, "but no default one", "name one 'default'"),
    (made.names_of_a_wrapper, "names begin with '_orig_mod.'", "rename the weights without it"),
    (made.more_tokens_than_rows, "writes '<|extra69|>', which is token", "320 tokens"),
    (made.git_lfs_pointer, "model.safetensors is a pointer of git-lfs", "run 'git lfs pull'"),
    (
        made.adapter_beside,
        "an adapter (adapter_model.safetensors) in addition to model.safetensors",
        "roundhouse adapters add",
    ),
)


@pytest.mark.parametrize(("maker", "fault", "remedy"), REFUSED_CHATS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_chat_model_that_cannot_answer_is_refused(maker: Maker, fault: str, remedy: str, tmp_path: Path) -> None:
    result = faults(maker(tmp_path / "it"))
    assert fault in result
    assert remedy in result


def test_an_embedding_model_without_one_of_its_steps_is_refused(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = made.st_dense_missing(tmp_path / "it")
    assert "names the step 2_Dense (Dense), whose folder is missing" in faults(folder)
    with pytest.raises(TypeError, match="Dense"):
        SentenceTransformer(str(folder), device="cpu", local_files_only=True)


@pytest.mark.parametrize("maker", TAKEN_MODELS, ids=lambda maker: maker.__name__)
async def test_an_embedding_model_gives_the_librarys_vectors(maker: Maker, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = maker(tmp_path / "it")
    proposal = proposal_of(folder)
    assert not check_model(proposal.recipe, folder).faults
    sizes = [16, 32, 64] if maker is made.matryoshka_config else None
    assert proposal.recipe.engine.flags.get("matryoshka_dimensions") == sizes
    assert "atryoshka" not in " ".join(proposal.notes) or sizes
    library, engine = SentenceTransformer(str(folder), device="cpu", local_files_only=True), embeddings.engine()
    await engine.load(proposal.recipe, folder, "cpu", lambda progress: None)
    try:
        for size in (None, *(sizes or ())):
            result, _ = await engine.model.embed(EmbedRequest(inputs=list(TEXTS), dimensions=size))
            vectors = np.frombuffer(result.vectors, "<f4").reshape(len(TEXTS), result.dimensions)
            expected = library.encode(TEXTS, truncate_dim=size, normalize_embeddings=True, show_progress_bar=False)
            np.testing.assert_allclose(vectors, expected, atol=1e-5)
    finally:
        await engine.close()


def test_every_maker_has_its_test() -> None:
    """Each maker of a folder is used in one of the tests above."""
    helpers = {made.adapter, made.llama, made.bert}
    makers = {
        one for name, one in vars(made).items()
        if callable(one) and getattr(one, "__module__", "") == made.__name__ and name != "edit"
    } - helpers  # fmt: skip
    refused = {maker for maker, _, _ in REFUSED_CHATS}
    refused |= {made.own_template, made.tie_key_missing, made.no_tokenizer, made.peft_names, made.st_dense_missing}
    assert makers == {*TAKEN_ADAPTERS, *TAKEN_CHATS, *TAKEN_MODELS, *refused}
