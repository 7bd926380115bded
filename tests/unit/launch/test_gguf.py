"""GGUF files are converted to the model that they were made from."""

import asyncio
import itertools
import json
import struct
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from launch.conversion.gguf import _read, conversion_note, convert, describe, gguf_of, listing_of, look
from launch.conversion.gguf_settings import split_as_trained
from launch.conversion.whisper import Conversions
from launch.files.detect import misfit
from launch.proposal.draft import Machine
from launch.proposal.propose import propose
from launch.request import ModelRequest, parse_source
from models.sources.fetching import Downloads
from models.sources.repository import purge
from models.sources.resolve import resolve, revision
from registry.errors import NotFound, Unavailable, Unfit
from registry.recipes.definition import Recipe, RecipeAdapter, Task
from registry.recipes.fields import GgufSource, PathSource
from runtime.cli.commands.models.edits import check
from runtime.cli.failures import RefusedError
from tests.contract.chat import fixtures
from tests.unit.adapters.fake_hub import FakeHub, serve

pytestmark = pytest.mark.real
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj":
    "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "model.layers": "blk",
}  # fmt: skip
"""transformers' names of a Llama's layers, and llama.cpp's."""


def write_gguf(
    file: Path, base: Path, architecture: str = "llama", more: Callable[[Any], None] = lambda writer: None
) -> None:
    """Write a Llama as llama.cpp's converter does, with rows of q and k in its own order.

    more: adds other keys and tensors.
    """
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
    config = json.loads((base / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(str(file), architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_vocab_size(config["vocab_size"])
    tokenizer: dict[str, Any] = json.loads((base / "tokenizer.json").read_text())
    words = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    words += [token["content"] for token in tokenizer["added_tokens"]]
    words += [
        "ab",
        "<end_of_turn>",
        "abc",
        *(f"<|unused{number}|>" for number in range(config["vocab_size"] - len(words) - 3)),
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(fixtures.END)
    writer.add_chat_template(TEMPLATE)
    more(writer)
    for name, tensor in load_file(base / "model.safetensors").items():
        for theirs, own in NAMES.items():
            name = name.replace(theirs, own)
        rows = heads if "attn_q." in name else kv_heads if "attn_k." in name else 0
        if rows:
            size = tensor.shape[0] // rows
            tensor = tensor.reshape(rows, 2, size // 2, -1).swapaxes(1, 2).reshape(tensor.shape)
        writer.add_tensor(name, tensor.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


async def test_a_gguf_becomes_the_model_that_it_was_made_from(tmp_path: Path) -> None:
    base = fixtures.write_base(tmp_path / "base")
    folder = tmp_path / "tiny"
    folder.mkdir()
    write_gguf(folder / "tiny.gguf", base)
    source = parse_source(str(folder / "tiny.gguf"))
    assert source == PathSource(path=str(folder))
    assert misfit(folder, Task.CHAT) is None
    description = await asyncio.to_thread(describe, folder / "tiny.gguf")
    listing = listing_of(folder / "tiny.gguf", description)
    found = propose(listing, source, ModelRequest(str(folder)), Machine("cpu", 8 << 30))
    assert (found.recipe.task, found.recipe.id) == (Task.CHAT, "tiny")
    assert found.estimate.weights >= description.parameters * 2

    conversions = Conversions(tmp_path / "converted")
    assert conversions.find(found.recipe, folder) is None
    reports: list[tuple[int, int | None]] = []
    converted = await conversions.make(found.recipe, folder, lambda *report: reports.append(report))
    whole = description.parameters * 2
    assert reports[-1] == (whole, whole)
    assert reports == sorted(reports)
    assert len(reports) > 1
    assert conversion_note(listing).startswith("The GGUF is converted to bfloat16 once: ")
    assert conversions.find(found.recipe, folder) == converted
    expected, actual = load_file(base / "model.safetensors"), load_file(converted / "model.safetensors")
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], tensor.to(torch.bfloat16)) for name, tensor in expected.items())
    assert "quantization_config" not in json.loads((converted / "config.json").read_text())
    assert (converted / "chat_template.jinja").read_text() == TEMPLATE


OF_LLAMA_3 = [1.0] * 8 + [2.6945297] + [8.0] * 7
"""llama.cpp's factors for a Llama 3.1 with heads of 32 values."""


def as_llama_3(writer: Any) -> None:
    writer.add_rope_freq_base(500_000.0)
    writer.add_tensor("rope_freqs.weight", np.array(OF_LLAMA_3, np.float32))


def as_stretched(kind: str, writer: Any) -> None:
    writer.add_rope_scaling_type(SimpleNamespace(value=kind))
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(128)


@pytest.mark.parametrize(
    ("architecture", "more", "expected"),
    [
        ("llama", as_llama_3, {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                               "original_max_position_embeddings": 8192, "rope_theta": 500_000.0}),
        ("llama", partial(as_stretched, "linear"), {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}),
        ("qwen2", partial(as_stretched, "yarn"), {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0,
                                                  "original_max_position_embeddings": 128}),
        ("starcoder2", lambda writer: writer.add_rope_freq_base(999_999.0), {"rope_type": "default",
                                                                             "rope_theta": 999_999.0}),
    ],
)  # fmt: skip
def test_positions_are_stretched_as_the_file_says(
    architecture: str, more: Callable[[Any], None], expected: dict[str, Any], tmp_path: Path
) -> None:
    """transformers' reader leaves all of these out, and answers differed without any error."""
    write_gguf(tmp_path / "tiny.gguf", fixtures.write_base(tmp_path / "base"), architecture, more)
    config = _read(tmp_path / "tiny.gguf").config
    assert config["rope_parameters"] == expected
    assert config["eos_token_id"] == [fixtures.END, 263], "also <end_of_turn>, at which llama.cpp ends an answer"


@pytest.mark.parametrize(
    ("pre", "stated", "begins"),
    [("llama-bpe", None, True), ("llama-bpe", False, False), ("gpt-2", None, False), ("gpt-2", True, True)],
)
def test_texts_begin_as_in_llama_cpp(pre: str, stated: bool | None, begins: bool, tmp_path: Path) -> None:
    """No text began with the first token, without which a Llama continues worse."""
    from transformers import AutoTokenizer

    def more(writer: Any) -> None:
        writer.add_tokenizer_pre(pre)
        writer.add_bos_token_id(258)
        if stated is not None:
            writer.add_add_bos_token(stated)

    write_gguf(tmp_path / "tiny.gguf", fixtures.write_base(tmp_path / "base"), more=more)
    convert(tmp_path / "tiny.gguf", tmp_path / "out", lambda done, total: None)
    ids = AutoTokenizer.from_pretrained(tmp_path / "out")("ab")["input_ids"]
    assert ids == ([258] if begins else []) + [262]


def bytewise(*pieces: str) -> list[tuple[str, tuple[int, int]]]:
    """The pieces as a tokenizer of bytes gives them, where a blank is a letter of its own."""
    ends = list(itertools.accumulate(map(len, pieces), initial=0))
    return [(piece.replace(" ", "Ġ"), place) for piece, place in zip(pieces, itertools.pairwise(ends), strict=True)]


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("smollm", "a  12", ("a", "  ", "1", "2")),
        ("starcoder", "a  12", ("a", "  ", "1", "2")),
        ("gpt-2", "a  12", ("a", " ", " 12")),
        ("stablelm2", "a.b 12", ("a", ".b", " ", "1", "2")),
        ("deepseek-coder", "a.b 12", ("a", ".", "b", " ", "1", "2")),
        ("deepseek-llm", "a.b 12 c  ", ("a", ".", "b", " ", "12", " c", "  ")),
        ("falcon", "a 12345", ("a", " ", "123", "45")),
        ("superbpe", "a b 12345", ("a b ", "12", "345")),
        ("viking", "a b, 12", ("a", " b", ",", " ", "1", "2")),
        ("poro-chat", "a b, 12", ("a", " b", ",", " 12")),
        ("seed-coder", "a.b 12", ("a", ".b", " ", "1", "2")),
    ],
)  # fmt: skip
def test_texts_are_split_as_the_tokenizer_was_trained(
    pre: str, text: str, pieces: tuple[str, ...], tmp_path: Path
) -> None:
    """transformers splits kinds that it does not know as GPT-2 does: 'a', ' ' and ' 12' in the first case."""
    from transformers import AutoTokenizer

    base = fixtures.write_base(tmp_path / "base")
    write_gguf(tmp_path / "tiny.gguf", base, more=lambda writer: writer.add_tokenizer_pre(pre))
    convert(tmp_path / "tiny.gguf", tmp_path / "out", lambda done, total: None)
    split = AutoTokenizer.from_pretrained(tmp_path / "out").backend_tokenizer.pre_tokenizer
    assert split.pre_tokenize_str(text) == bytewise(*pieces)


@pytest.mark.parametrize(("pre", "tokens"), [("llama-bpe", ["abc"]), ("gpt-2", ["ab", "c"])])
def test_a_word_with_a_token_of_its_own_is_that_token(pre: str, tokens: list[str], tmp_path: Path) -> None:
    """Llama 3 has words that no merges lead to, such as 'abc' here."""
    from transformers import AutoTokenizer

    base = fixtures.write_base(tmp_path / "base")
    write_gguf(tmp_path / "tiny.gguf", base, more=lambda writer: writer.add_tokenizer_pre(pre))
    convert(tmp_path / "tiny.gguf", tmp_path / "out", lambda done, total: None)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").tokenize("abc") == tokens


@pytest.mark.parametrize(("stated", "tokens"), [(False, ["a"]), (True, ["▁", "a"]), (None, ["▁", "a"])])
def test_sentences_begin_with_a_blank_unless_the_file_says_no(stated: bool | None, tokens: list[str]) -> None:
    from transformers import LlamaTokenizer

    metadata: dict[str, Any] = {"model": "llama"} | ({} if stated is None else {"add_space_prefix": stated})
    fields = {
        f"tokenizer.ggml.{name}": SimpleNamespace(contents=lambda value=value: value)
        for name, value in metadata.items()
    }
    tokenizer = LlamaTokenizer(vocab={"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "a": 4}, merges=[])
    split_as_trained(SimpleNamespace(fields=fields), tokenizer.backend_tokenizer)
    assert tokenizer.tokenize("a") == tokens
    assert tokenizer.decode(tokenizer("a")["input_ids"], skip_special_tokens=True) == "a"


def test_positions_that_nothing_here_knows_are_refused(tmp_path: Path) -> None:
    base = fixtures.write_base(tmp_path / "base")
    write_gguf(tmp_path / "a.gguf", base, more=partial(as_stretched, "ntk"))
    write_gguf(tmp_path / "b.gguf", base, more=lambda writer: writer.add_tensor("rope_freqs.weight", np.arange(1, 17)))
    assert "stretches positions as 'ntk'" in _read(tmp_path / "a.gguf").fault
    assert "by factors other than a Llama's" in _read(tmp_path / "b.gguf").fault


def test_biases_that_the_network_would_lack_are_refused(tmp_path: Path) -> None:
    """They were left out silently."""
    bias = np.ones(fixtures.HIDDEN, np.float32)
    write_gguf(
        tmp_path / "tiny.gguf",
        fixtures.write_base(tmp_path / "base"),
        more=lambda writer: writer.add_tensor("blk.0.attn_q.bias", bias),
    )
    with pytest.raises(Unfit, match=r"has 1 biases .* such as blk\.0\.attn_q\.bias"):
        convert(tmp_path / "tiny.gguf", tmp_path / "out", lambda done, total: None)


def test_libraries_parse_a_file_once_for_its_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers would parse it for the config, the weights and the tokenizer: minutes for a large vocabulary."""
    import gguf
    from transformers import modeling_gguf_pytorch_utils as reading

    write_gguf(tmp_path / "tiny.gguf", fixtures.write_base(tmp_path / "base"))
    reader, parsed = gguf.GGUFReader, list[str]()
    monkeypatch.setattr(gguf, "GGUFReader", counted := lambda file: parsed.append(file) or reader(file))
    monkeypatch.setattr(reading, "tqdm", reading.tqdm)  # so that it is restored
    convert(tmp_path / "tiny.gguf", tmp_path / "out", lambda *_: None)
    assert parsed == [str(tmp_path / "tiny.gguf")]
    assert gguf.GGUFReader is counted
    assert (
        load_file(tmp_path / "out" / "model.safetensors").keys()
        == load_file(tmp_path / "base" / "model.safetensors").keys()
    )


def test_a_broken_gguf_is_refused_without_a_server(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF and nothing else")
    with pytest.raises(RefusedError, match="cannot be read here"):
        check(tmp_path)
    assert "Traceback" not in capfd.readouterr().err


def test_an_adapter_of_llama_cpp_is_not_a_model(tmp_path: Path) -> None:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    pairs = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    values = b"".join(text(key) + struct.pack("<I", 8) + text(value) for key, value in pairs.items())
    (tmp_path / "lora.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + values)
    with pytest.raises(Unfit, match="is a LoRA adapter in the format of llama") as refused:
        describe(tmp_path / "lora.gguf")
    assert refused.value.code == "is_adapter"


def test_a_file_whose_header_would_take_all_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries alone take more than is allowed here, so that no large file is needed."""
    write_gguf(tmp_path / "it.gguf", fixtures.write_base(tmp_path / "base"))
    monkeypatch.setattr("launch.conversion.gguf.MEMORY", 32 << 20)
    with pytest.raises(Unfit, match="takes more memory to read than that of any known model") as refused:
        describe(tmp_path / "it.gguf")
    assert refused.value.code == "gguf_not_served"


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read headers in this process, because a separate one, as in the test above, imports transformers for seconds."""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, 0, msgspec.json.encode(_read(Path(command[-1]))))

    runs = SimpleNamespace(
        run=run, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )
    monkeypatch.setattr("launch.conversion.gguf.subprocess", runs)


@pytest.mark.usefixtures("in_process")
def test_a_gguf_is_checked_without_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    write_gguf(folder / "tiny.gguf", fixtures.write_base(tmp_path / "base"))
    check(folder / "tiny.gguf")
    printed = capsys.readouterr().out
    assert printed.startswith(f"{folder} can be served: chat by vllm.")
    assert "- The GGUF is converted to bfloat16 once: " in printed


@pytest.mark.usefixtures("in_process")
def test_another_architecture_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    write_gguf(tmp_path / "it.gguf", fixtures.write_base(tmp_path / "base"), "nobodys")
    with pytest.raises(Unfit, match="llama, ") as refused:
        describe(tmp_path / "it.gguf")
    assert refused.value.code == "gguf_not_served"
    assert ".." not in refused.value.message
    assert "Known are bloom, " in refused.value.message
    assert "tokenizer" not in refused.value.message


def test_one_of_several_files_is_not_guessed(tmp_path: Path) -> None:
    assert gguf_of(tmp_path) is None
    for name in ("q4.gguf", "q8.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(Unfit, match=r"2 GGUF files \(q4\.gguf, q8\.gguf\)"):
        gguf_of(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert gguf_of(tmp_path) is None


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with serve() as hub:
        for name, value in (("HF_ENDPOINT", hub.url), ("NO_PROXY", "127.0.0.1"), ("no_proxy", "127.0.0.1")):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield hub


@pytest.mark.usefixtures("in_process")
async def test_one_file_of_a_hub_is_proposed_by_its_header_and_fetched_alone(hub: FakeHub, tmp_path: Path) -> None:
    base = fixtures.write_base(tmp_path / "base")
    (tmp_path / "repo" / "more").mkdir(parents=True)
    write_gguf(tmp_path / "repo" / "tiny.gguf", base)
    write_gguf(tmp_path / "repo" / "more" / "tiny.gguf", base, "nobodys")
    commit = hub.push("team/tiny", tmp_path / "repo")
    source = parse_source("team/tiny/tiny.gguf")
    assert isinstance(source, GgufSource)
    on_hub = await asyncio.to_thread(look, source)
    assert on_hub.source == GgufSource(hub="team/tiny", revision=commit, file="tiny.gguf")
    assert on_hub.to_fetch == (tmp_path / "repo" / "tiny.gguf").stat().st_size
    found = propose(on_hub.listing, on_hub.source, ModelRequest("x"), Machine("cpu", 8 << 30))
    assert (found.recipe.task, found.recipe.id, found.recipe.source) == (Task.CHAT, "tiny", on_hub.source)
    assert Recipe.model_validate(found.recipe.model_dump(mode="json")) == found.recipe
    with pytest.raises(Unavailable, match="not downloaded"):
        resolve(on_hub.source, Path(), download=False)

    folder = await Downloads().fetch(on_hub.source, lambda come, whole: None)
    assert [file.name for file in folder.iterdir()] == ["tiny.gguf"]
    assert (folder / "tiny.gguf").read_bytes() == (tmp_path / "repo" / "tiny.gguf").read_bytes()
    assert revision(on_hub.source, folder) == commit
    assert resolve(on_hub.source, Path(), download=False) == folder
    assert not any(path.endswith("more/tiny.gguf") for path in hub.requested)

    other = parse_source("team/tiny/more/tiny.gguf")
    assert isinstance(other, GgufSource)
    with pytest.raises(Unfit, match=r"team/tiny/more/tiny\.gguf is a GGUF that cannot be read here.*llama, "):
        look(other)
    absent = other.model_copy(update={"file": "q8.gguf"})
    with pytest.raises(NotFound, match=r"holds no q8\.gguf\. It holds more/tiny\.gguf, tiny\.gguf\."):
        look(absent)
    assert purge([on_hub.source])
    assert not folder.exists()


def test_an_adapter_is_no_gguf() -> None:
    source = {"hub": "team/tiny", "revision": "main", "file": "tiny.gguf"}
    with pytest.raises(ValidationError, match="file"):
        RecipeAdapter.model_validate({"name": "a", "source": source})
    for file in ("../x.gguf", "/x.gguf", "x.bin", "a//x.gguf"):
        with pytest.raises(ValidationError, match="gguf file inside the repository"):
            GgufSource.model_validate(source | {"file": file})
