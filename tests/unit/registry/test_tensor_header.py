"""Tensor headers are read like the safetensors library does, and the same files are refused."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from registry.files.weights import read_tensor_headers


def read_with_library(file: Path) -> dict[str, tuple[str, list[int]]]:
    with safe_open(file, framework="numpy") as tensors:
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118  (no mapping)
        return {name: (view.get_dtype(), view.get_shape()) for name, view in slices.items()}


def test_the_tensors_equal_those_of_the_library(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    tensors = {"a": np.ones((2, 3), np.float32), "b": np.zeros((0, 4), np.int8), "c": np.array(1.5, np.float16)}
    file.write_bytes(save(tensors, {"format": "pt"}))
    ours = {name: (header.dtype, header.shape) for name, header in read_tensor_headers(file).items()}
    assert ours == read_with_library(file) == {"a": ("F32", [2, 3]), "b": ("I8", [0, 4]), "c": ("F16", [])}


def tensor(start: int = 0, end: int = 8, **other: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [start, end], **other}


def file_of(header: object, data: bytes = bytes(8)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"", b"short", file_of({"a": tensor()})[:-1], file_of({"a": tensor()}, bytes(9)), file_of(b"["), file_of([]),
        file_of({"a": tensor(1, 9)}, bytes(9)), file_of({"a": tensor(shape=[3])}), file_of({"a": tensor(shape=[-2])}),
        file_of({"a": tensor(), "b": tensor()}), file_of({"a": tensor(), "b": tensor(12, 20)}, bytes(20)),
        file_of({"a": {"dtype": "F32"}}), struct.pack("<Q", 2**63) + b"{}", file_of(b'{"a":' + b"[" * 100_000),
    ],
)  # fmt: skip
def test_invalid_files_are_refused_like_by_the_library(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(SafetensorError):
        read_with_library(file)
    with pytest.raises(ValueError):  # noqa: PT011 - the texts differ
        read_tensor_headers(file)


def test_an_unknown_type_is_left_to_the_caller(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(file_of({"a": tensor(dtype="F4", shape=[16])}))
    assert read_tensor_headers(file)["a"].dtype == "F4"
