"""Check an adapter folder against its base. All tensors are read, none are changed.

These are checked in this order, and all faults are reported at once:
 1. the files: regular ones, no links, within the limits; tensors in safetensors only
 2. adapter_config.json (see `adapters.content.config`)
 3. the tensor file's header (see `adapters.content.tensor_file`)
 4. names: both halves of each pair, only layers that the base has, nothing besides LoRA
 5. shapes: against the base's; rank against config, patterns and recipe
 6. targets: exactly the layers that the config targets
 7. values: finite, and too small to overflow the engine
"""

import json
import os
import re
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from adapters.content.base_shapes import BaseShapes, UnknownBase, as_spelled, read_base
from adapters.content.config import AdapterConfig, read_config
from adapters.content.faults import Faults, quote_value
from adapters.content.forms import (
    CONFIG,
    TENSORS,
    blob_of,
    foreign_form,
    other_family,
)
from adapters.content.names import LORA_TENSOR, layer_fault, why_no_lora
from adapters.content.tensor_file import FLOATS, BadFile, TensorInfo, read_bits, read_header, to_float32
from adapters.content.tokenizer import examine_tokenizer
from adapters.types import Base
from registry.base.json import read_object
from registry.bounds import Bounds
from registry.files import git_lfs
from registry.files.shape import text_config
from registry.files.sources import something_else

MAX_NORM = 1e4
"""Bound on ‖A‖·‖scale·B‖ (Frobenius) of one layer. Trained adapters stay below 100. Up to this bound the largest value
that an engine computes, gate·up then down after a norm, stays below 1e18, so that its square fits float32."""


@dataclass(slots=True)
class Pair:
    """A layer's halves: A (rank, in), B (out, rank). `module`: its name in the base."""

    module: str
    a: TensorInfo
    b: TensorInfo
    scale: float

    @property
    def rank(self) -> int:
        return self.a.shape[0]


@dataclass(slots=True)
class Examination:
    """The result. `pairs` are unordered and valid only without faults; `fd` is their file."""

    faults: Faults
    notes: list[str] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    fd: int = -1
    layers: int = 0
    """Number of layers of the base; 0 if unknown."""
    template: str = ""
    """The adapter's own chat template; empty if it uses the base's."""


@contextmanager
def examine(folder: Path, base: Base, bounds: Bounds, *, trusted: bool = False) -> Iterator[Examination]:
    """Check `folder`. The checked tensor file stays open within the context.

    trusted: use the adapter's chat template; see `adapters.content.tokenizer`.
    """
    faults = Faults()
    examination = Examination(faults)
    raw, examination.fd = _open_files(folder, bounds, faults)
    try:
        with cpu_limit(bounds.pattern_seconds):
            config, notes = read_config(raw, bounds, faults) if raw is not None else (None, [])
        findings = examine_tokenizer(folder, base.path, trusted=trusted)
        for fault in findings.faults:
            faults.add(fault)
        examination.template = findings.template
        examination.notes += [*notes, *findings.notes, *_base_notes(raw, base)]
        if examination.fd >= 0:
            try:
                _check_tensors(examination, config, base, bounds)
            except BadFile as error:
                faults.add(f"{TENSORS} is damaged: {error}.")
        yield examination
    finally:
        if examination.fd >= 0:
            os.close(examination.fd)


def _base_notes(raw: bytes | None, base: Base) -> list[str]:
    """Return a note if the config names another base."""
    try:
        named = json.loads(raw or b"{}").get("base_model_name_or_path")
    except (ValueError, AttributeError, RecursionError):
        return []
    note = other_family(named, str(text_config(read_object(base.path / "config.json")).get("model_type") or ""))
    return [note] if note else []


def _open_files(folder: Path, bounds: Bounds, faults: Faults) -> tuple[bytes | None, int]:
    """Return the config's bytes and the open tensor file; None and -1 if missing."""
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        faults.add(f"The folder cannot be read: {error.strerror}.")
        return None, -1
    try:
        names = set(os.listdir(directory))
        if TENSORS not in names:
            pickles = sorted(n for n in names if n.endswith((".bin", ".pt", ".pth", ".ckpt", ".pkl")))
            others = sorted(n for n in names if n.endswith(".safetensors"))
            hint = ""
            if pickles:
                hint = f" {quote_value(pickles[0])} may hold code and is never read: save with safe_serialization=True."
            if others:
                parts = re.search(r"-\d+-of-\d+\.", others[0])
                requirement = "the adapter must be saved in one file" if parts else "it must have peft's name for it"
                hint += f" There is {quote_value(others[0])}: {requirement}."
            if what := something_else(names) or (None if CONFIG in names and pickles else foreign_form(names)):
                faults.add(what)
                return None, -1
            faults.add(f"{TENSORS} is missing.{hint}")
        config = _open(folder, directory, CONFIG, bounds.adapter_config_bytes, faults) if CONFIG in names else -1
        if CONFIG not in names:
            faults.add(f"{CONFIG} is missing: peft writes it with save_pretrained.")
        raw = None
        if config >= 0:
            with os.fdopen(config, "rb") as file:
                raw = file.read(bounds.adapter_config_bytes)
        return raw, _open(folder, directory, TENSORS, bounds.adapter_bytes, faults) if TENSORS in names else -1
    finally:
        os.close(directory)


def _open(folder: Path, directory: int, name: str, limit: int, faults: Faults) -> int:
    """Open a file, or add a fault and return -1.

    Follows no links but those in a hub's cache, and does not block on a pipe.
    """
    try:
        kind, place = os.stat(name, dir_fd=directory, follow_symlinks=False), name
        if stat.S_ISLNK(kind.st_mode) and (blob := blob_of(folder, name)) is not None:
            place = str(blob)
            kind = os.stat(place, follow_symlinks=False)
        if not stat.S_ISREG(kind.st_mode):
            link = stat.S_ISLNK(kind.st_mode)
            faults.add(f"{name} is {'a link' if link else 'not a regular file'}: only regular files are read.")
            return -1
        if kind.st_size > limit:
            faults.add(f"{name} has {kind.st_size} bytes, over the limit of {limit}.")
            return -1
        fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        if git_lfs.is_pointer(os.pread(fd, git_lfs.LENGTH, 0)):
            os.close(fd)
            faults.add(f"{name} {git_lfs.FAULT}")
            return -1
        return fd
    except OSError as error:
        faults.add(f"{name} cannot be read: {error.strerror}.")
        return -1


def _check_tensors(examination: Examination, config: AdapterConfig | None, base: Base, bounds: Bounds) -> None:
    faults = examination.faults
    tensors = read_header(examination.fd, bounds.adapter_header_bytes, bounds.adapter_tensors)
    if not tensors:
        faults.add(f"{TENSORS} holds no tensors: this adapter would answer like the base.")
    halves = _pair_up(tensors, faults)
    shapes: BaseShapes | None = None
    own: dict[str, str] = {}
    try:
        shapes, own = as_spelled(read_base(base.path), halves)
        examination.layers = shapes.layers
    except UnknownBase as error:
        faults.add(f"The adapter cannot be checked against model '{base.id}': {error}.")
    with cpu_limit(bounds.pattern_seconds):
        for module, (a, b) in halves.items():
            if shapes is not None and (reason := layer_fault(module, shapes)):
                faults.at(module, reason)
            elif a is None or b is None:
                faults.at(module, f"lora_{'A' if a is None else 'B'} is missing: each layer needs both halves.")
            elif _check_shapes(module, a, b, config, base, shapes, faults):
                examination.pairs.append(Pair(own.get(module, module), a, b, config.scale(module) if config else 1.0))
        if config is not None and shapes is not None:
            _check_targets(config, shapes, set(halves), faults)
    _check_values(examination, tensors)


def _pair_up(tensors: dict[str, TensorInfo], faults: Faults) -> dict[str, tuple[TensorInfo | None, TensorInfo | None]]:
    """Group tensors by module name, as (A, B)."""
    halves: dict[str, list[TensorInfo | None]] = {}
    spellings = set()
    for name, tensor in tensors.items():
        match = LORA_TENSOR.match(name)
        if match is None:
            faults.at(quote_value(name), why_no_lora(name))
            continue
        spellings.add(match["adapter"])
        index = 0 if match["half"] == "A" else 1
        pair = halves.setdefault(match["module"], [None, None])
        if pair[index] is not None:
            faults.at(match["module"], f"lora_{match['half']} is in the file twice, under two spellings.")
        pair[index] = tensor
    if len(spellings) > 1:
        faults.add(f"The file holds several adapters ({quote_value(sorted(map(str, spellings)))}): save one alone.")
    return {module: (pair[0], pair[1]) for module, pair in halves.items()}


def _check_shapes(
    module: str, a: TensorInfo, b: TensorInfo, config: AdapterConfig | None, base: Base, shapes: BaseShapes | None,
    faults: Faults,
) -> bool:  # fmt: skip
    """Return whether a pair is valid. Shapes are (rows, columns)."""
    if config is not None and not _foldable(scale := config.scale(module)):
        faults.at(module, f"lora_alpha and rank make its scale {scale:g}, which float32 cannot hold.")
        return False
    if len(a.shape) != 2 or len(b.shape) != 2:
        faults.at(module, f"lora_A has shape {list(a.shape)} and lora_B {list(b.shape)}: both must be matrices.")
        return False
    rank, sound = a.shape[0], True
    if rank != b.shape[1] or not rank:
        faults.at(module, f"lora_A has rank {rank} (rows) and lora_B {b.shape[1]} (columns): they must be equal.")
        sound = False
    if config is not None and rank != config.rank(module):
        setting = "rank_pattern" if config.rank(module) != config.r else "r"
        faults.at(module, f"the tensors have rank {rank}, the config says {config.rank(module)} ({setting}).")
        sound = False
    if max(rank, b.shape[1]) > base.max_rank:
        faults.at(
            module,
            f"rank {max(rank, b.shape[1])} is over the {base.max_rank} that model '{base.id}' has room for "
            "(memory.adapters.max_rank in its recipe).",
        )
        sound = False
    if shapes is not None:
        out_width, in_width = shapes.linear[module]
        if a.shape[1] != in_width:
            faults.at(module, f"lora_A takes {a.shape[1]} inputs, the base's layer has {in_width}: another base model?")
            sound = False
        if b.shape[0] != out_width:
            faults.at(module, f"lora_B gives {b.shape[0]} outputs, the base's layer {out_width}: another base model?")
            sound = False
    return sound and a.dtype in FLOATS and b.dtype in FLOATS


def _foldable(scale: float) -> bool:
    """Return whether float32 can hold the scale; one below its normal range would zero B."""
    numbers = np.finfo(np.float32)
    return float(numbers.tiny) <= scale <= float(numbers.max)


def _check_targets(config: AdapterConfig, shapes: BaseShapes, adapted: set[str], faults: Faults) -> None:
    for module in shapes.linear:
        targeted = config.targets(module)
        if targeted and module not in adapted:
            faults.at(module, "target_modules includes this layer, but the file does not: is the file complete?")
        elif module in adapted and not targeted and not config.target_parameters:
            faults.at(module, "the file includes this layer, but target_modules does not; peft would ignore it.")


def _check_values(examination: Examination, tensors: dict[str, TensorInfo]) -> None:
    norms: dict[str, float] = {}
    for name, tensor in tensors.items():
        match = LORA_TENSOR.match(name)
        module = match["module"] if match else quote_value(name)
        half = f"lora_{match['half']}" if match else "the tensor"
        if tensor.dtype not in FLOATS:
            examination.faults.at(module, f"{half} is stored as {tensor.dtype}: use bfloat16, float16 or float32.")
            continue
        values = to_float32(read_bits(examination.fd, tensor)).ravel()
        with np.errstate(over="ignore", invalid="ignore"):
            norms[name] = float(np.sqrt(np.dot(values, values)))
        if not np.isfinite(norms[name]) and not np.isfinite(values).all():
            bad = int(values.size - np.isfinite(values).sum())
            examination.faults.at(
                module, f"{half} has {bad} values that are NaN or infinite: the training has diverged."
            )
            norms[name] = 0.0
    for pair in examination.pairs:
        size = norms.get(pair.a.name, 0.0) * norms.get(pair.b.name, 0.0) * abs(pair.scale)
        if not size <= MAX_NORM:
            examination.faults.at(
                pair.module, f"the update's norm is over {MAX_NORM:g}: values of this size can overflow the engine."
            )
    if (
        examination.pairs
        and all(norms.get(pair.b.name) == 0.0 for pair in examination.pairs)
        and not examination.faults
    ):
        examination.notes.append("All lora_B are zero: this adapter answers like the base.")


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block after that much CPU time. Main thread only.

    Python's `re` takes exponential time for some patterns, but checks for signals. CPU time is measured so that a busy
    machine does not refuse valid adapters.
    """

    def over(*_: object) -> None:
        raise TimeoutError(
            f"The patterns of adapter_config.json (target_modules, rank_pattern, alpha_pattern) take more than "
            f"{seconds:g} s of CPU time to match: write plain module names."
        )

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
