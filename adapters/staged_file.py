"""An adapter's file, read into memory of its own as the places of a CPU hold it: B turned round (`cpu_kernel.turned`).

vLLM's loader opens files by `safetensors.safe_open`, which maps them: whoever cuts such a file short ends the engine
with SIGBUS. While `instead_of_safetensors` lasts, the loader gets a `StagedFile` in its place, in the same thread only.
All bytes are read in one call of `cpu_stage.c` without Python's lock, so that no step waits for it; where that cannot
be compiled, or the values are not bfloat16, tensor by tensor: right, and slower.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adapters import cpu_kernel
from adapters.cpu_arena import LINE
from adapters.staged_memory import StagedMemory
from adapters.tensor_file import FLOATS, SHRANK, BadFile, TensorInfo, read_head, read_into, tensors_of

DTYPES = dict(zip(FLOATS, (torch.float32, torch.float16, torch.bfloat16), strict=True))
SCRATCH = 1 << 18
"""Bytes that stay in a core's cache while they are turned."""
MAX_HEADER, _MAX_TENSORS = 256 << 20, 10_000_000


class Layout:
    """Where the tensors of a file lie in one piece of memory: the same for all files with this header.

    Only for a `plain` one, bfloat16 matrices throughout, can `read` be called.
    """

    def __init__(self, infos: Collection[TensorInfo]) -> None:
        sizes = [-(-(info.end - info.start) // LINE) * LINE for info in infos]
        self.starts = [0, *itertools.accumulate(sizes)]
        self.size = self.starts.pop()
        """Bytes of memory."""
        self.file_size = max((info.end for info in infos), default=0)
        self.plain = all(info.dtype == "BF16" and len(info.shape) == 2 for info in infos)
        rows = [
            (info.start, *info.shape, start, _turns(info), 0)
            for info, start in zip(infos, self.starts, strict=True)
            if self.plain
        ]
        self._parts = np.array(rows, dtype=np.int64).reshape(-1, 6)
        """`struct part` of the source, one a row."""
        row = max((2 * info.shape[-1] for info in infos if info.shape), default=0)
        self._scratch = max(row, min(SCRATCH, max(sizes, default=0)))

    def read(
        self, kernel: ctypes.CDLL, fd: int, memory: torch.Tensor, held: npt.NDArray[np.uint8] | None = None
    ) -> list[bool]:
        """Read all tensors of an open file, in one call without Python's lock. Returns which hold finite values only.

        held: all of the file, which then is not read again.

        Raises OSError, and BadFile when the file is shorter.
        """
        assert self.plain
        assert memory.numel() >= self.size
        parts, scratch = self._parts.copy(), torch.empty(self._scratch, dtype=torch.uint8)
        parts[:, 3] += memory.data_ptr()
        assert held is None or held.size == self.file_size
        address = None if held is None else held.ctypes.data
        fault = kernel.stage_bfloat16(fd, address, parts.ctypes.data, len(parts), scratch.data_ptr(), scratch.numel())
        if fault < 0:
            raise BadFile(SHRANK)
        if fault:
            raise OSError(fault, os.strerror(fault))
        finite: list[bool] = (parts[:, 5] != 0).tolist()
        return finite


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
        self.taken: torch.Tensor | None = None
        """Where they lie, once one was asked for."""
        self.finite: set[int] = set()
        """Addresses of tensors that were looked through and hold no infinite value and no NaN."""
        try:
            with _told():
                self.head = bytes(read_head(self._fd, MAX_HEADER))
                self._infos = tensors_of(self.head, os.fstat(self._fd).st_size, _MAX_TENSORS)
                for info in self._infos.values():
                    if info.dtype not in DTYPES:
                        raise BadFile(f"tensor {info.name} has dtype {info.dtype}, not one of {', '.join(DTYPES)}")
        except ValueError:
            os.close(self._fd)
            raise
        self.layout = Layout(self._infos.values())

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
        infos, layout = list(self._infos.values()), self.layout
        self.taken = self._memory.take(layout.size)
        tensors = [_tensor(info, self.taken[start:]) for info, start in zip(infos, layout.starts, strict=True)]
        kernel = cpu_kernel.load()
        if kernel is not None and layout.plain:
            finite = layout.read(kernel, self._fd, self.taken)
            self.finite = {tensor.data_ptr() for tensor, fine in zip(tensors, finite, strict=True) if fine}
        else:
            for info, tensor in zip(infos, tensors, strict=True):
                self._read_one(info, tensor)
        self._tensors = dict(zip(self._infos, tensors, strict=True))

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
