"""An adapter's file, read into memory of its own before vLLM's loader sees it.

For a GPU (`for_gpu`) that memory is one pinned buffer for all of its tensors, in the dtype of the places: each copy to
the device is then a transfer that nobody waits for. vLLM would clone and pin each tensor by itself, 448 for a model of
8B, and none of an adapter whose first layer is a packed one (it compares a tensor with the word "cpu").

`safetensors.safe_open` maps the file: whoever cuts it short afterwards ends the engine with SIGBUS. Here all bytes are
read first, without Python's lock, so that no step waits for it; a file that is short by then is an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from adapters.content.tensor_file import FLOATS, BadFile, TensorInfo, read_head, read_into, tensors_of

READERS, READ_PART = 4, 8 << 20
"""Threads that read a file for a GPU, whose host has cores to spare, and what each reads at least: one thread copies
4 GB a second out of the page cache."""
DTYPES = dict(zip(FLOATS, (torch.float32, torch.float16, torch.bfloat16), strict=True))
_place_dtype: ContextVar[torch.dtype | None] = ContextVar("roundhouse_places", default=None)
MAX_HEADER, MAX_TENSORS = 256 << 20, 10_000_000


class ReadFile:
    """Stands in for what `safetensors.safe_open` returns, as far as vLLM's loader uses it.

    Raises OSError, and ValueError when it is no such file or became shorter.
    """

    def __init__(self, path: str, framework: str = "pt") -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            head, size = bytes(read_head(fd, MAX_HEADER)), os.fstat(fd).st_size
            infos = tensors_of(head, size, MAX_TENSORS)
            place_dtype = _place_dtype.get()
            fits = place_dtype is not None and all(_fits(info, place_dtype, len(head)) for info in infos.values())
            data = _empty(size - len(head), torch.uint8, pinned=fits)
            _read(fd, data.numpy().data, len(head), READERS if place_dtype is not None else 1)
            self._tensors = {name: _tensor(info, data, len(head)) for name, info in infos.items()}
            if place_dtype is not None and not fits:
                self._tensors = _cast(self._tensors, place_dtype)
        except BadFile as fault:
            raise ValueError(f"{Path(path).name}: {fault}") from None
        finally:
            os.close(fd)

    def __enter__(self) -> ReadFile:
        return self

    def __exit__(self, *fault: object) -> None:
        self._tensors = {}

    def keys(self) -> list[str]:
        """Names of its tensors."""
        return list(self._tensors)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]


@contextmanager
def for_gpu(dtype: torch.dtype) -> Iterator[None]:
    """Inside, files are read for places of `dtype` on a GPU."""
    token = _place_dtype.set(dtype)
    try:
        yield
    finally:
        _place_dtype.reset(token)


def _read(fd: int, view: memoryview, start: int, threads: int) -> None:
    count = max(1, min(threads, len(view) // READ_PART))
    size = max(1, -(-len(view) // count))
    with ThreadPoolExecutor(count, "adapter-read") as pool:
        reading = [pool.submit(read_into, fd, view[at : at + size], start + at) for at in range(size, len(view), size)]
        read_into(fd, view[:size], start)
        for part in reading:
            part.result()


def _fits(info: TensorInfo, dtype: torch.dtype, head: int) -> bool:
    """Whether the file's bytes are the tensor's, as they lie."""
    return DTYPES.get(info.dtype) is dtype and not (info.start - head) % dtype.itemsize


def _cast(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    values = _empty(sum(tensor.numel() for tensor in tensors.values()), dtype, pinned=True)
    result, end = {}, 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel()
        result[name] = values[start:end].view(tensor.shape).copy_(tensor)
    return result


def _empty(count: int, dtype: torch.dtype, *, pinned: bool) -> torch.Tensor:
    return torch.empty(count, dtype=dtype, pin_memory=pinned)


def _tensor(info: TensorInfo, data: torch.Tensor, head: int) -> torch.Tensor:
    if info.dtype not in DTYPES:
        raise BadFile(f"tensor {info.name} has dtype {info.dtype}, not one of {', '.join(DTYPES)}")
    dtype, start = DTYPES[info.dtype], info.start - head
    values = data[start : info.end - head]
    if start % dtype.itemsize:
        values = values.clone()
    return values.view(dtype).view(info.shape)


def patch(lora_model: Any) -> None:
    """`lora_model`: vllm.lora.lora_model, whose loader opens every file by `safetensors.safe_open`."""
    lora_model.safetensors = SimpleNamespace(safe_open=ReadFile)
