"""LoRA by PyTorch: one pair of matrix products per adapter and slice. Right anywhere, slow with many adapters."""

from __future__ import annotations

import torch

from models.chat.vllm.cpu.batch import Batch, Groups
from models.chat.vllm.cpu.layer import Layer
from registry.files.dtypes import native_bfloat16

WIDE_ROWS = 8
"""On a processor that emulates bfloat16, products of so many rows are made in float32: casting A and B included, they
take half the time at 16 rows and a quarter at 200 (512 x 1,408, rank 256)."""


def add(output: torch.Tensor, inputs: torch.Tensor, layer: Layer, batch: Batch, scale: float) -> None:
    """output[rows, slice] += scale * (inputs[rows] @ A.T) @ B.T for every adapter of the batch and slice, in place.

    Shapes: output (rows, sum of slices), inputs (rows, width).
    """
    add_groups(output, inputs, layer, batch.split(0)[1], scale)


def add_groups(output: torch.Tensor, inputs: torch.Tensor, layer: Layer, groups: Groups, scale: float) -> None:
    """The same for these adapters only. A and B are widened to the inputs' dtype where theirs is narrower; see
    `WIDE_ROWS` for those that are bfloat16."""
    emulated = inputs.dtype is torch.bfloat16 and not native_bfloat16()
    for place, rows, rank in groups:
        chosen = inputs if rows is None else inputs.index_select(0, rows)
        if emulated and len(chosen) >= WIDE_ROWS:
            chosen = chosen.float()
        offset = 0
        for a, b, width in zip(layer.a, layer.b, layer.slices, strict=True):
            target = output[:, offset : offset + width]
            offset += width
            shrunk = chosen @ a[place, 0, :rank].to(chosen.dtype).t()
            delta = shrunk @ b[place, 0, :, :rank].to(chosen.dtype).t()
            if scale != 1.0:
                delta = delta * scale
            if rows is None:
                target += delta
            else:
                target.index_add_(0, rows, delta.to(output.dtype))
