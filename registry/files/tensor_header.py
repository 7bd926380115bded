"""Read the header of a safetensors file without its library, which would import numpy.

Layout: 8 bytes little-endian header length, a JSON object of name -> {dtype, shape, data_offsets}, then the data, which
the tensors must cover without gap or overlap.
"""

from math import prod
from pathlib import Path
from typing import Annotated

import msgspec

LENGTH_BYTES, LONGEST = 8, 100_000_000
"""Bytes of the length field, and of the longest header that the library accepts."""
METADATA = "__metadata__"


class TensorHeader(msgspec.Struct):
    """dtype: as in the format, such as BF16."""

    dtype: str
    shape: list[Annotated[int, msgspec.Meta(ge=0)]]
    data_offsets: tuple[int, int]


def read_tensor_headers(file: Path, bits: dict[str, int]) -> dict[str, TensorHeader]:
    """Return the tensors by name. bits: per value, by dtype; sizes of other dtypes are not checked.

    Raises ValueError if the file contradicts its header, OSError.
    """
    with file.open("rb") as stream:
        size = file.stat().st_size - LENGTH_BYTES
        length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        if size < 0 or length > min(size, LONGEST):
            raise ValueError(f"its header would have {length} bytes" if size >= 0 else "it is shorter than a header")
        try:
            entries = msgspec.json.decode(stream.read(length), type=dict[str, msgspec.Raw])
            entries.pop(METADATA, None)
            tensors = {name: msgspec.json.decode(entry, type=TensorHeader) for name, entry in entries.items()}
        except RecursionError:
            raise ValueError("its header is nested too deeply") from None
    position = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        start, end = tensor.data_offsets
        if start != position or end < start:
            raise ValueError(f"tensor {name} starts at {start}, not at {position}: gap or overlap")
        if tensor.dtype in bits and (end - start) * 8 != prod(tensor.shape) * bits[tensor.dtype]:
            raise ValueError(f"tensor {name} has {end - start} bytes, which does not match its shape and dtype")
        position = end
    if position != size - length:
        raise ValueError(f"its tensors have {position} bytes and the file {size - length}: it is truncated")
    return tensors
