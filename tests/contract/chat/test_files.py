"""Which weights of a model's folder are used."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from launch.files.listing import list_folder
from launch.proposal.draft import Machine
from launch.proposal.propose import propose
from launch.request import ModelRequest
from models.chat.engine import VllmEngine
from registry.errors import EngineFailed
from registry.recipes.fields import PathSource
from tests.contract.chat import fixtures
from tests.contract.chat.oracle import Oracle, greedy

pytestmark = pytest.mark.real
VENDORS = {
    "model.": "", "embed_tokens": "tok_embeddings", "self_attn.q_proj": "attention.wq", "post_attention_layernorm":
    "ffn_norm", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv", "mlp.up_proj":
    "feed_forward.w3", "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj":
    "feed_forward.w2", "input_layernorm": "attention_norm", "lm_head": "output",
}  # fmt: skip
"""transformers' names of Mistral's layers, and Mistral's own."""


def write_mistral(folder: Path) -> Path:
    """Write sharded weights in transformers' layout, and different ones in Mistral's own layout beside them."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=fixtures.VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=fixtures.CONTEXT,
        eos_token_id=fixtures.END, initializer_range=0.15, sliding_window=None,
    )  # fmt: skip
    MistralForCausalLM(config).save_pretrained(folder, max_shard_size="200KB")
    fixtures.write_tokenizer(folder)
    others = {}
    for file in folder.glob("model-*.safetensors"):
        for name, tensor in load_file(file).items():
            for theirs, vendors in VENDORS.items():
                name = name.replace(theirs, vendors)
            others[name] = tensor.flip(0).contiguous()
    assert any("wq" in name for name in others)
    save_file(others, folder / "consolidated.safetensors")
    return folder


async def test_transformers_weights_are_used_where_mistrals_own_lie_beside_them(tmp_path: Path) -> None:
    """Fine-tuning leaves the files in Mistral's layout as they were, but vLLM prefers them."""
    base = write_mistral(tmp_path / "base")
    oracle = Oracle(base, [fixtures.write_adapter(tmp_path / "adapter", seed=1)])
    expected = ModelRequest(str(base), id="tiny", overrides={"dtype": "float32", "memory.kv_cache": "64MiB"})
    recipe = propose(list_folder(base), PathSource(path=str(base)), expected, Machine("cpu", 4 << 30)).recipe
    engine = VllmEngine()
    await engine.load(recipe, base, "cpu", lambda progress: None)
    try:
        prompt, answer = await greedy(engine, None)
    finally:
        await engine.close()
    assert oracle.agrees(None, prompt, answer)


async def test_a_model_whose_files_lack_weights_is_not_loaded(tmp_path: Path) -> None:
    """vLLM's own check exempts both weights, and would answer with uninitialised memory."""
    base = fixtures.write_base(tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    for name in ("lm_head.weight", "model.layers.1.self_attn.k_proj.weight"):
        del weights[name]
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    engine = VllmEngine()
    with pytest.raises(EngineFailed, match=r"lack 2 .* a LlamaForCausalLM") as refused:
        await engine.load(fixtures.recipe(base), base, "cpu", lambda progress: None)
    assert "lm_head.weight, model.layers.1.self_attn.qkv_proj.weight" in refused.value.message
    assert '"tie_word_embeddings": true' in refused.value.message
