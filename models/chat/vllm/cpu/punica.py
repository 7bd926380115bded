"""The functions that vLLM's LoRA layers and experts call on a CPU.

vLLM 0.32's own wrapper gathers one weight matrix per token, and reads the index -1 (a token without adapter) as the
last place, so that a base request gets the adapter there. Here rows are grouped by place once per step; rows without
adapter are in no group and keep the base layer's output. Only linear layers that are not sharded have adapters:
adapters of the embedding and the head are refused earlier (`manager`), and recipes cannot request sharded layers.

Adapters of experts are not supported (`adapters.content.names`). vLLM would reserve room for them and compute all
experts with Triton, which a CPU lacks, so no such model could be loaded. So experts are computed as without places.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.lora.punica_wrapper.punica_base import PunicaWrapperBase

from models.chat.vllm.cpu.kernel import load
from models.chat.vllm.cpu.products import Batch, Layer, turned


def expert_layers(model: Any) -> set[str]:
    """Return the last name parts of `model`'s expert layers, which vLLM's LoRA must skip; none on a GPU."""
    from vllm.model_executor.layers.fused_moe import MoERunner
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return set()
    return {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, MoERunner)}


def patch_experts() -> None:
    """Replace vLLM's method for experts by one without places, through its extension point."""
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    @UnquantizedFusedMoEMethod.register_oot
    class WithoutAdapters(UnquantizedFusedMoEMethod):  # type: ignore[misc]
        def __init__(self, moe: Any) -> None:
            moe.is_lora_enabled = False
            super().__init__(moe)


_ALL_ROWS = 1 << 30
"""End of a slice with all rows of A."""
_EMPTY_BATCH = Batch([], {}, 0)


class CpuLora(PunicaWrapperBase):  # type: ignore[misc]
    """LoRA on a CPU, instead of vLLM's `PunicaWrapperCPU`."""

    ranks: ClassVar[dict[int, int]] = {}
    """Highest rank by adapter in memory; the rest of its place is zeros."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._add = load()
        self._batch = _EMPTY_BATCH
        self._layers: dict[int, Layer] = {}

    def update_metadata(self, mapping: Any, lora_index_to_id: list[int | None], *args: Any, **kwargs: Any) -> None:
        """Group a step's rows by place. vLLM's own tables are not updated, because nothing here reads them."""
        self.is_prefill = mapping.is_prefill
        ids: tuple[int, ...] = mapping.index_mapping
        if not any(ids):
            self._batch = _EMPTY_BATCH
            return
        places = {adapter: place for place, adapter in enumerate(lora_index_to_id) if adapter is not None}
        rows = [places[adapter] if adapter > 0 else -1 for adapter in ids]
        ranks = {place: self.ranks[adapter] for adapter, place in places.items() if adapter in self.ranks}
        self._batch = Batch(rows, ranks, _ALL_ROWS)

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        *,
        buffer: tuple[torch.Tensor, ...] | None = None,
        **kwargs: Any,
    ) -> None:
        if not self._batch.any:
            return
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        self._add(y, x, self._layer(lora_a_stacked, lora_b_stacked, output_slices), self._batch, scale)

    def _layer(self, a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...], slices: tuple[int, ...]) -> Layer:
        """Return the layer of these tensors, cached by id. LoRA layers keep the tuples, so their ids are unique."""
        layer = self._layers.get(id(a))
        if layer is None or layer.b is not b:
            layer = self._layers[id(a)] = Layer(a, b, slices)
        return layer

    def _refuse(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("adapters of the embedding, the head, a classifier or sharded layers are refused")

    add_shrink = add_expand = add_lora_embedding = add_lora_logits = apply_lora_full_linear = _refuse


def turn_places(modules: dict[str, Any]) -> None:
    """Lay out the B halves of all places for the kernel. Shapes and dtypes stay, so nothing changes for writers."""
    for module in modules.values():
        halves = module.lora_b_stacked
        if isinstance(halves, tuple) and all(half.ndim == 4 for half in halves):
            module.lora_b_stacked = tuple(turned(half) for half in halves)


def patch(platform: Any) -> None:
    """platform: vLLM's CpuPlatform, which names the class that LoRA layers call."""
    platform.get_punica_wrapper = classmethod(lambda _: f"{CpuLora.__module__}.{CpuLora.__qualname__}")
