"""Read a stored adapter into vLLM's packed form, or report why it does not fit the model.

For a GPU (`for_gpu`) all its tensors are in one pinned buffer in the dtype of the places, so that copies to the device
are asynchronous. vLLM would clone and pin each tensor separately (448 for an 8B model), and pin none of an adapter
whose first layer is packed (it compares a tensor with the word "cpu").

`safetensors.safe_open` maps the file, and truncating it afterwards ends the engine with SIGBUS. Here all bytes are read
first, without holding Python's lock, so that no step waits for it; a truncated file is an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from cachetools import FIFOCache

from adapters.content.tensor_file import FLOATS, BadFile, TensorInfo, read_head, read_into, tensors_of
from models.chat.vllm.adapters.arena import Arena
from models.chat.vllm.adapters.templates import MOST, AdapterTemplate, are_marked, is_plain, key_of, template_of

READERS, READ_PART = 4, 8 << 20
"""Threads that read a file for a GPU, whose host has cores to spare, and the minimum bytes for each. One thread copies
4 GB per second from the page cache."""
DTYPES = dict(zip(FLOATS, (torch.float32, torch.float16, torch.bfloat16), strict=True))
_place_dtype: ContextVar[torch.dtype | None] = ContextVar("roundhouse_places", default=None)
_arena: ContextVar[Arena | None] = ContextVar("roundhouse_arena", default=None)
MAX_HEADER, MAX_TENSORS = 256 << 20, 10_000_000


class ReadFile:
    """A replacement for the result of `safetensors.safe_open`, with the parts that vLLM's loader uses.

    Raises OSError, and ValueError for a malformed or truncated file.
    """

    def __init__(self, path: str, framework: str = "pt") -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            head, size = bytes(read_head(fd, MAX_HEADER)), os.fstat(fd).st_size
            infos = tensors_of(head, size, MAX_TENSORS)
            place_dtype = _place_dtype.get()
            fits = place_dtype is not None and all(_fits(info, place_dtype, len(head)) for info in infos.values())
            data = _read_data(fd, len(head), size, pinned=fits)
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
        """Return the names of its tensors."""
        return list(self._tensors)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]


@contextmanager
def for_gpu(dtype: torch.dtype, arena: Arena | None = None) -> Iterator[None]:
    """Within this context, read files for places of `dtype` on a GPU, into the arena if it has room."""
    tokens = _place_dtype.set(dtype), _arena.set(arena)
    try:
        yield
    finally:
        _place_dtype.reset(tokens[0])
        _arena.reset(tokens[1])


def _read_data(fd: int, start: int, size: int, *, pinned: bool) -> torch.Tensor:
    """Return the bytes of a file of `size` from `start` on, in new memory."""
    data = _empty(size - start, torch.uint8, pinned=pinned)
    _read_parts(fd, data.numpy().data, start, READERS if _place_dtype.get() is not None else 1)
    return data


def _read_parts(fd: int, view: memoryview, start: int, threads: int) -> None:
    count = max(1, min(threads, len(view) // READ_PART))
    size = max(1, -(-len(view) // count))
    with ThreadPoolExecutor(count, "adapter-read") as pool:
        reading = [pool.submit(read_into, fd, view[at : at + size], start + at) for at in range(size, len(view), size)]
        read_into(fd, view[:size], start)
        for part in reading:
            part.result()


def _fits(info: TensorInfo, dtype: torch.dtype, head: int) -> bool:
    """Return whether the file's bytes can be used as the tensor without a copy."""
    return DTYPES.get(info.dtype) is dtype and not (info.start - head) % dtype.itemsize


def _cast(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    values = _empty(sum(tensor.numel() for tensor in tensors.values()), dtype, pinned=True)
    result, end = {}, 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel()
        result[name] = values[start:end].view(tensor.shape).copy_(tensor)
    return result


def _empty(count: int, dtype: torch.dtype, *, pinned: bool) -> torch.Tensor:
    arena = _arena.get() if pinned else None
    if arena is not None and (data := arena.take(count * dtype.itemsize)) is not None:
        return data.view(dtype)
    return torch.empty(count, dtype=dtype, pin_memory=pinned)


def _tensor(info: TensorInfo, data: torch.Tensor, head: int) -> torch.Tensor:
    if info.dtype not in DTYPES:
        raise BadFile(f"tensor {info.name} has dtype {info.dtype}, not one of {', '.join(DTYPES)}")
    dtype, start = DTYPES[info.dtype], info.start - head
    values = data[start : info.end - head]
    if start % dtype.itemsize:
        values = values.clone()
    return values.view(dtype).view(info.shape)


def patch_loader(lora_model: Any) -> None:
    """lora_model: vllm.lora.lora_model, whose loader opens all files with `safetensors.safe_open`."""
    lora_model.safetensors = SimpleNamespace(safe_open=ReadFile)


FILES = ("adapter_config.json", "adapter_model.safetensors")


def tensors(weights: Any) -> list[tuple[torch.Tensor | None, torch.Tensor | None]]:
    """Return A and B of each part of a layer, as packed by vLLM."""
    if isinstance(weights.lora_a, list):
        return list(zip(weights.lora_a, weights.lora_b, strict=True))
    return [(weights.lora_a, weights.lora_b)]


def size(lora: Any) -> tuple[int, int]:
    """Return the bytes of an adapter from `read_adapter`, and its highest rank."""
    pairs = [pair for weights in lora.loras.values() for pair in tensors(weights)]
    nbytes = sum(half.nbytes for pair in pairs for half in pair if half is not None)
    return nbytes, max(a.shape[0] for a, _ in pairs if a is not None)


def finite(values: torch.Tensor) -> bool:
    """Return whether no value is infinite or NaN.

    Uses the sum, in which such a value never disappears; that takes an eighth of the time of checking each value, which
    is 0.1 s for 45 MB. If the sum overflows, the values are checked.
    """
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def widths(layer: Any, number: int) -> tuple[int, int]:
    """Return inputs and outputs of a part of a layer, of all workers together.

    The places of each worker have a share of one of them: of the inputs if the layer's input is split, otherwise of the
    outputs. With more workers than heads of keys and values, several have the same share.
    """
    here = int(layer.lora_a_stacked[number].shape[-1]), int(layer.lora_b_stacked[number].shape[-2])
    if getattr(layer, "tp_size", 1) == 1:
        return here
    base = layer.base_layer
    replicas = int(getattr(base, "num_kv_head_replicas", 1))
    sizes = [size // (replicas if at else 1) for at, size in enumerate(getattr(base, "output_sizes", ()))]
    whole = sizes[number] if len(layer.lora_b_stacked) > 1 else sum(sizes) or base.output_size
    return int(base.input_size), int(whole)


def faults_of(loras: dict[str, Any], modules: dict[str, Any], max_rank: int) -> list[str]:
    """Return all reasons why packed weights do not fit the layers they name; [] if they fit.

    Args:
        loras: module name -> packed weights with `lora_a` (rank, in) and `lora_b` (out, rank), or lists of them.
        modules: module name -> LoRA layer with `lora_a_stacked` (places, 1, rank, in), `lora_b_stacked`.
        max_rank: rows of A that a place has.
    """
    faults = [f"{name}: the model has no such layer for adapters" for name in loras if name not in modules]
    if not loras:
        faults.append("the adapter has no weights")
    for name, weights in loras.items():
        if name not in modules:
            continue
        layer = modules[name]
        pairs = tensors(weights)
        if len(pairs) != len(layer.lora_a_stacked):
            faults.append(f"{name}: {len(pairs)} parts where the layer has {len(layer.lora_a_stacked)}")
            continue
        for number, (a, b) in enumerate(pairs):
            inputs, outputs = widths(layer, number)
            if a is None and b is None:
                continue
            if a is None or b is None:
                faults.append(f"{name}: one half of the pair is missing")
            elif a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1] or a.shape[0] > max_rank:
                faults.append(f"{name}: shapes {tuple(a.shape)}, {tuple(b.shape)} do not make a rank up to {max_rank}")
            elif (b.shape[0], a.shape[1]) != (outputs, inputs):
                faults.append(f"{name}: made for {(b.shape[0], a.shape[1])} where the layer is {(outputs, inputs)}")
            elif not (finite(a) and finite(b)):
                faults.append(f"{name}: values that are not finite")
    return faults


def part(loras: dict[str, Any], modules: dict[str, Any]) -> None:
    """Split pairs that are one in the file but several parts in the layer (Mamba-2's `in_proj`).

    As in vLLM's layer, each part gets all of A and its own rows of B.
    """
    for name, weights in loras.items():
        layer = modules.get(name)
        if layer is None or isinstance(weights.lora_a, list):
            continue
        rows = [widths(layer, number)[1] for number in range(len(layer.lora_b_stacked))]
        if len(rows) > 1 and weights.lora_b.shape[0] == sum(rows):
            weights.lora_a, weights.lora_b = [weights.lora_a] * len(rows), list(weights.lora_b.split(rows))


def whole_too(manager: Any) -> None:
    """Make vLLM also read a layer of several parts by its own name, for `part`.

    GLM-4's files, and so its adapters, have `gate_up_proj` in one piece, but vLLM knows only the names of the parts.
    """
    known = manager.packed_modules_mapping
    manager.packed_modules_mapping = {name: [*parts, name] for name, parts in known.items()}


def read_adapter(worker_manager: Any, adapter_id: int, path: str, arena: Arena | None = None) -> Any:
    """Read a folder into vLLM's packed form, in new memory or, with a GPU, in the arena if there is one.

    Raises ValueError with all faults, one per line.
    """
    from vllm.lora.request import LoRARequest

    folder = Path(path)
    for name in FILES:
        if not (folder / name).is_file():
            raise ValueError(f"{name} is not there")
    manager = worker_manager._adapter_manager
    templates = worker_manager.__dict__.setdefault("roundhouse_templates", FIFOCache(MOST))
    on_gpu = manager.device.type == "cuda"
    with for_gpu(manager.lora_config.lora_dtype, arena) if on_gpu else nullcontext():
        layout = _layout(folder)
        if (template := templates.get(layout.key)) is not None and are_marked(folder / name for name in FILES):
            return template.fill(adapter_id, _read_data_again(folder, layout))
        lora = worker_manager._load_adapter(LoRARequest(str(adapter_id), adapter_id, path))
    plain = is_plain(lora)
    for name, weights in lora.loras.items():
        if weights.lora_a is None or weights.lora_b is None:
            raise ValueError(f"{name}: one half of the pair is missing")
    if not lora.loras:
        raise ValueError("the adapter has no weights")
    manager._create_merged_loras_inplace(lora)
    part(lora.loras, manager.modules)
    if faults := faults_of(lora.loras, manager.modules, manager.lora_config.max_lora_rank):
        raise ValueError("\n".join(faults))
    template = template_of(lora, layout.size - len(layout.head), _dtypes(layout)) if plain else None
    if template is not None and _gives(template, lora, _read_data_again(folder, layout)):
        templates[layout.key] = template
        lora.roundhouse_template = template
    return lora


class _Layout(NamedTuple):
    """The header and size of an adapter's file, and the key of header, size and configuration."""

    head: bytes
    size: int
    key: bytes


def _layout(folder: Path) -> _Layout:
    """Read an adapter's layout. Raises OSError, and ValueError for a malformed file."""
    with _open(folder) as fd:
        head, size = bytes(read_head(fd, MAX_HEADER)), os.fstat(fd).st_size
    return _Layout(head, size, key_of(head, size, (folder / FILES[0]).read_bytes()))


def _read_data_again(folder: Path, layout: _Layout) -> torch.Tensor:
    """Read the file after its header. Raises OSError, and ValueError if the file was truncated."""
    with _open(folder) as fd:
        return _read_data(fd, len(layout.head), layout.size, pinned=_place_dtype.get() is not None)


@contextmanager
def _open(folder: Path) -> Iterator[int]:
    fd = os.open(folder / FILES[1], os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    except BadFile as fault:
        raise ValueError(f"{FILES[1]}: {fault}") from None
    finally:
        os.close(fd)


def _dtypes(layout: _Layout) -> set[torch.dtype | None]:
    """Return the dtypes of the file's tensors."""
    return {DTYPES.get(info.dtype) for info in tensors_of(layout.head, layout.size, MAX_TENSORS).values()}


def _gives(template: AdapterTemplate, lora: Any, data: torch.Tensor) -> bool:
    """Return whether the template gives the same result as vLLM's loader for the same file, bit for bit."""
    filled = template.fill(lora.id, data).loras
    pairs = [
        (half, other)
        for name, weights in lora.loras.items()
        for pair, others in zip(tensors(weights), tensors(filled[name]), strict=True)
        for half, other in zip(pair, others, strict=True)
    ]
    return all(_bits_equal(*pair) for pair in pairs)


def _bits_equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one.contiguous().view(torch.int8), other.contiguous().view(torch.int8))
