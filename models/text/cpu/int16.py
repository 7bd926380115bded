"""Linear layers on a CPU whose products are computed in 16 bit integers, by `int16.c`.

A core with AVX-512 VNNI multiplies integers of 16 bits twice as fast as floats, and reads half the bytes. Weights and
rows are rounded to some 12 bits and a scale for each block of inputs: finer than bfloat16's 8 bits, coarser than
float32. Nothing is calibrated; `models.text.cpu.linear` compares with float32 when a model is loaded.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING

from models.text.cpu import library as cpu_library
from registry.base import processor

if TYPE_CHECKING:
    from torch import Tensor

NEEDED = cpu_library.NEEDED | {"avx512_vnni"}
PANEL, ROWS = 32, 12
"""Outputs and rows that are computed together: as in the source."""
BLOCK = 192
"""Most inputs with one scale. Fewer are more exact, and cost more for each block's end."""
SCRATCH = 1 << 17
"""Integers of rows that are made at a time: a quarter of a core's cache of 1 MiB."""
SKEW = 1.5
"""How much finer rows are rounded than the bound on a block's sums alone would say: they have the larger outliers."""
ADD, GELU = 1, 2
_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p
_local = threading.local()


def load() -> ctypes.CDLL | None:
    """The library; None where it cannot be had, or the processor lacks the instructions."""
    return cpu_library.load() if processor.features() >= NEEDED else None


class _Matrix(ctypes.Structure):
    """`struct matrix` of the source."""

    _fields_ = (
        ("inputs", _INT), ("outputs", _INT), ("block", _INT), ("blocks", _INT),
        ("weights", _POINTER), ("scales", _POINTER), ("bias", _POINTER), ("most", ctypes.c_float),
    )  # fmt: skip


class Int16Linear:
    """A linear layer's weights, rounded.

    Args:
        library: of `load`.
        weight: inputs x outputs, float32, finite.
        bias: outputs.
    """

    def __init__(self, library: ctypes.CDLL, weight: Tensor, bias: Tensor) -> None:
        import torch

        self._multiply = library.multiply_int16
        self.inputs, self.outputs = weight.shape
        self.blocks = -(-self.inputs // BLOCK)
        self.block = -(-self.inputs // (self.blocks * PANEL)) * PANEL
        panels = -(-self.outputs // PANEL)
        most_row, most_weight = largest(self.block)
        full = torch.zeros(self.blocks * self.block, panels * PANEL)
        full[: self.inputs, : self.outputs] = weight
        cut = full.view(self.blocks, self.block, panels, PANEL)
        scales = cut.abs().amax(1) / most_weight
        rounded = (cut / scales.clamp_min(1e-30)[:, None]).round_().to(torch.int16)
        pairs = rounded.view(self.blocks, self.block // 2, 2, panels, PANEL)
        self._weights = pairs.permute(3, 0, 1, 4, 2).contiguous()
        self._scales = scales.transpose(0, 1).contiguous()
        self._bias = torch.zeros(panels * PANEL)
        self._bias[: self.outputs] = bias
        buffers = (self._weights, self._scales, self._bias)
        self.nbytes = sum(tensor.nbytes for tensor in buffers)
        self._matrix = _Matrix(
            self.inputs, self.outputs, self.block, self.blocks, *(tensor.data_ptr() for tensor in buffers), most_row
        )
        self._chunk = max(SCRATCH // (self.blocks * self.block) // ROWS, 2) * ROWS

    def rows(self, x: Tensor) -> Tensor:
        """x W + bias, rows x outputs."""
        return self._run(x, x.new_empty(len(x), self.outputs), 0)

    def gelu(self, x: Tensor) -> Tensor:
        """GELU of that, the exact one."""
        return self._run(x, x.new_empty(len(x), self.outputs), GELU)

    def add(self, x: Tensor, to: Tensor) -> Tensor:
        """`to`, with x W + bias added in place."""
        return self._run(x, to, ADD)

    def _run(self, x: Tensor, y: Tensor, how: int) -> Tensor:
        import torch

        if not (
            x.dtype == y.dtype == torch.float32
            and x.is_cpu
            and y.is_cpu
            and x.shape == (len(y), self.inputs)
            and y.shape == (len(x), self.outputs)
            and x.stride(1) == y.stride(1) == 1
        ):
            raise ValueError(f"no rows of this layer: {x.dtype} {tuple(x.shape)} to {y.dtype} {tuple(y.shape)}")
        rows, scales = _scratch(self.blocks * self._chunk * (self.block + PANEL), self.blocks * self._chunk)
        self._multiply(
            ctypes.addressof(self._matrix), len(x), x.data_ptr(), x.stride(0), y.data_ptr(), y.stride(0), how,
            rows, scales, self._chunk, torch.get_num_threads(),
        )  # fmt: skip
        return y


def largest(block: int) -> tuple[int, int]:
    """The largest integers of rows and of weights: `block` products of them fit into 32 bits with a sign."""
    most = 2**31 - 1
    rows = min(int((most / block) ** 0.5 * SKEW), 2**15 - 1)
    return rows, min(most // (block * rows), 2**15 - 1)


def _scratch(integers: int, floats: int) -> tuple[int, int]:
    """Addresses of this thread's memory for rounded rows and their scales."""
    import torch

    scratch = getattr(_local, "held", None)
    if scratch is None or len(scratch[0]) < integers or len(scratch[1]) < floats:
        before = (len(scratch[0]), len(scratch[1])) if scratch else (0, 0)
        scratch = (
            torch.zeros(max(integers, before[0]), dtype=torch.int16),
            torch.zeros(max(floats, before[1])),
        )
        _local.scratch = scratch
    return scratch[0].data_ptr(), scratch[1].data_ptr()
