"""Read safetensors files without a library, after checking the header.

Layout: 8 bytes little-endian header length, a JSON object of name -> {dtype, shape, data_offsets}, then the data, which
the tensors must cover without gap or overlap.
"""

import json
import os
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from adapters.content.faults import quote_value

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4,
              "U16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}  # fmt: skip
FLOATS = ("F32", "F16", "BF16")
SHRANK = "it became shorter while it was read"
LENGTH = struct.Struct("<Q")
"""Format of the header's length."""
_MAX_DIMENSION = 1 << 40


class BadFile(Exception):
    """The file contradicts itself; the message says how."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`start` and `end`: byte offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(fd: int, max_header: int, max_tensors: int) -> dict[str, TensorInfo]:
    """Return the tensors of an open file by name. Raises BadFile."""
    return tensors_of(read_head(fd, max_header), os.fstat(fd).st_size, max_tensors)


def read_head(fd: int, max_header: int) -> bytearray:
    """Return the header of an open file, including the length. Raises BadFile."""
    size = os.fstat(fd).st_size
    if size < LENGTH.size:
        raise BadFile(f"it has {size} bytes, less than a header")
    start = _read(fd, 0, LENGTH.size)
    (length,) = LENGTH.unpack(start)
    if length > size - LENGTH.size:
        raise BadFile(
            f"its header says {length} bytes and the file has {size}: it is truncated or not a safetensors file"
        )
    if length > max_header:
        raise BadFile(f"its header of {length} bytes is over the limit of {max_header}")
    return start + _read(fd, LENGTH.size, length)


def tensors_of(head: bytes | bytearray, size: int, max_tensors: int) -> dict[str, TensorInfo]:
    """Parse the header of a file of `size` bytes. Returns tensors by name. Raises BadFile."""
    try:
        header = json.loads(head[LENGTH.size :].decode("utf-8"), object_pairs_hook=_without_duplicates)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise BadFile(f"its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise BadFile("its header is not a JSON object")
    header.pop("__metadata__", None)
    if len(header) > max_tensors:
        raise BadFile(f"it has {len(header)} tensors, over the limit of {max_tensors}")
    tensors = {name: _tensor(name, entry, len(head)) for name, entry in header.items()}
    position = len(head)
    for tensor in sorted(tensors.values(), key=lambda t: (t.start, t.end)):
        if tensor.start != position:
            raise BadFile(
                f"tensor {quote_value(tensor.name)} starts at {tensor.start}, not at {position}: gap or overlap"
            )
        position = tensor.end
    if position != size:
        raise BadFile(
            f"its header describes {position} bytes and the file has {size}: it is truncated or has extra bytes"
        )
    return tensors


def read_bits(fd: int, tensor: TensorInfo) -> npt.NDArray[Any]:
    """Read a tensor as float32, float16, or BF16's bits as uint16. Raises BadFile."""
    kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[tensor.dtype]
    return np.frombuffer(_read(fd, tensor.start, tensor.end - tensor.start), dtype=kind).reshape(tensor.shape)


def read_into(fd: int, view: memoryview, start: int) -> None:
    """Fill `view` with the bytes from `start` on. Raises BadFile if there are too few."""
    while view:
        count = os.preadv(fd, [view], start)
        if not count:
            raise BadFile(SHRANK)
        view, start = view[count:], start + count


def to_float32(bits: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Convert to float32, exactly. uint16 is taken for bfloat16."""
    if bits.dtype == np.uint16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.astype(np.float32, copy=False)


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16, ties to even. Values must be finite."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def finite_bfloat16(bits: npt.NDArray[Any]) -> bool:
    """Return whether bfloat16 values, as uint16 bits, are all finite."""
    return not bool(((bits & np.uint16(0x7F80)) == np.uint16(0x7F80)).any())


def _read(fd: int, start: int, length: int) -> bytearray:
    data = bytearray(length)
    read_into(fd, memoryview(data), start)
    return data


def _tensor(name: str, entry: Any, data: int) -> TensorInfo:
    named = quote_value(name)
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise BadFile(f"tensor {named} lacks dtype, shape or data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise BadFile(f"tensor {named} has the unknown dtype {quote_value(dtype)}")
    if not _whole(shape) or not _whole(offsets) or len(offsets) != 2 or len(shape) > 8:
        raise BadFile(f"tensor {named} has shape {quote_value(shape)} and offsets {quote_value(offsets)}")
    count = 1
    for dimension in shape:
        count *= dimension
    if offsets[1] - offsets[0] != count * ITEM_BYTES[dtype]:
        raise BadFile(f"tensor {named} has {offsets[1] - offsets[0]} bytes, but its shape and dtype {count} values")
    return TensorInfo(name, dtype, tuple(shape), data + offsets[0], data + offsets[1])


def _whole(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v <= _MAX_DIMENSION for v in values)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("it contains a name twice")
    return unique
