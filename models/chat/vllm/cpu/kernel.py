"""The LoRA kernel, `lora.c`: all adapters of a batch in one call per layer.

PyTorch needs about six small operations per adapter and layer slice, which with many adapters in a batch cost far more
than the base layer. It is compiled once per machine into the user's cache folder (in about a second, with the C
compiler in `CC`, or `cc`).
"""

from __future__ import annotations

import ctypes
import logging
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from weakref import WeakKeyDictionary

import torch

from models import native
from models.chat.vllm.cpu import products
from models.chat.vllm.cpu.products import Batch, Layer, Rows
from models.native import cache_folder

SOURCE = Path(__file__).with_name("lora.c")
FLAGS = (
    "-O3",
    "-march=native",
    "-std=gnu11",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
    "-Wno-psabi",
    "-shared",
    "-fPIC",
)
"""Allow reordering sums for vector instructions; infinities and NaN keep their meaning."""
MAX_RANK = 512
WORK = 1 << 22
"""Multiplications of one adapter in one layer, per compute thread of PyTorch, up to which the single-threaded kernel is
faster than matrix products. With one thread: 340 rows of a layer of 256 x 768 at rank 8, or 64 of 4096 x 4096."""
KINDS = {
    (torch.float32, torch.float32): "lora_float32_float32",
    (torch.float32, torch.bfloat16): "lora_float32_bfloat16",
    (torch.bfloat16, torch.bfloat16): "lora_bfloat16_bfloat16",
}
"""(dtype of inputs and outputs, dtype of A and B) to the function for it."""
_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p


def build(folder: Path) -> Path:
    """Compile the kernel into `folder`. Raises as `models.native.build`."""
    return native.build(folder, "lora", (SOURCE,), FLAGS)


class _Layer(ctypes.Structure):
    """`struct layer` of the source."""

    _fields_ = (
        ("inputs", _INT),
        ("slices", _INT),
        ("width", _POINTER),
        ("a", _POINTER),
        ("b", _POINTER),
        ("rank", _INT),
    )


class _Rows(ctypes.Structure):
    """`struct rows` of the source."""

    _fields_ = (("row", _POINTER), ("place", _POINTER), ("rank", _POINTER), ("count", _INT))


class _Table:
    """Addresses of a layer's weights for the kernel."""

    def __init__(self, layer: Layer) -> None:
        count = len(layer.slices)
        starts = [
            [half.data_ptr() + place * half.stride(0) * half.itemsize for place in range(layer.places) for half in side]
            for side in (layer.a, layer.b)
        ]
        self._a, self._b = ((_POINTER * len(side))(*side) for side in starts)
        self._widths = (_INT * count)(*layer.slices)
        tables = (ctypes.addressof(table) for table in (self._widths, self._a, self._b))
        self._struct = _Layer(layer.inputs, count, *tables, layer.rank)
        self.address = ctypes.addressof(self._struct)


def fits(layer: Layer) -> bool:
    """Return whether the kernel can read a layer's weights: A as it is, B in the layout of `products.turned`."""
    return layer.rank <= MAX_RANK and all(
        a.shape == (layer.places, 1, layer.rank, layer.inputs)
        and b.shape == (layer.places, 1, width, layer.rank)
        and a.dtype == b.dtype == layer.dtype
        and a.is_contiguous()
        and b.transpose(-1, -2).is_contiguous()
        and a.is_cpu
        and b.is_cpu
        for a, b, width in zip(layer.a, layer.b, layer.slices, strict=True)
    )


class Kernel:
    """Adds LoRA like `products.add`: adapters with few rows by the kernel, those with many by products.

    Raises OSError, AttributeError, or as `build`, if the kernel is not available.
    """

    def __init__(self, folder: Path) -> None:
        library = ctypes.CDLL(str(build(folder)))
        for name in KINDS.values():
            function = getattr(library, name)
            function.argtypes = [_POINTER, _POINTER, _POINTER, _INT, _POINTER, _INT, ctypes.c_float]
            function.restype = None
        self._library = library
        self._tables: WeakKeyDictionary[Layer, _Table | None] = WeakKeyDictionary()

    def __call__(self, output: torch.Tensor, inputs: torch.Tensor, layer: Layer, batch: Batch, scale: float) -> None:
        rows, groups = batch.split(WORK // (torch.get_num_threads() * layer.work))
        if rows is not None and not self.add_rows(output, inputs, layer, rows, scale):
            _, groups = batch.split(0)  # the kernel does not support it and did nothing
        products.add_groups(output, inputs, layer, groups, scale)

    def add_rows(self, output: torch.Tensor, inputs: torch.Tensor, layer: Layer, rows: Rows, scale: float) -> bool:
        """Compute output[row] += scale * B A inputs[row] for all `rows`, in place.

        Returns False without doing anything if the kernel does not support it.

        Shapes: output (rows, outputs), inputs (rows, inputs); the last dimension contiguous. A rank above the layer's
        counts as the layer's.
        """
        name, table = KINDS.get((inputs.dtype, layer.dtype)), self._table(layer)
        (count, width), (output_count, output_width) = inputs.shape, output.shape
        (stride, one), (output_stride, output_one) = inputs.stride(), output.stride()
        if (
            name is None
            or table is None
            or output.dtype != inputs.dtype
            or not (output.is_cpu and inputs.is_cpu)
            or one != 1
            or output_one != 1
            or width != layer.inputs
            or output_width < layer.outputs
            or rows.last_place >= layer.places
            or rows.last_row >= min(count, output_count)
        ):
            return False
        which = _Rows(*rows.addresses, len(rows.row))
        getattr(self._library, name)(
            table.address,
            ctypes.addressof(which),
            output.data_ptr(),
            output_stride,
            inputs.data_ptr(),
            stride,
            scale,
        )
        return True

    def _table(self, layer: Layer) -> _Table | None:
        if layer not in self._tables:
            self._tables[layer] = _Table(layer) if fits(layer) else None
        return self._tables[layer]


AddLora = Callable[[torch.Tensor, torch.Tensor, Layer, Batch, float], None]
"""(output, inputs, layer, batch, scale): see `products.add`."""
_log = logging.getLogger(__name__)


@cache
def load() -> AddLora:
    """Return the compiled kernel, or PyTorch's products after logging why the kernel is not available."""
    try:
        return Kernel(cache_folder("native"))
    except (OSError, AttributeError, RuntimeError, subprocess.SubprocessError) as fault:
        _log.warning("without a compiled LoRA kernel mixed batches are slower: %s", native.explain(fault))
        return products.add
