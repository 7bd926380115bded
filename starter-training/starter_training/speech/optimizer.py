"""Muon for matrices (all of one shape in one batched product, so few kernels), AdamW for everything else."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from registry.files.context import native_bfloat16

_COEFFICIENTS = (3.4445, -4.775, 2.0315)


def _orthogonal(update: Tensor) -> Tensor:
    """Apply Muon's Newton-Schulz iteration to a stack of matrices [N, rows, columns]."""
    # Emulated bfloat16 would make this the most expensive part of a step on a CPU core.
    work = update.bfloat16() if update.is_cuda or native_bfloat16() else update.float()
    tall = work.shape[1] > work.shape[2]
    if tall:
        work = work.transpose(1, 2)
    work = work / (work.norm(dim=(1, 2), keepdim=True) + 1e-7)
    first, second, third = _COEFFICIENTS
    for _ in range(5):
        gram = work @ work.transpose(1, 2)
        work = first * work + (second * gram + third * gram @ gram) @ work
    result: Tensor = work.transpose(1, 2) if tall else work
    return result


class Optimizer:
    """Both optimizers behind one ``step``. ``rate`` is AdamW's learning rate; Muon's is proportional."""

    def __init__(self, model: nn.Module, fused: bool) -> None:
        self._stacks: dict[torch.Size, list[nn.Parameter]] = {}
        others: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            if parameter.ndim == 2 and ".layers." in name:
                self._stacks.setdefault(parameter.shape, []).append(parameter)
            else:
                others.append(parameter)
        self._moments = {
            shape: torch.zeros(len(stack), *shape, device=stack[0].device) for shape, stack in self._stacks.items()
        }
        self._adam = torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.98), weight_decay=0.01, fused=fused)
        self._all = [*others, *(parameter for stack in self._stacks.values() for parameter in stack)]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Clip the gradient at norm 1, update, and clear the gradient."""
        nn.utils.clip_grad_norm_(self._all, 1.0)
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        for shape, stack in self._stacks.items():
            moment = self._moments[shape]
            gradient = torch.stack([p.grad if p.grad is not None else torch.zeros_like(p) for p in stack])
            moment.lerp_(gradient, 0.05)
            update = _orthogonal(torch.lerp(gradient, moment, 0.95)).float()
            # The factor scales the update to the size of AdamW's, so that one rate works for both.
            torch._foreach_mul_(list[Tensor](stack), 1 - rate * 0.02)
            torch._foreach_add_(list[Tensor](stack), list(update.unbind(0)), alpha=-rate * 0.2 * max(shape) ** 0.5)
        for parameter in self._all:
            parameter.grad = None
