"""Values of the adapter code: the base, sources, and stored or checked adapters."""

from dataclasses import dataclass, field
from pathlib import Path

from registry.recipes.fields import HubSource, PackageSource, PathSource, Strict


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
class StoredAdapter:
    """An immutable, normalised adapter in the content-addressed store."""

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
class CheckedAdapter:
    """The result of a successful validation."""

    digest: str
    rank: int
    bytes: int
    notes: tuple[str, ...] = field(default=())
    """Changes and omissions that keep the meaning, in words."""


@dataclass(frozen=True, slots=True)
class UploadedArchive:
    """A tar, tar.gz or zip file that was received; register() leaves it where it is."""

    path: Path


@dataclass(frozen=True, slots=True)
class ComposedAdapter:
    """A folder that the server itself made; `words` tell people from what."""

    path: Path
    words: str


class PublicHubSource(HubSource):
    """A hub's repository that is read without the server's token."""


class UrlSource(Strict):
    """A folder or archive by address: s3, gs or https."""

    url: str


NamedSource = PathSource | HubSource | UrlSource
"""Sources that a client may name without having the bytes."""
AdapterSource = NamedSource | PackageSource | UploadedArchive | ComposedAdapter
