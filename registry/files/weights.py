"""Contents of weight files, from their headers only: without safetensors' library, which would import numpy."""

import hashlib
import json
import os
import re
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from pathlib import Path, PurePath
from typing import Annotated

import msgspec

from registry.errors import Unfit
from registry.files import git_lfs
from registry.files.missing_weights import refuse_missing_weights

LENGTH_BYTES, LONGEST = 8, 100_000_000
"""Bytes of the length field, and of the longest header that the library accepts."""
METADATA = "__metadata__"

BITS: dict[str, int] = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I64": 64, "I32": 32,
    "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip
"""Bits per value, by dtype of the safetensors format."""
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""Dtypes that an engine casts to its compute dtype; all others stay as in the file."""
NARROW = frozenset({"I8", "F8_E4M3", "F8_E5M2"})
"""Dtypes whose values mean nothing without a scale."""
NOT_LINEAR = ("embed", "lm_head", "wte", "wpe", "norm", "conv")

# CTranslate2's numbers for float32, int8, int16, int32, float16 and bfloat16.
_CT2_KINDS = {0: "F32", 1: "I8", 2: "I16", 3: "I32", 4: "F16", 5: "BF16"}


class TensorHeader(msgspec.Struct):
    """dtype: as in the format, such as BF16."""

    dtype: str
    shape: list[Annotated[int, msgspec.Meta(ge=0)]]
    data_offsets: tuple[int, int]


def read_tensor_headers(file: Path) -> dict[str, TensorHeader]:
    """Return the tensors of a safetensors file by name. Sizes of dtypes that are not in `BITS` are not checked.

    Layout: 8 bytes little-endian header length, a JSON object of name -> {dtype, shape, data_offsets}, then the data,
    which the tensors must cover without gap or overlap. Raises ValueError if the file contradicts its header, OSError.
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
        if tensor.dtype in BITS and (end - start) * 8 != prod(tensor.shape) * BITS[tensor.dtype]:
            raise ValueError(f"tensor {name} has {end - start} bytes, which does not match its shape and dtype")
        position = end
    if position != size - length:
        raise ValueError(f"its tensors have {position} bytes and the file {size - length}: it is truncated")
    return tensors


@dataclass(frozen=True, slots=True)
class Weights:
    """Counts and shapes of the tensors in a folder."""

    elements: Mapping[str, int]
    """Number of values by dtype: {'BF16': 8030261248}."""
    linear: tuple[tuple[int, int], ...]
    """Shapes of the linear layers' matrices, without embeddings and head. Empty for packed (quantized) weights."""
    files: tuple[str, ...]
    hidden: int = 0
    """CTranslate2 speech models only: width of the network, which is not in their config.json."""
    decoder_layers: int = 0
    """CTranslate2 speech models only."""
    head: bool = True
    """Whether the model has a separate output matrix; also True if that is unknown."""

    @property
    def parameters(self) -> int:
        """Number of values of all dtypes."""
        return sum(self.elements.values())

    @property
    def bytes(self) -> int:
        """Bytes of the tensors in the files, without headers."""
        return sum(count * BITS[kind] // 8 for kind, count in self.elements.items())

    def loaded_bytes(self, float_bytes: float | None) -> int:
        """Return bytes in memory with floats cast to `float_bytes` each (None: as stored)."""
        return sum(
            int(count * float_bytes) if float_bytes is not None and kind in FLOATS else count * BITS[kind] // 8
            for kind, count in self.elements.items()
        )


def read_weights(folder: Path) -> Weights:
    """Read the headers of all weight files in `folder`. Raises Unfit if one cannot be read."""
    if (folder / "model.bin").is_file() and not any(folder.glob("*.safetensors")):
        _refuse_pointer(folder / "model.bin")
        return _ctranslate2(folder / "model.bin")
    elements: Counter[str] = Counter()
    linear: list[tuple[int, int]] = []
    shapes: dict[str, list[int]] = {}
    narrow: set[str] = set()
    files = _weight_files(folder)
    refuse_two_sets([file for file in files if file.parent == folder])
    for file in files:
        _refuse_pointer(file)
        tensors = _headers(file)
        for name, tensor in tensors.items():
            shape, kind = tensor.shape, tensor.dtype
            shapes[name] = shape
            if kind not in BITS:
                raise Unfit(f"{file.name}: tensor {name} has the unknown type {kind}", code="bad_weights")
            elements[kind] += prod(shape)
            if kind in NARROW:
                narrow.add(name)
            if len(shape) == 2 and name.endswith(".weight") and not any(word in name for word in NOT_LINEAR):
                linear.append((shape[0], shape[1]))
    refuse_missing_weights(folder, shapes, narrow)
    named = tuple(str(file.relative_to(folder)) for file in files)
    return Weights(dict(elements), tuple(linear), named, head=any("lm_head" in name for name in shapes))


def refuse_two_sets(files: Sequence[Path]) -> None:
    """Raise Unfit if files have different values under one name, of which an engine takes those that it reads last."""
    places: dict[str, Path] = {}
    for file in files if len(files) > 1 else ():
        for name in _headers(file):
            other = places.setdefault(name, file)
            if other is not file and _values(other, name) != _values(file, name):
                raise Unfit(
                    f"{file.parent} has {name} both in {other.name} and in {file.name}, with different values: nothing "
                    "says which is the model's. Keep one set of weights in the folder.",
                    code="bad_weights",
                )


def _headers(file: Path) -> dict[str, TensorHeader]:
    try:
        return read_tensor_headers(file)
    except (ValueError, OSError) as error:
        raise Unfit(f"{file} cannot be read as safetensors: {error}", code="bad_weights") from None


def _values(file: Path, name: str) -> tuple[str, list[int], bytes]:
    """Return dtype, shape and digest of a tensor."""
    tensor = _headers(file)[name]
    start, end = tensor.data_offsets
    with file.open("rb") as stream:
        (length,) = _take(stream, "<Q")
        stream.seek(8 + length + start)
        return tensor.dtype, tensor.shape, hashlib.sha256(stream.read(end - start)).digest()


def _refuse_pointer(file: Path) -> None:
    if git_lfs.is_pointer_file(file):
        raise Unfit(f"{file} {git_lfs.FAULT}", code="bad_weights")


def _weight_files(folder: Path) -> list[Path]:
    """List the weight files of the model and of sentence-transformers modules below it."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            if any(".." in PurePath(name).parts or PurePath(name).is_absolute() for name in names):
                raise ValueError("a file outside of the folder")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise Unfit(f"{index} is not an index of safetensors files", code="bad_weights") from None
        root = [folder / name for name in names]
    else:
        root = [folder / name for name in chosen_files(file.name for file in folder.glob("*.safetensors"))]
    if missing := [file.name for file in root if not os.path.isfile(file)]:  # Path.is_file raises for a long name
        raise Unfit(
            f"{folder} lacks {', '.join(missing[:5])}, which its index names: copy the whole folder.",
            code="bad_weights",
        )
    if not root:
        pickled = sorted(f.name for f in folder.glob("*.bin")) + sorted(f.name for f in folder.glob("*.pt"))
        if pickled:
            raise Unfit(
                f"{folder} has its weights only as pickle ({pickled[0]}), which can run code when it is read. "
                "Convert them to safetensors.",
                code="bad_weights",
            )
        raise Unfit(f"{folder} holds no weights: no *.safetensors and no model.bin of CTranslate2", code="bad_weights")
    return root + sorted(folder.glob("*/model.safetensors"))


def chosen_files(names: Iterable[str]) -> list[str]:
    """Return which of a folder's safetensors files without an index an engine reads. names: of all of them."""
    weights = sorted(names)
    if "model.safetensors" in weights:
        return ["model.safetensors"]
    # The same weights may also be there in the vendor's own layout, which is not loaded.
    return [name for name in weights if not name.startswith(("consolidated", "adapter_"))]


def _ctranslate2(file: Path) -> Weights:
    """Read the headers of CTranslate2's model.bin (formats 5 and 6): name, shape, kind, bytes."""
    elements: Counter[str] = Counter()
    hidden, layers = 0, set()
    try:
        with file.open("rb") as stream:
            (version,) = _take(stream, "<I")
            if not 5 <= version <= 6:
                raise Unfit(f"{file}: CTranslate2 format {version} is not known; convert the model again",
                            code="bad_weights")  # fmt: skip
            _take_text(stream)
            _, variables = _take(stream, "<II")
            for _ in range(variables):
                name = _take_text(stream)
                (rank,) = _take(stream, "<B")
                shape = _take(stream, f"<{rank}I")
                kind, length = _take(stream, "<BI")
                elements[_CT2_KINDS[kind]] += length * 8 // BITS[_CT2_KINDS[kind]]
                stream.seek(length, 1)
                if name == "decoder/embeddings/weight":
                    hidden = shape[1]
                elif layer := re.match(r"decoder/layer_(\d+)/", name):
                    layers.add(layer[1])
            if stream.tell() > file.stat().st_size:
                raise ValueError("the file ends too early")
    except (OSError, struct.error, KeyError, IndexError, ValueError) as error:
        raise Unfit(f"{file} cannot be read as a CTranslate2 model: {error}", code="bad_weights") from None
    return Weights(dict(elements), (), (file.name,), hidden, len(layers))


def _take(stream: BufferedReader, form: str) -> tuple[int, ...]:
    return struct.unpack(form, stream.read(struct.calcsize(form)))


def _take_text(stream: BufferedReader) -> str:
    (length,) = _take(stream, "<H")
    return stream.read(length).rstrip(b"\0").decode("ascii", "replace")
