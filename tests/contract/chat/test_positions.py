"""Networks with unusual positions answer as in transformers."""

from pathlib import Path

import pytest
import torch

from models.chat.engine import VllmEngine
from tests.contract.chat import fixtures
from tests.contract.chat.oracle import Oracle, greedy

pytestmark = pytest.mark.real


def write_lfm2(folder: Path) -> Path:
    """Write a convolution and an attention. vLLM needs two sizes that the makers' files have and transformers' lack."""
    from transformers import Lfm2Config, Lfm2ForCausalLM

    torch.manual_seed(0)
    config = Lfm2Config(
        vocab_size=fixtures.VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=fixtures.CONTEXT, pad_token_id=256,
        eos_token_id=fixtures.END, initializer_range=0.15, layer_types=["conv", "full_attention"],
        block_auto_adjust_ff_dim=False, conv_dim=128, block_dim=128,
    )  # fmt: skip
    Lfm2ForCausalLM(config).save_pretrained(folder)
    fixtures.write_tokenizer(folder)
    return folder


def write_ministral(folder: Path) -> Path:
    """Write a model first trained with 8 positions, so that every prompt is longer than that."""
    from transformers import Ministral3Config, Ministral3ForCausalLM

    torch.manual_seed(0)
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 64.0, "original_max_position_embeddings": 8}
    rope |= {"llama_4_scaling_beta": 0.5, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
    config = Ministral3Config(
        vocab_size=fixtures.VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2, head_dim=32,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=fixtures.CONTEXT, pad_token_id=256,
        eos_token_id=fixtures.END, initializer_range=0.15, rope_parameters=rope,
    )  # fmt: skip
    Ministral3ForCausalLM(config).save_pretrained(folder)
    fixtures.write_tokenizer(folder)
    return folder


async def test_ministral_3_answers_long_prompts_as_transformers(tmp_path: Path) -> None:
    """vLLM left out the scale that sharpens attention beyond the first training's positions."""
    base = write_ministral(tmp_path / "base")
    oracle = Oracle(base, [fixtures.write_adapter(tmp_path / "adapter", seed=1)])
    engine = VllmEngine()
    await engine.load(fixtures.recipe(base), base, "cpu", lambda progress: None)
    try:
        assert oracle.agrees(None, *await greedy(engine, None))
    finally:
        await engine.close()


async def test_lfm2_answers_as_transformers_and_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, answers used to differ from run to run."""
    monkeypatch.setattr(fixtures, "SHAPES", {"conv.in_proj": (128, 384)})
    base = write_lfm2(tmp_path / "base")
    adapter = fixtures.write_adapter(tmp_path / "adapter", seed=1, layers=1, modules=("conv.in_proj",))
    oracle = Oracle(base, [adapter])
    engine = VllmEngine()
    await engine.load(fixtures.recipe(base), base, "cpu", lambda progress: None)
    try:
        assert oracle.agrees(None, *await greedy(engine, None))
        await engine.stage(adapter)
        await engine.place(adapter, None)
        assert oracle.agrees(adapter, *await greedy(engine, adapter))
    finally:
        await engine.close()
