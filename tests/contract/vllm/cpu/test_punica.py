"""The patch to vLLM's LoRA products on a CPU: the fault in a fresh copy of vLLM's own code, and its fix."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from models.chat.vllm.adapters import manager
from models.chat.vllm.cpu import punica as cpu_punica
from models.chat.vllm.cpu.products import turned
from tests.contract.vllm.stock import stock

pytestmark = pytest.mark.real
WIDTH, RANK, PLACES = 12, 4, 3
SLICES = (5, 3)


def ours() -> Any:
    return cpu_punica.CpuLora(64, 64, "cpu")


def vllms() -> Any:
    return stock("vllm.lora.punica_wrapper.punica_cpu").PunicaWrapperCPU(64, 64, "cpu")


def mapped(punica: Any, ids: list[int]) -> Any:
    """Give `punica` a batch. Id 0 means no adapter; ids 1, 2, 3 are in places 0, 1, 2."""
    from vllm.lora.layers import LoRAMapping

    punica.update_metadata(LoRAMapping(tuple(ids), tuple(ids), is_prefill=True), [1, 2, 3], PLACES + 1, 100)
    return punica


@pytest.fixture
def weights() -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    a = tuple(torch.randn(PLACES, 1, RANK, WIDTH, generator=generator) for _ in SLICES)
    b = tuple(turned(torch.randn(PLACES, 1, width, RANK, generator=generator)) for width in SLICES)
    return a, b


def expected(y: torch.Tensor, x: torch.Tensor, a: Any, b: Any, ids: list[int]) -> torch.Tensor:
    y = y.clone()
    for row, adapter in enumerate(ids):
        if adapter:
            parts = [b_[adapter - 1, 0] @ (a_[adapter - 1, 0] @ x[row]) for a_, b_ in zip(a, b, strict=True)]
            y[row] += torch.cat(parts)
    return y


MIXES = [[0, 1, 2, 0, 3, 1], [0, 0, 0], [2, 2, 2], [3], [0], [1, 0, 1, 0, 1, 0, 3]]


@pytest.mark.usefixtures("cpu_way")
@pytest.mark.parametrize("ids", MIXES)
def test_rows_get_their_own_adapter(ids: list[int], weights: Any) -> None:
    x, y = torch.randn(len(ids), WIDTH), torch.randn(len(ids), sum(SLICES))
    expected_ = expected(y, x, *weights, ids)
    mapped(ours(), ids).add_lora_linear(y, x, *weights, 1.0, SLICES)
    torch.testing.assert_close(y, expected_)


def test_stock_vllm_applies_the_last_place_to_a_row_without_adapter(weights: Any) -> None:
    ids = [0, 1]
    x, y = torch.randn(2, WIDTH), torch.zeros(2, sum(SLICES))
    mapped(vllms(), ids).add_lora_linear(y, x, *weights, 1.0, SLICES)
    torch.testing.assert_close(y, expected(torch.zeros(2, sum(SLICES)), x, *weights, [3, 1]))


def test_stock_sharded_layers_and_the_head_do_so_too(weights: Any) -> None:
    a, b = weights
    ids, x = [0, 1], torch.randn(2, WIDTH)
    punica = mapped(vllms(), ids)
    y, buffers = torch.zeros(2, sum(SLICES)), torch.zeros(len(SLICES), 2, RANK)
    punica.add_shrink(buffers, x, a, 1.0)
    punica.add_expand(y, buffers, b, SLICES, add_inputs=True)
    torch.testing.assert_close(y, expected(torch.zeros_like(y), x, a, b, [3, 1]))
    head = torch.zeros(2, SLICES[0])
    punica.add_lora_logits(head, x, a[0], b[0], 1.0)
    torch.testing.assert_close(head, expected(torch.zeros_like(head), x, a[:1], b[:1], [3, 1]))


@pytest.mark.usefixtures("cpu_way")
def test_ranks_below_the_places_rank_are_not_multiplied_out(weights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = weights
    a[0][:, :, 2:] = float("nan")  # rows that a rank of 2 does not write
    a[1][:, :, 2:] = float("nan")
    x, y = torch.randn(2, WIDTH), torch.zeros(2, sum(SLICES))
    punica = ours()
    monkeypatch.setattr(punica, "ranks", {1: 2, 2: 2, 3: 2})
    mapped(punica, [1, 2]).add_lora_linear(y, x, a, b, 1.0, SLICES)
    assert bool(torch.isfinite(y).all())


def test_head_and_embedding_layers_take_no_adapters() -> None:
    from vllm.lora import model_manager

    punica = ours()
    for method in (punica.add_lora_logits, punica.add_lora_embedding):
        with pytest.raises(NotImplementedError):
            method(None, None, None, None, 1.0)
    fresh = stock("vllm.lora.model_manager")
    model = torch.nn.Module()
    model.embedding_modules = {"embed_tokens": "x", "lm_head": "y"}  # type: ignore[assignment]
    assert set(fresh.get_supported_lora_modules(model)) == {"embed_tokens", "lm_head"}
    manager.patch(type("Manager", (), {"add_adapter": None}), fresh)
    assert fresh.get_supported_lora_modules(model) == []
    assert model_manager is not fresh


def test_a_layer_with_two_names_is_known_by_both() -> None:
    """Qwen2-MoE's `shared_expert_gate` is also `expert_gate` of the shared expert.

    vLLM puts the layer with the adapter under the second name only if it knows it. Experts have no such layer on a CPU,
    and DeepSeek's `kv_b_proj`, which is folded into other weights, has none anywhere.
    """
    from vllm.model_executor.layers.fused_moe import MoERunner
    from vllm.model_executor.layers.linear import LinearBase

    def layer(kind: type) -> torch.nn.Module:
        made: torch.nn.Module = kind.__new__(type(kind.__name__, (kind,), {"__abstractmethods__": frozenset()}))
        torch.nn.Module.__init__(made)
        return made

    fresh = stock("vllm.lora.model_manager")
    model, gate = torch.nn.Module(), layer(LinearBase)
    model.shared_expert_gate, model.shared_expert = gate, torch.nn.Module()
    model.shared_expert.expert_gate = gate
    model.experts, model.kv_b_proj = layer(MoERunner), layer(LinearBase)
    assert set(fresh.get_supported_lora_modules(model)) == {"shared_expert_gate", "experts", "kv_b_proj"}
    manager.patch(type("Manager", (), {"add_adapter": None}), fresh)
    assert fresh.get_supported_lora_modules(model) == ["expert_gate", "shared_expert_gate"]


def test_nothing_reads_the_tables_that_our_wrapper_lacks() -> None:
    """Layers call only our wrapper's own methods, except the embedding's layer, which is never made."""
    import vllm.lora.layers

    folder = Path(vllm.lora.layers.__file__).parent
    used = {name for file in folder.glob("*.py") for name in re.findall(r"punica_wrapper\.(\w+)", file.read_text())}
    kind = ours().__class__
    assert "add_lora_linear" in used
    assert "_embeddings_indices" in used
    for name in used - {"_embeddings_indices", "punica_base", "punica_selector"}:
        assert getattr(kind, name).__module__ == cpu_punica.__name__, name


@pytest.mark.usefixtures("cpu_way")
def test_a_step_without_adapters_after_one_with_them_is_answered_by_the_base(weights: Any) -> None:
    punica = mapped(ours(), [1, 2, 3])
    x, y = torch.randn(3, WIDTH), torch.randn(3, sum(SLICES))
    before = y.clone()
    mapped(punica, [0, 0, 0]).add_lora_linear(y, x, *weights, 1.0, SLICES)
    assert torch.equal(y, before)


def test_an_adapter_without_a_place_is_an_error() -> None:
    """It is never answered by the base. `vllm_core` refuses such requests earlier."""
    with pytest.raises(KeyError):
        mapped(ours(), [0, 4])


def test_vllm_uses_our_wrapper_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.lora.punica_wrapper import get_punica_wrapper
    from vllm.platforms import current_platform

    kind = type(current_platform)
    monkeypatch.setattr(kind, "get_punica_wrapper", stock("vllm.platforms.cpu").CpuPlatform.get_punica_wrapper)
    assert type(get_punica_wrapper(64, 64, device="cpu")).__name__ == "PunicaWrapperCPU"
    cpu_punica.patch(kind)
    assert type(get_punica_wrapper(64, 64, device="cpu")) is cpu_punica.CpuLora
