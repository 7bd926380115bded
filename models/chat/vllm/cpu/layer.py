"""One LoRA layer's weights in all places, as both ways of computing LoRA on a CPU take them."""

from __future__ import annotations

import torch

Tensors = tuple[torch.Tensor, ...]


class Layer:
    """Shapes, one per slice: A (places, 1, rank, inputs), B (places, 1, width, rank)."""

    def __init__(self, stacked_a: Tensors, stacked_b: Tensors, slices: tuple[int, ...]) -> None:
        self.places, _, self.rank, self.inputs = stacked_a[0].shape
        self.outputs, self.slices, self.dtype = sum(slices), slices, stacked_a[0].dtype
        self.a, self.b = stacked_a, stacked_b
        self.work = len(slices) * self.inputs + self.outputs
        """Multiplications per row and rank."""


def turned(b: torch.Tensor) -> torch.Tensor:
    """A copy with equal shape and values whose last dimension but one lies contiguous: the order of the kernel."""
    return b.transpose(-1, -2).clone(memory_format=torch.contiguous_format).transpose(-1, -2)
