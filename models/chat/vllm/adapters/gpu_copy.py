"""Writing an adapter into a place on a GPU with a handful of launches.

vLLM's layers clear and copy one half at a time: 896 launches for a model of 8B, 15 ms of the engine's loop on an H100,
in which no step begins. Here the whole adapter crosses the bus in one copy, into a buffer on the device, and is spread
over the layers from there by torch's calls for lists of tensors, those of its optimizers. All of it is in the order of
the engine's own stream, so the buffer is free again when the next adapter's copy begins.
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
"""Layouts of places that are cached."""


class PinnedAdapter(NamedTuple):
    """An adapter as `GpuCopier.sources` found it."""

    data: torch.Tensor
    """(bytes,) uint8 in host memory, pinned: all of its halves."""
    layout: tuple[tuple[Half, int], ...]
    """Each half, and its rank: all A, then all B."""
    halves: list[torch.Tensor]
    """The halves as views of the buffer, valid once `data` is there."""
    fills: bool
    """A place is full of it: nothing of the one before can be left."""


class GpuCopier:
    """`manager`: vLLM's LoRAModelManager. Used on the engine's loop, but for `sources`."""

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
        """The arena of staged adapters, in memory that torch does not know."""
        self._layouts: dict[tuple[int, tuple[tuple[Half, int], ...]], list[torch.Tensor]] = {}

    @property
    def place_bytes(self) -> int:
        """Bytes of a place in all layers: the most that an adapter has."""
        return self._buffer.nbytes

    def sources_of(self, lora: Any) -> PinnedAdapter | None:
        """Like `sources`, for adapters of one template, which share all but their data."""
        template: AdapterTemplate | None = lora.__dict__.get("roundhouse_template")
        if template is not None and template.sources is not None:
            known: PinnedAdapter = template.sources
            return known._replace(data=_data_of(lora))
        sources = self.sources(lora)
        if template is not None and sources is not None:
            template.sources = sources._replace(data=torch.empty(0, dtype=torch.uint8))
        return sources

    def sources(self, lora: Any) -> PinnedAdapter | None:
        """The adapter's halves for one copy; None where they do not lie in one piece that fits the buffer: `set_lora`
        remains.
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
        """Place `index` holds the adapter, and nothing of the one before."""
        with torch.inference_mode():
            self._buffer[: len(sources.data)].copy_(sources.data, non_blocking=True)
            if self.arena is not None:
                self.arena.copied(sources.data)
            if not sources.fills:
                torch._foreach_zero_([stacked[index] for stacked in self._places.values()])
            targets, half = self._targets(index, sources.layout), len(sources.layout) // 2
            # in two calls: a list in which one tensor has other strides, as B of a lower rank, is copied one by one
            torch._foreach_copy_(targets[:half], sources.halves[:half])
            torch._foreach_copy_(targets[half:], sources.halves[half:])

    def _targets(self, index: int, layout: tuple[tuple[Half, int], ...]) -> list[torch.Tensor]:
        """Views of a place, where the halves of such an adapter go. Adapters of a team are mostly of one layout."""
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
    """The block in which an adapter's first half lies: (bytes,) uint8."""
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
    """A copier; None where a layer has another `set_lora`, or several workers each hold a part of the rows."""
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
