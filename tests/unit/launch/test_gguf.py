"""GGUF files are converted to the model that they were made from."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from launch.conversion.gguf import describe, gguf_of, listing_of
from launch.conversion.whisper import Conversions
from launch.files.fitting import misfit
from launch.proposal.draft import Machine
from launch.proposal.propose import propose
from launch.request import ModelRequest, parse_source
from registry.errors import Unfit
from registry.recipes.definition import Task
from registry.recipes.fields import PathSource
from tests.contract.chat import fixtures

pytestmark = pytest.mark.real
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj":
    "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "model.layers": "blk",
}  # fmt: skip
"""transformers' names of a Llama's layers, and llama.cpp's."""


def write_gguf(file: Path, base: Path, architecture: str = "llama") -> None:
    """As llama.cpp's converter writes a Llama: rows of q and k in its own order."""
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
    words += ["ab", *(f"<|unused{number}|>" for number in range(config["vocab_size"] - len(words) - 1))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(fixtures.END)
    writer.add_chat_template(TEMPLATE)
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
    converted = await conversions.make(found.recipe, folder)
    assert conversions.find(found.recipe, folder) == converted
    expected, actual = load_file(base / "model.safetensors"), load_file(converted / "model.safetensors")
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], tensor.to(torch.bfloat16)) for name, tensor in expected.items())
    assert "quantization_config" not in json.loads((converted / "config.json").read_text())
    assert (converted / "chat_template.jinja").read_text() == TEMPLATE


def test_another_architecture_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    write_gguf(tmp_path / "it.gguf", fixtures.write_base(tmp_path / "base"), "nobodys")
    with pytest.raises(Unfit, match="llama, ") as refused:
        describe(tmp_path / "it.gguf")
    assert refused.value.code == "gguf_not_served"


def test_one_of_several_files_is_not_guessed(tmp_path: Path) -> None:
    assert gguf_of(tmp_path) is None
    for name in ("q4.gguf", "q8.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(Unfit, match=r"2 GGUF files \(q4\.gguf, q8\.gguf\)"):
        gguf_of(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert gguf_of(tmp_path) is None
