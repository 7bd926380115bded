"""The loss on packed batches, compiled if possible, and scoring by exact match."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType

import torch
from torch import Tensor
from torch.nn import functional as F

from starter_training.chat.batches import Batch, unpacked
from starter_training.chat.network import Shape, Weights, forward, packed_mask, rotary_table
from starter_training.chat.tasks.conversations import Example

COMPILE_SECONDS = 300
ROWS = 2000
"""Most rows of a batch in `exact`."""
Loss = Callable[[Weights, Weights | None, Tensor, Tensor, Tensor, Tensor], Tensor]


class Inputs:
    """A batch on the device: ids [rows, length], and the mask, rotary and weights for the loss."""

    def __init__(self, batch: Batch, table: Tensor) -> None:
        device = table.device
        positions = torch.from_numpy(batch.positions).to(device, non_blocking=True).int()
        self.ids = torch.from_numpy(batch.ids).to(device, non_blocking=True).long()
        self.weights = torch.from_numpy(batch.weights).to(device, non_blocking=True).float()
        self.mask = packed_mask(positions, table.dtype)
        self.rotary = table[positions]


def make_loss(shape: Shape, dtype: torch.dtype) -> Loss:
    """Return the loss as a function of weights, adapters or None, ids, mask, rotary and token weights.

    Float32 weights are cast to `dtype`. Without adapters the loss is the weighted mean over the batch. With adapters it
    is the sum of the tasks' weighted means, so that each adapter's gradient is that of its own mean.
    """

    def cast(values: Weights) -> Weights:
        return {name: value.to(dtype) for name, value in values.items()}

    def loss(
        weights: Weights, adapters: Weights | None, ids: Tensor, mask: Tensor, rotary: Tensor, counts: Tensor
    ) -> Tensor:
        halves = None if adapters is None else cast(adapters)
        logits = forward(cast(weights), ids, mask, rotary, shape, halves)
        targets = ids.roll(-1, dims=1)  # the last column has weight 0
        each = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none") * counts.flatten()
        groups = 1 if halves is None else len(next(iter(halves.values())))
        return (each.view(groups, -1).sum(1) / counts.view(groups, -1).sum(1).clamp(min=1.0)).sum()

    return loss


def compiled(
    loss: Loss, weights: Weights, adapters: Weights | None, inputs: Inputs, log: Callable[[str], None]
) -> Loss:
    """Return `loss` compiled for the shape of `inputs`, or unchanged if that fails, differs, or takes five minutes."""

    def too_long(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"compiling took over {COMPILE_SECONDS} s")

    trained = list((weights if adapters is None else adapters).values())
    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(COMPILE_SECONDS)
    start = time.monotonic()
    try:
        faster: Loss = torch.compile(loss, dynamic=False)
        arguments = (weights, adapters, inputs.ids, inputs.mask, inputs.rotary, inputs.weights)
        value = faster(*arguments)
        value.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            plain = loss(*arguments)
        if not torch.isfinite(value) or (value - plain).abs() > 0.02 * plain.abs() + 0.02:
            raise ArithmeticError(f"compiled loss {value.item():.4f}, plain loss {plain.item():.4f}")
    except Exception as error:  # training works without compilation
        log(f"not compiled ({type(error).__name__}: {str(error)[:200]!r}), continuing without")
        return loss
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        for parameter in trained:
            parameter.grad = None
    log(f"compiled in {time.monotonic() - start:.1f} s")
    return faster


@torch.no_grad()
def exact(
    weights: Weights, groups: Sequence[Sequence[Example]], shape: Shape, adapters: Weights | None = None
) -> Tensor:
    """Return which answers would be right under greedy decoding: bool [groups, examples] on the CPU.

    All groups have the same length; with adapters, group t is answered by adapter t. One pass over the right answer is
    enough: if each next token is the most likely one, greedy decoding gives exactly this answer.
    """
    device, dtype = next(iter(weights.values())).device, next(iter(weights.values())).dtype
    table = rotary_table(shape, device, dtype)
    size = len(groups[0])
    step = max(1, ROWS // len(groups))
    right: list[Tensor] = []
    for at in range(0, size, step):
        chosen = [group[at : at + step] for group in groups]
        inputs = Inputs(unpacked([example for group in chosen for example in group]), table)
        guesses = forward(weights, inputs.ids, inputs.mask, inputs.rotary, shape, adapters).argmax(-1)
        wrong = (guesses != inputs.ids.roll(-1, dims=1)) & (inputs.weights > 0)
        right.append(~wrong.any(dim=1).view(len(groups), -1).cpu())
    return torch.cat(right, dim=1)
