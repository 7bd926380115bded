"""Cache how vLLM packs an adapter of a given layout, so that similar ones need no loader.

Adapters of one team mostly have the same modules and ranks, so their files in the store begin with the same bytes, down
to each offset. What vLLM's loader does with such a file (which tensor goes to which layer) depends only on its header
and configuration. So from the second file on, the bytes are read into memory and the tensors are views there. vLLM's
loader takes 8 to 12 ms of Python for the 448 tensors of an 8B model, competing with the engine's loop.

No template is created for a file whose values the loader changes (a scale that is not folded in, a cast), or that it
does not leave contiguous. Templates are used only for files that the store has checked and marked as unchanged, because
values are not checked again.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from adapters.store import MARK

MOST = 64
"""Maximum number of templates of an engine."""


class Span(NamedTuple):
    """A tensor's position in the file's data, in values."""

    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


Half = Span | None | list[Span | None]
"""The spans of A or of B of a layer; a list for a layer with parts."""


@dataclass
class AdapterTemplate:
    """How to build an adapter of one layout. `sources`: from `gpu_copy` for the first adapter, without its data."""

    model: Any
    """vLLM's LoRAModel, without layers."""
    layers: dict[str, tuple[Any, Half, Half]]
    """Name of each layer to vLLM's weights without tensors, and their positions."""
    dtype: torch.dtype
    sources: Any = None

    def fill(self, adapter_id: int, data: torch.Tensor) -> Any:
        """Return vLLM's LoRAModel with tensors in `data`, (bytes,) uint8, the file's content after its header."""
        values, model = data.view(self.dtype), copy.copy(self.model)
        model.id, model.loras, model.modules_to_save = adapter_id, {}, {}
        for name, (empty, a, b) in self.layers.items():
            weights = model.loras[name] = copy.copy(empty)
            weights.lora_a, weights.lora_b = _views(values, a), _views(values, b)
        model.roundhouse_template = self
        return model


def _views(values: torch.Tensor, half: Half) -> Any:
    if isinstance(half, list):
        return [None if span is None else values.as_strided(span.shape, span.stride, span.start) for span in half]
    return None if half is None else values.as_strided(half.shape, half.stride, half.start)


def key_of(head: bytes, size: int, config: bytes) -> bytes:
    """Return the key of a file of `size` bytes that begins with `head`."""
    numbers = len(head).to_bytes(8, "little") + size.to_bytes(8, "little")
    return hashlib.sha256(numbers + head + config).digest()


def are_marked(files: Iterable[Path]) -> bool:
    """Return whether files are unchanged since the store wrote them (`adapters.store`)."""
    return all(os.stat(file, follow_symlinks=False).st_mtime_ns == MARK for file in files)


def is_plain(lora: Any) -> bool:
    """Return whether packing changes no value from vLLM's loader, and there is nothing but the layers."""
    return not lora.modules_to_save and all(weights.scaling == 1 for weights in lora.loras.values())


def template_of(lora: Any, count: int, stored: set[torch.dtype | None]) -> AdapterTemplate | None:
    """Create a template from a packed adapter that was plain (`is_plain`).

    Returns None if its tensors are not in one block in the order of the file.

    Args:
        count: bytes of the file's data.
        stored: dtypes of the file's tensors.
    """
    halves = [half for weights in lora.loras.values() for half in (weights.lora_a, weights.lora_b)]
    tensors = [one for half in halves for one in (half if isinstance(half, list) else [half]) if one is not None]
    blocks = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    dtypes = {tensor.dtype for tensor in tensors}
    if len(blocks) != 1 or len(dtypes) != 1 or dtypes != stored or tensors[0].untyped_storage().nbytes() != count:
        return None
    layers = {}
    for name, weights in lora.loras.items():
        empty = copy.copy(weights)
        empty.lora_a = empty.lora_b = None
        layers[name] = (empty, _spans(weights.lora_a), _spans(weights.lora_b))
    model = copy.copy(lora)
    model.loras, model.modules_to_save = {}, {}
    return AdapterTemplate(model, layers, dtypes.pop())


def _spans(half: Any) -> Half:
    return [_span(one) for one in half] if isinstance(half, list) else _span(half)


def _span(tensor: torch.Tensor | None) -> Span | None:
    return None if tensor is None else Span(int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride())
