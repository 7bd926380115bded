"""Where an adapter comes from: a folder, a package, a hub, an archive that a client uploads, or others."""

from dataclasses import dataclass
from pathlib import Path

from registry.recipes.source import HubSource, PackageSource, PathSource


@dataclass(frozen=True, slots=True)
class UploadedArchive:
    """A tar, tar.gz or zip file that was received; register() leaves it where it is."""

    path: Path


@dataclass(frozen=True, slots=True)
class ComposedAdapter:
    """A folder that the server itself made; `words` tell people from what."""

    path: Path
    words: str


NamedSource = PathSource | HubSource
"""What a client may name without having its bytes."""
AdapterSource = NamedSource | PackageSource | UploadedArchive | ComposedAdapter
