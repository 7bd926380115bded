"""Muon for the weight matrices (torch's AdamW updates the rest), and gradient clipping per adapter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from registry.files.context import native_bfloat16

MOMENTUM, DECAY = 0.95, 0.01
FLOOR = 0.01
"""Least factor of the learning rate after its decline."""


class Muon:
    """Momentum whose update is made orthogonal by five Newton-Schulz steps (Jordan et al., 2024).

    Matrices of the same shape (or its transpose) are updated as one stack, because launches would dominate the time of
    a small model.
    """

    def __init__(self, matrices: Iterable[Tensor]) -> None:
        groups: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for matrix in matrices:
            groups[(min(matrix.shape), max(matrix.shape))].append(matrix)
        self._groups = list(groups.values())
        self._buffers = [[torch.zeros_like(matrix) for matrix in group] for group in self._groups]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update with learning rate `rate`, and clear the gradients."""
        for group, buffers in zip(self._groups, self._buffers, strict=True):
            gradients = [matrix.grad for matrix in group if matrix.grad is not None]
            torch._foreach_lerp_(buffers, gradients, 1 - MOMENTUM)
            ahead = torch._foreach_lerp(gradients, buffers, MOMENTUM)
            tall = [matrix.shape[0] > matrix.shape[1] for matrix in group]
            x = torch.stack([u.T if flip else u for u, flip in zip(ahead, tall, strict=True)])
            if x.is_cuda or native_bfloat16():  # emulated bfloat16 is four times slower than float32
                x = x.bfloat16()
            x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
            for _ in range(5):
                product = x @ x.mT
                x = 3.4445 * x + torch.baddbmm(product, product, product, beta=-4.7750, alpha=2.0315) @ x
            updates = [
                (u.T if flip else u) * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                for u, flip, matrix in zip(x.float(), tall, group, strict=True)
            ]
            torch._foreach_mul_(group, 1 - rate * DECAY)
            torch._foreach_add_(group, updates, alpha=-rate)
            for matrix in group:
                matrix.grad = None


@torch.no_grad()
def clip_by_group(parameters: list[Tensor], limit: float) -> None:
    """Clip the gradients of each adapter separately, so that one adapter's bad batch does not affect the others.

    Parameters are [adapters, ..., ...]. For each adapter the norm over all parameters becomes at most `limit`.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    squares = torch.stack([gradient.square().sum(dim=(1, 2)) for gradient in gradients]).sum(0)
    scale = (limit / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(gradients, [scale[:, None, None]] * len(gradients))


def ramp(progress: float, step: int, warm_up: int, hold: float) -> float:
    """Return the factor of the learning rate, in (0, 1]: linear warm-up over `warm_up` steps, constant until `hold` of
    the time, then linear to FLOOR. `progress` is the share of the time that has passed."""
    down = 1.0 if progress < hold else max(FLOOR, (1 - progress) / (1 - hold))
    return down * min(1.0, (step + 1) / warm_up)
