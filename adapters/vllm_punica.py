"""LoRA on the CPU, right and fast: by a compiled kernel, and as matrix products where those are quicker.

vLLM 0.32's own CPU path gathers one weight matrix per token, and reads the index -1 (a token without adapter) as the
last place, so that a base request gets the adapter which lies there. Here rows are grouped by place once per step;
rows without adapter are in no group and keep the base layer's output untouched.

| rows of one adapter in the batch            | by                                                            |
|---------------------------------------------|---------------------------------------------------------------|
| up to KERNEL_WORK                           | `cpu_kernel`, all such adapters in one call per layer         |
| up to TILE_WORK, where there are tiles      | the same, by `cpu_tiles.c`: prompts                           |
| more: long prompts, large layers            | one pair of matrix products per adapter and slice             |
| any, where the kernel could not be compiled | the same: right, and slow with many adapters                  |

Only linear layers carry adapters (see `vllm_manager`): embedding and head adapters are refused before they get here.
"""

from __future__ import annotations

from typing import Any

import torch

from adapters import cpu_kernel
from adapters.cpu_arena import LINE, Arena
from adapters.cpu_batch import Batch, Groups
from registry.dtypes import native_bfloat16

KERNEL_WORK = 1 << 22
"""Multiplications of one adapter in one layer, divided by PyTorch's compute threads, up to which the kernel, which uses
one, is quicker than matrix products: 340 rows of a layer of 256 x 768 at rank 8, 64 of 4096 x 4096, with one thread."""

TILE_WORK = 1 << 28
"""The same for tiles: 300 rows of a layer of 512 x 2,816 at rank 256. They take half the time of matrix products, whose
weights oneDNN lays out anew each time, but round what A gives, so that few rows stay what they are in any batch."""

WIDE_ROWS = 8
"""On a processor that emulates bfloat16, products of so many rows are made in float32: casting A and B included, they
take half the time at 16 rows and a quarter at 200 (512 x 1,408, rank 256)."""


def add_lora(output: torch.Tensor, inputs: torch.Tensor, layer: cpu_kernel.Layer, groups: Groups, scale: float) -> None:
    """output[rows, slice] += scale * (inputs[rows] @ A.T) @ B.T for every group and slice, in place.

    Shapes: output (rows, sum of slices), inputs (rows, width). A and B are widened to the inputs' dtype where theirs is
    narrower; see `WIDE_ROWS` for those that are bfloat16.
    """
    emulated = inputs.dtype is torch.bfloat16 and not native_bfloat16()
    for place, rows, rank in groups:
        chosen = inputs if rows is None else inputs.index_select(0, rows)
        if emulated and len(chosen) >= WIDE_ROWS:
            chosen = chosen.float()
        offset = 0
        for number, width in enumerate(layer.slices):
            target = output[:, offset : offset + width]
            offset += width
            pair = layer.pair(place, number)
            if pair is None:
                continue
            a, b = pair
            shrunk = chosen @ a[:rank].to(chosen.dtype).t()
            delta = shrunk @ b[:, :rank].to(chosen.dtype).t()
            if scale != 1.0:
                delta = delta * scale
            if rows is None:
                target += delta
            else:
                target.index_add_(0, rows, delta.to(output.dtype))


_ALL_ROWS = 1 << 30
"""As the end of a slice: all rows of A."""
_NOBODY = Batch([], {}, 0)


def lay_out(modules: dict[str, Any]) -> None:
    """Move the empty places into one piece of memory, the B halves turned round as the kernel reads them. Shapes and
    dtypes stay: writers see no change."""
    layers = [module for module in modules.values() if linear(module)]
    halves = [half for module in layers for name in _HALVES for half in getattr(module, name)]
    arena = Arena(sum(half.nbytes + LINE for half in halves))
    for module in layers:
        module.lora_a_stacked = tuple(arena.zeros(a.shape, a.dtype) for a in module.lora_a_stacked)
        module.lora_b_stacked = tuple(
            arena.zeros((*b.shape[:-2], b.shape[-1], b.shape[-2]), b.dtype).transpose(-1, -2)
            for b in module.lora_b_stacked
        )


_HALVES = ("lora_a_stacked", "lora_b_stacked")


def linear(module: Any) -> bool:
    """Whether a LoRA layer keeps one pair of matrices per place and slice."""
    return all(_stacked(getattr(module, name, None)) for name in _HALVES)


def _stacked(halves: Any) -> bool:
    return isinstance(halves, tuple) and all(isinstance(half, torch.Tensor) and half.ndim == 4 for half in halves)


def _update_metadata(self: Any, mapping: Any, lora_index_to_id: list[int | None], *args: Any, **kwargs: Any) -> None:
    """Of vLLM's own tables none is kept: their readers are replaced. Most changes are from some adapter to none."""
    self.is_prefill = mapping.is_prefill
    ids: tuple[int, ...] = mapping.index_mapping
    if not any(ids):
        self.roundhouse_batch = _NOBODY
        return
    places = {adapter: place for place, adapter in enumerate(lora_index_to_id) if adapter is not None}
    rows = [places[adapter] if adapter > 0 else -1 for adapter in ids]
    self.roundhouse_batch = Batch(rows, self.__dict__.get("roundhouse_ranks", {}), _ALL_ROWS)


def _add_lora_linear(
    self: Any,
    y: torch.Tensor,
    x: torch.Tensor,
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    scale: float,
    output_slices: tuple[int, ...],
    *,
    buffer: Any = None,
    **kwargs: Any,
) -> None:
    batch: Batch = self.roundhouse_batch
    if not batch.any:
        return
    call = batch.calls.get(id(lora_a_stacked))
    if call is not None and call.layer.stacked[1] is lora_b_stacked and call(y, x, scale):
        return
    if y.ndim != 2 or x.ndim != 2:
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
    layer, most, tiled = _layer(self, lora_a_stacked, lora_b_stacked, output_slices)
    few, many, groups = batch.split(most, tiled if x.dtype is torch.bfloat16 else 0)
    kernel = self.roundhouse_kernel
    if few is not None and not cpu_kernel.add(kernel, y, x, layer, few, scale):
        *_, groups = batch.split(0)  # the layer is not for the kernel, so nothing was done
    elif many is not None and not cpu_kernel.add_tiled(kernel, y, x, layer, many, scale):
        *_, groups = batch.split(most)
    elif few is not None and many is None and not groups:
        batch.calls[id(lora_a_stacked)] = cpu_kernel.Call(kernel, y, x, layer, few)
    if groups:
        add_lora(y, x, layer, groups, scale)


def layer_of(module: Any) -> cpu_kernel.Layer:
    """What the kernel knows of a LoRA layer."""
    return _layer(module.punica_wrapper, module.lora_a_stacked, module.lora_b_stacked, module.output_slices)[0]


def _layer(
    self: Any, a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...], slices: tuple[int, ...]
) -> tuple[cpu_kernel.Layer, int, int]:
    """The layer as the kernel takes it, and up to how many rows times rank the kernel is the quicker, without tiles and
    with them. Made when first seen: LoRA layers keep their tensors."""
    layers = self.__dict__.setdefault("roundhouse_layers", {})
    # `Layer` holds on to the tuple, so its identity is not given to another one
    found: tuple[cpu_kernel.Layer, int, int] | None = layers.get(id(a))
    if found is None or found[0].stacked[1] is not b:
        layer = cpu_kernel.Layer(a, b, slices)
        usable = self.roundhouse_kernel is not None and layer.fits
        one = torch.get_num_threads() * layer.work
        most, tiled = KERNEL_WORK // one if usable else 0, TILE_WORK // one if layer.tiled and cpu_kernel.tiles() else 0
        found = layers[id(a)] = layer, most, tiled if usable else 0
    return found


def _add_shrink(
    self: Any, y: Any, x: torch.Tensor, lora_a_stacked: tuple[torch.Tensor, ...], scale: float, **kwargs: Any
) -> None:
    x = x.view(-1, x.shape[-1])
    for buffer, a in zip(y, lora_a_stacked, strict=True):
        buffer = buffer.view(-1, buffer.shape[-1])
        for place, rows, _ in self.roundhouse_batch.split(0)[2]:
            chosen = (x if rows is None else x.index_select(0, rows)).to(a.dtype)
            shrunk = (chosen @ a[place, 0].t()).to(buffer.dtype) * scale
            if rows is None:
                buffer[:, : shrunk.shape[1]] = shrunk
            else:
                buffer[rows, : shrunk.shape[1]] = shrunk


def _add_expand(
    self: Any,
    y: torch.Tensor,
    x: Any,
    lora_b_stacked: tuple[torch.Tensor, ...],
    output_slices: tuple[int, ...],
    offset_start: int = 0,
    add_inputs: bool = True,
    **kwargs: Any,
) -> None:
    y = y.view(-1, y.shape[-1])
    offset = offset_start
    for buffer, b, width in zip(x, lora_b_stacked, output_slices, strict=True):
        buffer = buffer.view(-1, buffer.shape[-1])
        target = y[:, offset : offset + width]
        for place, rows, _ in self.roundhouse_batch.split(0)[2]:
            chosen = (buffer if rows is None else buffer.index_select(0, rows)).to(b.dtype)
            delta = (chosen @ b[place, 0].t()).to(y.dtype)
            if rows is None:
                target.add_(delta) if add_inputs else target.copy_(delta)
            elif add_inputs:
                target.index_add_(0, rows, delta)
            else:
                target.index_copy_(0, rows, delta)
        offset += width


def _refuse(self: Any, *args: Any, **kwargs: Any) -> None:
    raise NotImplementedError("adapters on the embedding, the head or a classifier are refused at staging")


def patch(wrapper: Any) -> None:
    """Replace the methods of `PunicaWrapperCPU` that LoRA layers call. Safe to call twice."""
    if hasattr(wrapper, "roundhouse_batch"):
        return
    wrapper.roundhouse_batch = _NOBODY
    wrapper.roundhouse_kernel = cpu_kernel.load()
    wrapper.update_metadata = _update_metadata
    wrapper.add_lora_linear = _add_lora_linear
    wrapper.add_shrink = _add_shrink
    wrapper.add_expand = _add_expand
    wrapper.add_lora_embedding = wrapper.add_lora_logits = _refuse
    if hasattr(wrapper, "apply_lora_full_linear"):
        wrapper.apply_lora_full_linear = _refuse
