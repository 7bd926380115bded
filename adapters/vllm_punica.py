"""LoRA on the CPU, right and fast: one pair of matrix products per adapter in the batch.

vLLM 0.32's own CPU path gathers one weight matrix per token, and reads the index -1 (a token without adapter) as the
last place, so that a base request gets the adapter which lies there. Here rows are grouped by place once per step;
rows without adapter are in no group and keep the base layer's output untouched.

Only linear layers carry adapters (see `vllm_manager`): embedding and head adapters are refused before they get here.
"""

from __future__ import annotations

from typing import Any

import torch

Groups = list[tuple[int, torch.Tensor | None, int]]
"""(place, row numbers, rank) per adapter in the batch. Row numbers None: every row of the batch."""


def row_groups(indices: torch.Tensor, ranks: dict[int, int], max_rank: int) -> Groups:
    """Group the rows of a batch by adapter place.

    Args:
        indices: one place per row (int64, any device); negative means no adapter.
        ranks: per place how many rows of A its adapter fills; the rest is zeros and is not multiplied.
        max_rank: stands for the places that `ranks` leaves out.
    """
    present: list[int] = torch.unique(indices).tolist()
    if len(present) == 1:
        return [(place, None, ranks.get(place, max_rank)) for place in present if place >= 0]
    return [
        (place, (indices == place).nonzero().squeeze(1), ranks.get(place, max_rank)) for place in present if place >= 0
    ]


def add_lora(
    output: torch.Tensor,
    inputs: torch.Tensor,
    stacked_a: tuple[torch.Tensor, ...],
    stacked_b: tuple[torch.Tensor, ...],
    groups: Groups,
    scale: float,
    slices: tuple[int, ...],
) -> None:
    """output[rows, slice] += scale * (inputs[rows] @ A.T) @ B.T for every group and slice, in place.

    Shapes: output (rows, sum of slices), inputs (rows, width), A (places, 1, rank, width), B (places, 1, slice, rank).
    """
    for place, rows, rank in groups:
        chosen = inputs if rows is None else inputs.index_select(0, rows)
        chosen = chosen.to(stacked_a[0].dtype)
        offset = 0
        for a, b, width in zip(stacked_a, stacked_b, slices, strict=True):
            shrunk = chosen @ a[place, 0, :rank].t()
            delta = shrunk @ b[place, 0, :, :rank].t()
            target = output[:, offset : offset + width]
            if scale != 1.0:
                delta = delta * scale
            if rows is None:
                target += delta
            else:
                target.index_add_(0, rows, delta.to(output.dtype))
            offset += width


_ALL_ROWS = 1 << 30
"""As the end of a slice: all rows of A."""


def _update_metadata(self: Any, mapping: Any, *args: Any, **kwargs: Any) -> None:
    self._update_base_metadata(mapping, *args)
    self.is_prefill = mapping.is_prefill
    self.roundhouse_groups = row_groups(self.token_lora_indices, self.__dict__.get("roundhouse_ranks", {}), _ALL_ROWS)


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
    if self.roundhouse_groups:
        add_lora(
            y.view(-1, y.shape[-1]),
            x.view(-1, x.shape[-1]),
            lora_a_stacked,
            lora_b_stacked,
            self.roundhouse_groups,
            scale,
            output_slices,
        )


def _add_shrink(
    self: Any, y: Any, x: torch.Tensor, lora_a_stacked: tuple[torch.Tensor, ...], scale: float, **kwargs: Any
) -> None:
    x = x.view(-1, x.shape[-1])
    for buffer, a in zip(y, lora_a_stacked, strict=True):
        buffer = buffer.view(-1, buffer.shape[-1])
        for place, rows, _ in self.roundhouse_groups:
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
        for place, rows, _ in self.roundhouse_groups:
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
    if hasattr(wrapper, "roundhouse_groups"):
        return
    wrapper.roundhouse_groups = []
    wrapper.update_metadata = _update_metadata
    wrapper.add_lora_linear = _add_lora_linear
    wrapper.add_shrink = _add_shrink
    wrapper.add_expand = _add_expand
    wrapper.add_lora_embedding = wrapper.add_lora_logits = _refuse
    if hasattr(wrapper, "apply_lora_full_linear"):
        wrapper.apply_lora_full_linear = _refuse
