"""An adapter's file, read into memory of its own before vLLM's loader sees it.

`safetensors.safe_open` maps the file: whoever cuts it short afterwards ends the engine with SIGBUS. Here all bytes are
read first, without Python's lock, so that no step waits for it; a file that is short by then is an error.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from adapters.content.tensor_file import FLOATS, BadFile, TensorInfo, read_head, read_into, tensors_of

DTYPES = dict(zip(FLOATS, (torch.float32, torch.float16, torch.bfloat16), strict=True))
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
            data = np.empty(size - len(head), dtype=np.uint8)
            read_into(fd, data.data, len(head))
            self._tensors = {name: _tensor(info, torch.from_numpy(data), len(head)) for name, info in infos.items()}
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
