"""Types of the adapter code: bases, sources, and stored or checked adapters."""

from dataclasses import dataclass, field
from pathlib import Path

from registry.recipes.fields import HubSource, PackageSource, PathSource, Strict


@dataclass(frozen=True, slots=True)
class Base:
    """The model that an adapter is for."""

    id: str
    """The recipe's id. It is part of the adapter's digest, so the same tensors on two bases are two adapters."""
    path: Path
    """Folder with config.json and, if present, the safetensors files, whose headers give the true shapes."""
    max_rank: int
    """Largest rank that the engine's places hold (recipe: memory.adapters.max_rank)."""
    origin: str | None = None
    """`registry.recipes.fields.origin` of its source."""


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    """An immutable, normalised adapter in the content-addressed store."""

    digest: str
    """The adapter's identity: 'sha256:' and 64 hex digits."""
    path: Path
    """Absolute path of a folder with adapter_config.json and adapter_model.safetensors only."""
    rank: int
    bytes: int
    """Size of the tensor file."""


@dataclass(frozen=True, slots=True)
class CheckedAdapter:
    """The result of a successful validation."""

    digest: str
    rank: int
    bytes: int
    notes: tuple[str, ...] = field(default=())
    """Descriptions of harmless changes and omissions."""


@dataclass(frozen=True, slots=True)
class UploadedArchive:
    """A received tar, tar.gz or zip file. register() does not remove it."""

    path: Path


@dataclass(frozen=True, slots=True)
class ComposedAdapter:
    """A folder that the server itself made. `words`: from what, for people."""

    path: Path
    words: str


class PublicHubSource(HubSource):
    """A hub repository that is read without the server's token."""


class UrlSource(Strict):
    """A folder or archive at an s3, gs or https address."""

    url: str

    @property
    def words(self) -> str:
        """The address without its query, which may hold a signature or a token."""
        address, query, _ = self.url.partition("?")
        return f"{address}?…" if query else address


NamedSource = PathSource | HubSource | UrlSource
"""Sources that a client may name without sending the bytes."""
AdapterSource = NamedSource | PackageSource | UploadedArchive | ComposedAdapter
