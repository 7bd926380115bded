"""An adapter's file, read into memory of its own as the places of a CPU hold it: B turned round (`cpu_kernel.turned`).

vLLM's loader opens files by `safetensors.safe_open`, which maps them: whoever cuts such a file short ends the engine
with SIGBUS. While `instead_of_safetensors` lasts, the loader gets a `StagedFile` in its place, in the same thread only.
All bytes are read in one call of `cpu_stage.c` without Python's lock, so that no step waits for it; where that cannot
be compiled, or the values are not bfloat16, tensor by tensor: right, and slower.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import torch

from adapters import cpu_kernel
from adapters.staged_memory import StagedMemory
from adapters.tensor_file import FLOATS, SHRANK, BadFile, TensorInfo, read_header, read_into

DTYPES = dict(zip(FLOATS, (torch.float32, torch.float16, torch.bfloat16), strict=True))
SCRATCH = 1 << 18
"""Bytes that stay in a core's cache while they are turned."""
_MAX_HEADER, _MAX_TENSORS = 256 << 20, 10_000_000
_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p


class _Part(ctypes.Structure):
    """`struct part` of the source."""

    _fields_ = (
        ("offset", _INT), ("rows", _INT), ("columns", _INT), ("to", _POINTER), ("turn", _INT), ("finite", _INT),
    )  # fmt: skip


class StagedFile:
    """Stands in for what `safetensors.safe_open` returns, as far as vLLM's loader uses it. Closed by `with`.

    Args:
        path: a safetensors file of float32, float16 or bfloat16 tensors.
        memory: where the tensors are to lie.

    Raises OSError, and ValueError when it is no such file or became shorter.
    """

    def __init__(self, path: str, memory: StagedMemory) -> None:
        self._memory, self._tensors = memory, dict[str, torch.Tensor]()
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.finite: set[int] = set()
        """Addresses of tensors that were looked through and hold no infinite value and no NaN."""
        try:
            with _told():
                self._infos = read_header(self._fd, _MAX_HEADER, _MAX_TENSORS)
                for info in self._infos.values():
                    if info.dtype not in DTYPES:
                        raise BadFile(f"tensor {info.name} has dtype {info.dtype}, not one of {', '.join(DTYPES)}")
        except ValueError:
            os.close(self._fd)
            raise

    def __enter__(self) -> StagedFile:
        return self

    def __exit__(self, *fault: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def used(self) -> bool:
        """Whether its tensors were asked for."""
        return bool(self._tensors)

    def keys(self) -> list[str]:
        """Names of its tensors."""
        return list(self._infos)

    def get_tensor(self, name: str) -> torch.Tensor:
        """A tensor, which lies in memory of its own; all are read when the first is asked for."""
        if not self._tensors:
            with _told():
                self._read()
        return self._tensors[name]

    def _read(self) -> None:
        infos = list(self._infos.values())
        sizes = [-(-(info.end - info.start) // cpu_kernel.LINE) * cpu_kernel.LINE for info in infos]
        places = self._memory.take(sum(sizes))[: sum(sizes)].split(sizes)  # type: ignore[no-untyped-call]
        tensors = [_tensor(info, place) for info, place in zip(infos, places, strict=True)]
        kernel = cpu_kernel.load()
        plain = all(info.dtype == "BF16" and len(info.shape) == 2 for info in infos)
        if kernel is not None and plain:
            self._read_at_once(kernel, infos, tensors)
        else:
            for info, tensor in zip(infos, tensors, strict=True):
                self._read_one(info, tensor)
        self._tensors = dict(zip(self._infos, tensors, strict=True))

    def _read_at_once(self, kernel: ctypes.CDLL, infos: list[TensorInfo], tensors: list[torch.Tensor]) -> None:
        parts = (_Part * len(infos))()
        for part, info, tensor in zip(parts, infos, tensors, strict=True):
            (part.rows, part.columns), part.offset = info.shape, info.start
            part.to, part.turn = tensor.data_ptr(), _turns(info)
        scratch = torch.empty(max(SCRATCH, *(2 * info.shape[1] for info in infos)), dtype=torch.uint8)
        fault = kernel.stage_bfloat16(
            self._fd, ctypes.addressof(parts), len(infos), scratch.data_ptr(), scratch.numel()
        )
        if fault < 0:
            raise BadFile(SHRANK)
        if fault:
            raise OSError(fault, os.strerror(fault))
        self.finite = {tensor.data_ptr() for part, tensor in zip(parts, tensors, strict=True) if part.finite}

    def _read_one(self, info: TensorInfo, tensor: torch.Tensor) -> None:
        read = torch.empty(info.shape, dtype=tensor.dtype) if _turns(info) else tensor
        raw: Any = read.view(-1).view(torch.uint8).numpy()
        read_into(self._fd, memoryview(raw), info.start)
        if read is not tensor:
            tensor.copy_(read)


def _turns(info: TensorInfo) -> bool:
    return len(info.shape) == 2 and ".lora_B." in info.name


def _tensor(info: TensorInfo, place: torch.Tensor) -> torch.Tensor:
    values = place[: info.end - info.start].view(DTYPES[info.dtype])
    return values.view(info.shape[::-1]).t() if _turns(info) else values.view(info.shape)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What is wrong with the file, with its name."""
    try:
        yield
    except BadFile as fault:
        raise ValueError(f"adapter_model.safetensors: {fault}") from None


_open: ContextVar[StagedFile | None] = ContextVar("staged_file", default=None)


@contextlib.contextmanager
def instead_of_safetensors(file: StagedFile) -> Iterator[None]:
    """vLLM's loader gets `file`, whatever it opens meanwhile."""
    token = _open.set(file)
    try:
        with file:
            yield
    finally:
        _open.reset(token)


def patch(lora_model_module: Any) -> None:
    """`lora_model_module`: vllm.lora.lora_model. Safe to call twice."""
    lora_model_module.safetensors = SimpleNamespace(safe_open=_safe_open)


def _safe_open(*args: Any, **kwargs: Any) -> Any:
    import safetensors

    file = _open.get()
    return safetensors.safe_open(*args, **kwargs) if file is None else file
