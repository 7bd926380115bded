"""Write an adapter into a place on a GPU with a handful of launches.

vLLM's layers clear and copy one half at a time: 896 launches for an 8B model, which occupy the engine's loop. Here the
whole adapter is copied to a buffer on the device in one transfer, and distributed to the layers by torch's multi-tensor
functions (as used in its optimizers). All of this is ordered by the engine's own stream, so the buffer is free again
when the next adapter's copy starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from models.chat.vllm.adapters.arena import Arena
from models.chat.vllm.adapters.read import tensors
from models.chat.vllm.adapters.templates import AdapterTemplate

Half = tuple[str, int, int]
"""A layer, the number of its part, and 0 for A or 1 for B."""
MOST_LAYOUTS = 256
"""Number of cached layouts of places."""


class PinnedAdapter(NamedTuple):
    """An adapter's halves, prepared by `GpuCopier.sources`."""

    data: torch.Tensor
    """All halves in pinned host memory, (bytes,) uint8."""
    layout: tuple[tuple[Half, int], ...]
    """Each half with its rank: all A, then all B."""
    halves: list[torch.Tensor]
    """The halves as views of the buffer, valid once `data` is copied there."""
    fills: bool
    """Whether it fills a place completely, so that nothing of the previous adapter can remain."""


class GpuCopier:
    """Copies adapters to a GPU. Used on the engine's loop, except `sources`. manager: vLLM's LoRAModelManager."""

    def __init__(self, manager: Any) -> None:
        with torch.inference_mode():
            self._places: dict[Half, torch.Tensor] = {
                (name, part, half): stacked
                for name, module in manager.modules.items()
                for half, both in enumerate((module.lora_a_stacked, module.lora_b_stacked))
                for part, stacked in enumerate(both)
            }
            count = sum(stacked[0].nbytes for stacked in self._places.values())
            self._buffer = torch.empty(count, dtype=torch.uint8, device=manager.device)
        self._rank: int = manager.lora_config.max_lora_rank
        self.arena: Arena | None = None
        """The arena of staged adapters, in memory unknown to torch."""
        self._layouts: dict[tuple[int, tuple[tuple[Half, int], ...]], list[torch.Tensor]] = {}

    @property
    def place_bytes(self) -> int:
        """Return the bytes of a place in all layers, which is the maximum size of an adapter."""
        return self._buffer.nbytes

    def sources_of(self, lora: Any) -> PinnedAdapter | None:
        """Do the same as `sources` for adapters of one template, which share all but their data."""
        template: AdapterTemplate | None = lora.__dict__.get("roundhouse_template")
        if template is not None and template.sources is not None:
            known: PinnedAdapter = template.sources
            return known._replace(data=_data_of(lora))
        sources = self.sources(lora)
        if template is not None and sources is not None:
            template.sources = sources._replace(data=torch.empty(0, dtype=torch.uint8))
        return sources

    def sources(self, lora: Any) -> PinnedAdapter | None:
        """Return the adapter's halves for one copy.

        None if they are not contiguous or do not fit the buffer, so that `set_lora` must be used.
        """
        halves = [
            ((name, part, half), tensor)
            for name, weights in lora.loras.items()
            for part, pair in enumerate(tensors(weights))
            for half, tensor in enumerate(pair)
            if tensor is not None
        ]
        halves.sort(key=lambda half: half[0][2])
        data = _data_of(lora)
        storage = data.untyped_storage()
        where, count = storage.data_ptr(), storage.nbytes()
        if count > self._buffer.nbytes or any(
            tensor.untyped_storage().data_ptr() != where
            or not tensor.is_contiguous()
            or tensor.dtype is not self._places[half].dtype
            for half, tensor in halves
        ):
            return None
        layout = tuple((half, tensor.shape[half[2]]) for half, tensor in halves)
        fills = len(layout) == len(self._places) and all(rank == self._rank for _, rank in layout)
        with torch.inference_mode():
            return PinnedAdapter(data, layout, [self._in_buffer(tensor) for _, tensor in halves], fills)

    def _in_buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        start = tensor.storage_offset() * tensor.itemsize
        return self._buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    def write(self, sources: PinnedAdapter, index: int) -> None:
        """Write the adapter into place `index`, leaving nothing of the previous one."""
        with torch.inference_mode():
            self._buffer[: len(sources.data)].copy_(sources.data, non_blocking=True)
            if self.arena is not None:
                self.arena.copied(sources.data)
            if not sources.fills:
                torch._foreach_zero_([stacked[index] for stacked in self._places.values()])
            targets, half = self._targets(index, sources.layout), len(sources.layout) // 2
            # two calls, because lists with a tensor of other strides (B of a lower rank) are copied one by one
            torch._foreach_copy_(targets[:half], sources.halves[:half])
            torch._foreach_copy_(targets[half:], sources.halves[half:])

    def _targets(self, index: int, layout: tuple[tuple[Half, int], ...]) -> list[torch.Tensor]:
        """Return views of a place for the halves of such a layout. Adapters of a team mostly share one layout."""
        if cached := self._layouts.get((index, layout)):
            return cached
        if len(self._layouts) >= MOST_LAYOUTS:
            self._layouts.clear()
        made = [
            self._places[what][index, 0, :rank] if what[2] == 0 else self._places[what][index, 0, :, :rank]
            for what, rank in layout
        ]
        self._layouts[index, layout] = made
        return made


def _data_of(lora: Any) -> torch.Tensor:
    """Return the block that contains an adapter's first half, (bytes,) uint8."""
    return _whole(next(_halves(lora)))


def blocks_of(lora: Any) -> list[torch.Tensor]:
    """The blocks in which an adapter's halves lie: (bytes,) uint8 each."""
    blocks = {half.untyped_storage().data_ptr(): half for half in _halves(lora)}
    return [_whole(half) for half in blocks.values()]


def _halves(lora: Any) -> Iterator[torch.Tensor]:
    pairs = (pair for weights in lora.loras.values() for pair in tensors(weights))
    return (half for pair in pairs for half in pair if half is not None)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def gpu_copier(manager: Any) -> GpuCopier | None:
    """Create a copier; None if a layer has another `set_lora`, or if several workers each have a part of the rows."""
    from vllm.lora import layers
    from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA

    ways = (
        BaseLinearLayerWithLoRA.set_lora,
        layers.MergedColumnParallelLinearWithLoRA.set_lora,
        layers.MergedColumnParallelLinearVariableSliceWithLoRA.set_lora,
    )
    modules = list(manager.modules.values())
    plain = all(
        getattr(type(module), "set_lora", None) in ways and getattr(module, "tp_size", 1) == 1 for module in modules
    )
    return GpuCopier(manager) if modules and plain else None
