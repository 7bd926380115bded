"""What vLLM's loader makes of an adapter, remembered: most adapters of one base differ in their values only.

vLLM's loader is 2.5 ms of Python for an adapter of 56 tensors that takes 0.1 ms to read, and nearly all of it goes into
names. A step that runs meanwhile waits for Python's lock at each of its operations. All of it follows from two texts,
the adapter's config and the header of its tensor file: where both are, byte for byte, those of an adapter that the
loader has read before, the tensors go where that one's went. Whatever is unlike it or looks amiss is left to the
loader, which also knows how to say what is wrong.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from cachetools import LRUCache

from adapters import cpu_kernel
from adapters.staged_file import MAX_HEADER, Layout, StagedFile
from adapters.staged_memory import StagedMemory
from adapters.tensor_file import BadFile, head_of, read_head

SMALL = 1 << 20
"""Bytes up to which an adapter is copied into its place: a step reads many such faster where they lie together, in huge
pages, than wherever they were staged."""
MOST = 64
"""Forms that are remembered: one for each set of modules and ranks in use, some 20 KB."""


class View(NamedTuple):
    """A tensor in memory of bfloat16 values, as `as_strided` takes it."""

    shape: torch.Size
    strides: tuple[int, ...]
    start: int


def tensors(weights: Any) -> list[tuple[torch.Tensor | None, torch.Tensor | None]]:
    """A and B of each part of a layer, as vLLM packed them."""
    if isinstance(weights.lora_a, list):
        return list(zip(weights.lora_a, weights.lora_b, strict=True))
    return [(weights.lora_a, weights.lora_b)]


def size(lora: Any) -> tuple[int, int]:
    """Bytes of an adapter that `read_adapter` gave, and its highest rank."""
    if (form := getattr(lora, "roundhouse_form", None)) is not None:
        return form.bytes, form.rank
    pairs = [pair for weights in lora.loras.values() for pair in tensors(weights)]
    held = sum(half.nbytes for pair in pairs for half in pair if half is not None)
    return held, max(a.shape[0] for a, _ in pairs if a is not None)


class Form:
    """An adapter as vLLM packed it, without its values.

    Args:
        lora: vLLM's LoRAModel, whose tensors all lie in `taken` as they were read. Raises ValueError if one does not.
    """

    def __init__(self, lora: Any, layout: Layout, taken: torch.Tensor) -> None:
        self.layout, self._start = layout, taken.data_ptr()
        self._kind, self._rank, self._flat = _later(type(lora)), lora.rank, lora.is_3d_lora_weight
        if lora.modules_to_save:
            raise ValueError("it brings whole modules")
        self._modules = []
        self.halves: dict[str, list[tuple[View | None, View | None]]] = {}
        """By module, of each part."""
        for name, weights in lora.loras.items():
            views = [(self._view(a), self._view(b)) for a, b in tensors(weights)]
            rest = {key: value for key, value in vars(weights).items() if key not in ("lora_a", "lora_b")}
            self._modules.append((name, type(weights), rest, isinstance(weights.lora_a, list)))
            self.halves[name] = views
        found = [view for views in self.halves.values() for pair in views for view in pair if view]
        self.bytes = sum(2 * view.shape.numel() for view in found)
        self.rank = max(a.shape[0] for views in self.halves.values() for a, _ in views if a)
        """The highest of all modules."""

    def _view(self, tensor: torch.Tensor | None) -> View | None:
        if tensor is None:
            return None
        start = tensor.data_ptr() - self._start
        if tensor.dtype is not torch.bfloat16 or not 0 <= start < self.layout.size or start % 2:
            raise ValueError("a tensor lies elsewhere")
        return View(tensor.shape, tensor.stride(), start // 2)

    def model(self, adapter_id: int, taken: torch.Tensor) -> Any:
        """vLLM's LoRAModel of the adapter whose tensors were read into `taken`. A small one's `loras` are made when
        they are asked for, which nobody does who copies it by its form."""
        lora = self._kind(adapter_id, self._rank, {}, self._flat)
        lora.roundhouse_form, lora.roundhouse_taken = self, taken
        lora.roundhouse_loras = None if self.bytes < SMALL else self.loras(taken)
        return lora

    def loras(self, taken: torch.Tensor) -> dict[str, Any]:
        """Its weights by module, as vLLM packs them."""
        values = taken[: self.layout.size].view(torch.bfloat16)
        loras = {}
        for name, kind, rest, packed in self._modules:
            weights = loras[name] = object.__new__(kind)
            weights.__dict__.update(rest)
            halves = [tuple(view and values.as_strided(*view) for view in pair) for pair in self.halves[name]]
            a, b = zip(*halves, strict=True)
            weights.lora_a, weights.lora_b = (list(a), list(b)) if packed else (a[0], b[0])
        return loras


def _later(kind: Any) -> Any:
    """A subclass of vLLM's LoRAModel: `loras` are what it is given, or once they are None, its form's."""

    def get(self: Any) -> dict[str, Any]:
        if self.roundhouse_loras is None:
            self.roundhouse_loras = self.roundhouse_form.loras(self.roundhouse_taken)
        found: dict[str, Any] = self.roundhouse_loras
        return found

    return type(
        kind.__name__, (kind,), {"loras": property(get, lambda self, it: setattr(self, "roundhouse_loras", it))}
    )


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[int]:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


class Forms:
    """Of one engine; for one thread at a time."""

    def __init__(self) -> None:
        self._known: LRUCache[tuple[bytes, bytes], Form] = LRUCache(MOST)
        self._buffer: npt.NDArray[np.uint8] | None = None
        self.used = 0
        """How many adapters were read by one."""

    def read(self, adapter_id: int, config: Path, file: Path, memory: StagedMemory, *, wait: bool = True) -> Any:
        """vLLM's LoRAModel; None: vLLM's loader must read this one.

        wait: for the disk. Else None also where a part of it is not in the page cache, or it is larger than `SMALL`.
        """
        kernel = cpu_kernel.load()
        if kernel is None or not self._known:
            return None
        try:
            with _opened(file) as fd:
                if wait:
                    text, head, held = config.read_bytes(), bytes(read_head(fd, MAX_HEADER)), None
                else:
                    with _opened(config) as config_fd:
                        text = self._at_once(config_fd).tobytes()
                    held = self._at_once(fd)
                    head = head_of(held)
                form = self._known.get((text, head))
                if form is None or os.fstat(fd).st_size != form.layout.file_size:
                    return None
                taken = memory.take(form.layout.size)
                if not all(form.layout.read(kernel, fd, taken, held)):
                    return None
        except (OSError, BadFile):
            return None
        self.used += 1
        return form.model(adapter_id, taken)

    def _at_once(self, fd: int) -> npt.NDArray[np.uint8]:
        """All of an open file, until the next call. Raises OSError when it is long, or not in the page cache."""
        size = os.fstat(fd).st_size
        if size > SMALL or not hasattr(os, "RWF_NOWAIT"):
            raise OSError(errno.EAGAIN, "it would have to be waited for")
        if self._buffer is None:
            self._buffer = np.empty(SMALL, dtype=np.uint8)
        found = self._buffer[:size]
        if os.preadv(fd, [found.data], 0, os.RWF_NOWAIT) != size:
            raise OSError(errno.EAGAIN, "it would have to be waited for")
        return found

    def learn(self, config: bytes, file: StagedFile, lora: Any) -> None:
        """Remember what vLLM's loader has made of `config` and `file`, if others of this kind can be made so."""
        if not file.layout.plain or file.taken is None:
            return
        try:
            self._known[config, file.head] = Form(lora, file.layout, file.taken)
        except ValueError:
            return
