"""Adapters of attention and of the shared expert's gate in a mixture of experts answer as in peft."""

from pathlib import Path

import pytest
import torch

from models.chat.engine import VllmEngine
from models.messages import AdapterRef
from tests.contract.chat import fixtures
from tests.contract.chat.oracle import Oracle, greedy

pytestmark = pytest.mark.real
LAYERS = {"self_attn.q_proj": (128, 128), "mlp.shared_expert_gate": (128, 1)}
"""Inputs and outputs of each layer with an adapter."""


def write_base(folder: Path) -> Path:
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    torch.manual_seed(0)
    config = Qwen2MoeConfig(
        vocab_size=fixtures.VOCABULARY, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
        shared_expert_intermediate_size=64, max_position_embeddings=fixtures.CONTEXT, eos_token_id=fixtures.END,
        initializer_range=0.15,
    )  # fmt: skip
    Qwen2MoeForCausalLM(config).save_pretrained(folder)
    fixtures.write_tokenizer(folder)
    return folder


def adapter(folder: Path, module: str, monkeypatch: pytest.MonkeyPatch) -> AdapterRef:
    monkeypatch.setattr(fixtures, "SHAPES", LAYERS)
    return fixtures.write_adapter(folder, seed=len(module), modules=(module,))


async def test_adapters_of_a_model_of_experts_equal_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write_base(tmp_path / "base")
    adapters = [adapter(tmp_path / module, module, monkeypatch) for module in LAYERS]
    oracle = Oracle(base, adapters)
    engine = VllmEngine()
    await engine.load(fixtures.recipe(base), base, "cpu", lambda progress: None)
    try:
        prompt, plain = await greedy(engine, None)
        assert oracle.agrees(None, prompt, plain)
        for one in adapters:
            await engine.stage(one)
            await engine.place(one, None)
            prompt, answer = await greedy(engine, one)
            assert oracle.agrees(one, prompt, answer), one.path
            assert not oracle.agrees(None, prompt, answer), "not the base's answer"
    finally:
        await engine.close()
