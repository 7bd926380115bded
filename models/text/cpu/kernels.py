"""Compiled functions for CPUs with AVX-512: `attention.c` and `int16.c`.

They are compiled once per machine, into the user's cache folder. Without such a processor or a compiler, PyTorch is
used instead. A core with AVX-512 VNNI multiplies 16-bit integers twice as fast as floats, and reads half the bytes.
Weights and rows are rounded to about 12 bits with a scale for each block of inputs: finer than bfloat16's 8 bits,
coarser than float32. Nothing is calibrated; `models.text.cpu.linear` compares with float32 when a model is loaded.
"""

from __future__ import annotations

import ctypes
import logging
import math
import subprocess
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from models import native
from models.native import cache_folder
from registry.base import processor

if TYPE_CHECKING:
    from torch import Tensor

SOURCES = tuple(Path(__file__).with_name(name) for name in ("int16.c", "attention.c"))
COMPILER_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fopenmp", "-shared", "-fPIC")
AVX512 = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq"})
_INT, _FLAG, _POINTER, _FLOAT = ctypes.c_int64, ctypes.c_int, ctypes.c_void_p, ctypes.c_float
ARGUMENTS = {
    "multiply_int16": [
        _POINTER, _INT, _POINTER, _INT, _POINTER, _INT, _FLAG, _POINTER, _POINTER, _INT, _FLAG,
    ],
    "attend": [
        _POINTER, _INT, _POINTER, _POINTER, _INT, _POINTER, _INT, _POINTER, _INT, _FLAG, _INT, _INT, _FLOAT,
        _FLAG,
    ],
}  # fmt: skip
_log = logging.getLogger(__name__)


@cache
def load_library() -> ctypes.CDLL | None:
    """Load the library, and compile it first if necessary, in about three seconds. Thread-safe."""
    if missing := AVX512 - processor.features():
        _log.info("embeddings and rerank compute with PyTorch: no %s here", ", ".join(sorted(missing)))
        return None
    try:
        library = ctypes.CDLL(str(native.build(cache_folder("native"), "cpu_models", SOURCES, COMPILER_FLAGS)))
        for name, arguments in ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
    except (OSError, AttributeError, RuntimeError, subprocess.SubprocessError) as fault:
        _log.warning("embeddings and rerank compute with PyTorch, which is slower: %s", native.explain(fault))
        return None
    return library


MOST_TOKENS, MOST_SIZE, STEP = 512, 128, 32
"""Most tokens of an input, most values of a head, and their divisor, as in the source."""


class Attention:
    """Compiled attention for `heads` heads of `size` values. See `attention_for`."""

    def __init__(self, heads: int, size: int) -> None:
        library = load_library()
        assert library is not None
        self._attend, self.heads, self.size = library.attend, heads, size
        self._scale = math.log2(math.e) / math.sqrt(size)

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return rows x width. query: a row per token or input. lengths: tokens per input.

        All are rows x width in float32; keys and values have equal strides.
        """
        import torch

        starts = torch.tensor([0, *lengths]).cumsum(0)
        tokens, width = int(starts[-1]), self.heads * self.size
        single = len(query) != tokens
        if not (
            all(t.dtype == torch.float32 and t.is_cpu and t.stride(1) == 1 for t in (query, keys, values))
            and query.shape == (len(lengths) if single else tokens, width)
            and keys.shape == values.shape == (tokens, width)
            and keys.stride(0) == values.stride(0)
            and min(lengths) > 0
            and max(lengths) <= MOST_TOKENS
        ):
            raise ValueError(f"no rows to attend: {[tuple(t.shape) for t in (query, keys, values)]}, {lengths}")
        out = query.new_empty(query.shape)
        self._attend(
            query.data_ptr(), query.stride(0), keys.data_ptr(), values.data_ptr(), keys.stride(0), out.data_ptr(),
            width, starts.data_ptr(), len(lengths), single, self.heads, self.size, self._scale,
            torch.get_num_threads(),
        )  # fmt: skip
        return out


def attention_for(heads: int, size: int, positions: int) -> Attention | None:
    """Return the compiled attention, or None if sizes do not fit or there is no library."""
    fits = size % STEP == 0 and size <= MOST_SIZE and positions <= MOST_TOKENS
    return Attention(heads, size) if fits and load_library() is not None else None


VNNI = AVX512 | {"avx512_vnni"}
PANEL, ROWS = 32, 12
"""Outputs and rows that are computed together, as in the source."""
BLOCK = 192
"""Most inputs with one scale. Fewer are more exact, but each block has a cost."""
SCRATCH = 1 << 17
"""Integers of rows that are rounded at a time: a quarter of a core's cache of 1 MiB."""
SKEW = 1.5
"""Factor by which rows are rounded more finely than weights, because they have larger outliers."""
ADD, GELU = 1, 2
_local = threading.local()


def load_int16() -> ctypes.CDLL | None:
    """Return the library, or None if it or an instruction set is not available."""
    return load_library() if processor.features() >= VNNI else None


class _Matrix(ctypes.Structure):
    """`struct matrix` of the source."""

    _fields_ = (
        ("inputs", _INT), ("outputs", _INT), ("block", _INT), ("blocks", _INT),
        ("weights", _POINTER), ("scales", _POINTER), ("bias", _POINTER), ("most", _FLOAT),
    )  # fmt: skip


class Int16Linear:
    """A linear layer's weights, rounded.

    Args:
        library: of `load_int16`.
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
        """Return x W + bias, rows x outputs."""
        return self._run(x, x.new_empty(len(x), self.outputs), 0)

    def gelu(self, x: Tensor) -> Tensor:
        """Return the exact GELU of x W + bias."""
        return self._run(x, x.new_empty(len(x), self.outputs), GELU)

    def add(self, x: Tensor, to: Tensor) -> Tensor:
        """Add x W + bias to `to` in place, and return it."""
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
    """Return the largest integers of rows and weights for which a sum of `block` products fits 32 bits."""
    most = 2**31 - 1
    rows = min(int((most / block) ** 0.5 * SKEW), 2**15 - 1)
    return rows, min(most // (block * rows), 2**15 - 1)


def _scratch(integers: int, floats: int) -> tuple[int, int]:
    """Return addresses of this thread's memory for rounded rows and their scales."""
    import torch

    scratch = getattr(_local, "scratch", None)
    if scratch is None or len(scratch[0]) < integers or len(scratch[1]) < floats:
        before = (len(scratch[0]), len(scratch[1])) if scratch else (0, 0)
        scratch = (
            torch.zeros(max(integers, before[0]), dtype=torch.int16),
            torch.zeros(max(floats, before[1])),
        )
        _local.scratch = scratch
    return scratch[0].data_ptr(), scratch[1].data_ptr()
