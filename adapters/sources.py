"""Where an adapter comes from: a folder, a package, a hub, or an archive that a client uploads."""

from dataclasses import dataclass
from pathlib import Path

from registry.recipes.definition import HubSource, PackageSource, PathSource


@dataclass(frozen=True, slots=True)
class UploadedArchive:
    """A tar, tar.gz or zip file that was received; register() leaves it where it is."""

    path: Path


AdapterSource = PathSource | PackageSource | HubSource | UploadedArchive
