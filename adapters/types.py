"""Values that the adapter code hands on: its base, its limits, and what is stored of it."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Base:
    """The model that an adapter is for."""

    id: str
    """The recipe's id. It is part of the adapter's digest: the same tensors on two bases are two adapters."""
    path: Path
    """Folder with config.json and, where they are there, the safetensors files whose headers give the true shapes."""
    max_rank: int
    """Largest rank that the engine's places hold (recipe: memory.adapters.max_rank)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on what one adapter may bring in, in bytes and counts."""

    archive_bytes: int = 2 << 30
    unpacked_bytes: int = 4 << 30
    unpacked_files: int = 64
    unpack_ratio: int = 200
    """Unpacked bytes per archive byte, counted once more than 1 MiB was unpacked."""
    adapter_bytes: int = 4 << 30
    config_bytes: int = 1 << 20
    header_bytes: int = 16 << 20
    tensors: int = 20_000
    check_seconds: float = 120.0
    pattern_seconds: float = 3.0
    """Of processor time, for all patterns of a config; a pattern for each of 560 layers takes 0.14."""
    download_seconds: float = 1800.0
    combine_seconds: float = 1800.0
    check_memory: int = 8 << 30
    """Address space of the checking process."""


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    """A normalised adapter in the content-addressed store; immutable. Ready to become an engine's reference."""

    digest: str
    """'sha256:' and 64 hex digits: the adapter's identity."""
    path: Path
    """Absolute folder that holds adapter_config.json and adapter_model.safetensors, and nothing else."""
    rank: int
    bytes: int
    """Size of the tensor file."""
    base: str
    """The base model's id."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What validation found in an adapter that is fit."""

    digest: str
    rank: int
    bytes: int
    notes: tuple[str, ...] = field(default=())
    """What was changed or left out without changing the meaning, in words."""
