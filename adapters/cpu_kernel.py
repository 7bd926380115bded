"""The compiled LoRA kernel, `cpu_lora.c`: all adapters of a batch in one call per layer. Built with `cpu_stage.c`.

PyTorch needs some six small operations per adapter and layer slice: with twenty adapters in a batch they cost twenty
times what the base layer does. One call of this kernel costs a third of the base layer (20 rows, each with an adapter
of rank 8; 256 x 768). It is compiled once per machine (about a second, with the C compiler that `CC` names, else `cc`)
into the user's cache folder. Without a compiler all stays right, and slower: `load` returns None.
"""

from __future__ import annotations

import ctypes
import logging
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from registry import native
from registry.cache_folder import cache_folder

SOURCES = tuple(Path(__file__).with_name(name) for name in ("cpu_lora.c", "cpu_tiles.c", "cpu_stage.c"))
FLAGS = (
    "-O3", "-march=native", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros",
    "-fassociative-math", "-Wno-psabi", "-shared", "-fPIC",
)  # fmt: skip
"""Sums may be reordered, so that they use vector instructions; infinities and NaN stay what they are."""
MOST_RANK = 512
KINDS = {
    (torch.float32, torch.float32): "lora_float32_float32",
    (torch.float32, torch.bfloat16): "lora_float32_bfloat16",
    (torch.bfloat16, torch.bfloat16): "lora_bfloat16_bfloat16",
}
"""(dtype of inputs and outputs, dtype of A and B) to the function for it."""
TILED = "lora_tiles"
TILE = 32
"""What inputs and outputs of a layer must be multiples of for `cpu_tiles.c`."""
_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p
_ARGUMENTS = [_POINTER, _POINTER, _POINTER, _INT, _POINTER, _INT, ctypes.c_float]
_log = logging.getLogger(__name__)


@cache
def tiles() -> bool:
    """Whether `add_tiled` can be used: the processor has tiles, and Linux lets this process have them."""
    library = load()
    return library is not None and bool(library.tiles_allowed())


@cache
def load() -> ctypes.CDLL | None:
    """The compiled functions; None, with a line in the log, where they cannot be had."""
    try:
        library = ctypes.CDLL(str(build(cache_folder("native"))))
        _declare(library)
        stage = library.stage_bfloat16
        stage.argtypes, stage.restype = [ctypes.c_int, _POINTER, _POINTER, _INT, _POINTER, _INT], _INT
    except (OSError, AttributeError, subprocess.SubprocessError) as fault:
        _log.warning("no compiled LoRA kernel, mixed batches are slower: %s", native.why(fault))
        return None
    return library


def _declare(library: ctypes.CDLL) -> None:
    for name in (*KINDS.values(), TILED):
        function = getattr(library, name)
        function.argtypes, function.restype = _ARGUMENTS, None
    library.copy_all.argtypes, library.copy_all.restype = [_POINTER, _INT], None


@cache
def _keeping_the_lock(path: str) -> ctypes.CDLL:
    """The same functions, called without giving up Python's lock: what takes microseconds is not worth waiting for it
    afterwards."""
    library = ctypes.PyDLL(path)
    _declare(library)
    return library


def copy_all(kernel: ctypes.CDLL, copies: npt.NDArray[np.int64]) -> None:
    """Copy memory: a row (from, to, bytes) for each piece. The caller vouches for addresses and sizes."""
    assert copies.flags.c_contiguous
    _keeping_the_lock(kernel._name).copy_all(copies.ctypes.data, len(copies))


def build(folder: Path) -> Path:
    """Compile into `folder`; raises what `registry.native.build` does."""
    return native.build(folder, "cpu_lora", SOURCES, FLAGS)


def turned(b: torch.Tensor) -> torch.Tensor:
    """A copy with equal shape and values whose last dimension but one lies contiguous: the order of the kernel."""
    return b.transpose(-1, -2).clone(memory_format=torch.contiguous_format).transpose(-1, -2)


class _Layer(ctypes.Structure):
    """`struct layer` of the source."""

    _fields_ = (
        ("inputs", _INT), ("slices", _INT), ("width", _POINTER), ("a", _POINTER), ("b", _POINTER), ("rank", _POINTER),
    )  # fmt: skip


class _Rows(ctypes.Structure):
    """`struct rows` of the source."""

    _fields_ = (("row", _POINTER), ("place", _POINTER), ("rank", _POINTER), ("count", _INT))


Pair = tuple[torch.Tensor, torch.Tensor]
"""A (rank, inputs) and B (width, rank), the latter as `turned` lays it out."""


class Layer:
    """One layer's weights in all places as the kernel takes them, one pair per slice.

    Shapes of `stacked`: A (places, 1, rank, inputs), B (places, 1, width, rank) as `turned` lays it out. A place's
    weights lie there, unless `put` says where else.
    """

    def __init__(
        self, stacked_a: tuple[torch.Tensor, ...], stacked_b: tuple[torch.Tensor, ...], slices: tuple[int, ...]
    ) -> None:
        self.places, _, self.rank, self.inputs = stacked_a[0].shape
        self.outputs, self.slices, self.dtype = sum(slices), slices, stacked_a[0].dtype
        count = len(slices)
        self.work = count * self.inputs + self.outputs
        """Multiplications per row and rank."""
        self.tiled = self.dtype is torch.bfloat16 and not any(size % TILE for size in (self.inputs, *slices))
        """Whether `add_tiled` takes it."""
        self.fits = self.rank <= MOST_RANK and all(
            a.shape == (self.places, 1, self.rank, self.inputs)
            and b.shape == (self.places, 1, width, self.rank)
            and a.dtype == b.dtype == self.dtype
            and a.is_contiguous()
            and b.transpose(-1, -2).is_contiguous()
            and a.device.type == b.device.type == "cpu"
            for a, b, width in zip(stacked_a, stacked_b, slices, strict=True)
        )
        self.stacked = (stacked_a, stacked_b)
        self._put: dict[int, Sequence[Pair | None]] = {}
        self._own = [
            ((a.data_ptr(), a.stride(0) * a.itemsize), (b.data_ptr(), b.stride(0) * b.itemsize))
            for a, b in zip(stacked_a, stacked_b, strict=True)
        ]
        self._a, self._b = (_POINTER * (count * self.places))(), (_POINTER * (count * self.places))()
        self._ranks, self._widths = (_INT * (count * self.places))(), (_INT * count)(*slices)
        for place in range(self.places):
            self.clear(place)
        tables = (self._widths, self._a, self._b, self._ranks)
        self._struct = _Layer(self.inputs, count, *(ctypes.addressof(table) for table in tables))
        self.address = ctypes.addressof(self._struct)

    def pair(self, place: int, number: int) -> Pair | None:
        """The weights of a slice in a place; None: it has none."""
        if place in self._put:
            return self._put[place][number]
        rank = self._ranks[place * len(self.slices) + number]
        a, b = (halves[number] for halves in self.stacked)
        return (a[place, 0, :rank], b[place, 0, :, :rank]) if rank else None

    def put(self, place: int, pairs: Sequence[Pair | None]) -> None:
        """From now on the place's weights are these tensors, one pair per slice; they stay alive until `clear`.

        Raises ValueError when they are not what the layer takes.
        """
        for pair, width in zip(pairs, self.slices, strict=True):
            if pair is not None and not self._takes(*pair, width):
                raise ValueError(f"{[(t.shape, t.stride(), t.dtype) for t in pair]} are no weights for this layer")
        self._put[place] = pairs
        for at, pair in enumerate(pairs, place * len(self.slices)):
            self._a[at], self._b[at] = (half.data_ptr() for half in pair) if pair else (None, None)
            self._ranks[at] = len(pair[0]) if pair else 0

    def clear(self, place: int) -> None:
        """From now on the place's weights are those of `stacked`."""
        self.fill(place, (self.rank,) * len(self.slices))

    def fill(self, place: int, ranks: Sequence[int]) -> None:
        """The same, of which so many rows of A and columns of B count, by slice; 0: there is no pair."""
        self._put.pop(place, None)
        at = place * len(ranks)
        for rank, ((a, a_stride), (b, b_stride)) in zip(ranks, self._own, strict=True):
            self._a[at], self._b[at] = (a + place * a_stride, b + place * b_stride) if rank else (None, None)
            self._ranks[at] = rank
            at += 1

    def own(self, number: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Where A and B of a slice begin in the first place: address, and bytes from one place to the next."""
        return self._own[number]

    def shaped(self, a: tuple[int, ...], b: tuple[int, ...], width: int) -> bool:
        """Whether halves of these shapes are what a slice of `width` takes."""
        return a == (a[0], self.inputs) and b == (width, a[0]) and a[0] <= self.rank

    def _takes(self, a: torch.Tensor, b: torch.Tensor, width: int) -> bool:
        return (
            self.shaped(a.shape, b.shape, width)
            and a.dtype == b.dtype == self.dtype
            and a.is_contiguous()
            and b.t().is_contiguous()
            and a.device.type == b.device.type == "cpu"
        )


class Rows:
    """Rows of a batch with the place and the rank of each one's adapter: int64, one entry per row."""

    def __init__(self, row: npt.NDArray[np.int64], place: npt.NDArray[np.int64], rank: npt.NDArray[np.int64]) -> None:
        self.row, self.place, self.rank = (np.ascontiguousarray(of, dtype=np.int64) for of in (row, place, rank))
        self.count = len(row)
        self.last_row, self.last_place = (int(of.max()) if self.count else -1 for of in (row, place))
        self._struct = _Rows(self.row.ctypes.data, self.place.ctypes.data, self.rank.ctypes.data, self.count)
        self.address = ctypes.addressof(self._struct)


def add(
    kernel: ctypes.CDLL, output: torch.Tensor, inputs: torch.Tensor, layer: Layer, rows: Rows, scale: float
) -> bool:
    """output[row] += scale * B A inputs[row] for all `rows`, in place. False: not for this kernel, nothing was done.

    Shapes: output (rows, outputs), inputs (rows, inputs); the last dimension contiguous. A rank above the layer's
    counts as the layer's.
    """
    name = KINDS.get((inputs.dtype, layer.dtype))
    return name is not None and layer.fits and _call(kernel, name, output, inputs, layer, rows, scale)


class Call:
    """What `add` did for these tensors, to be done again for others like them while layer and rows are the same.

    Most of what a step of few rows spends on adapters beside the kernel are `add`'s checks in each layer, whose code
    the rest of the step pushes out of the cache: here they are made once.
    """

    def __init__(
        self, kernel: ctypes.CDLL, output: torch.Tensor, inputs: torch.Tensor, layer: Layer, rows: Rows
    ) -> None:
        self.layer, self.rows = layer, rows
        self._function = getattr(_keeping_the_lock(kernel._name), KINDS[inputs.dtype, layer.dtype])
        self._addresses = layer.address, rows.address
        self._dtype, self._inputs, self._output = inputs.dtype, inputs.shape, output.shape
        self._strides = inputs.shape[1], output.shape[1]

    def __call__(self, output: torch.Tensor, inputs: torch.Tensor, scale: float) -> bool:
        if (
            inputs.shape != self._inputs
            or output.shape != self._output
            or inputs.dtype is not self._dtype
            or output.dtype is not self._dtype
            or not inputs.is_contiguous()
            or not output.is_contiguous()
        ):
            return False
        stride, output_stride = self._strides
        self._function(*self._addresses, output.data_ptr(), output_stride, inputs.data_ptr(), stride, scale)
        return True


def add_tiled(
    kernel: ctypes.CDLL, output: torch.Tensor, inputs: torch.Tensor, layer: Layer, rows: Rows, scale: float
) -> bool:
    """The same by `cpu_tiles.c`, for many rows of each adapter. To be called only where `tiles` says so."""
    able = layer.fits and layer.tiled and inputs.dtype is torch.bfloat16
    return able and _call(kernel, TILED, output, inputs, layer, rows, scale)


def _call(
    kernel: ctypes.CDLL, name: str, output: torch.Tensor, inputs: torch.Tensor, layer: Layer, rows: Rows, scale: float
) -> bool:
    (count, width), (output_count, output_width) = inputs.shape, output.shape
    (stride, one), (output_stride, output_one) = inputs.stride(), output.stride()
    if (
        output.dtype != inputs.dtype
        or not (output.is_cpu and inputs.is_cpu)
        or one != 1
        or output_one != 1
        or width != layer.inputs
        or output_width < layer.outputs
        or rows.last_place >= layer.places
        or rows.last_row >= min(count, output_count)
    ):
        return False
    getattr(kernel, name)(
        layer.address, rows.address, output.data_ptr(), output_stride, inputs.data_ptr(), stride, scale
    )
    return True
