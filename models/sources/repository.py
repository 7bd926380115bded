"""A hub repository in the local cache: sizes, completeness, removal.

A file in large file storage is identified by the SHA-256 of its content, any other one by git's SHA-1.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from models.sources.resolve import EXCLUDED, FILES, INCLUDED
from registry.base.wording import quoted, size_words
from registry.errors import NotFound, Unavailable
from registry.files.sources import TIMEOUT, endpoint, hub_errors, public_endpoint
from registry.recipes.fields import GgufSource, HubSource, is_revision
from registry.storage.reserve import DiskReserve

SPARE = 256 * 2**20
"""Bytes of disk space that a download leaves free."""
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class RepositoryFile:
    size: int
    digest: str
    """64 hex digits for the SHA-256 of the content, 40 for the SHA-1 of git's blob, '' if the hub reports none."""


@dataclass(frozen=True, slots=True)
class Repository:
    commit: str
    files: Mapping[str, RepositoryFile]
    only: str = ""
    """The only file to download; '' for all that a model may need."""

    @property
    def included(self) -> dict[str, RepositoryFile]:
        """The files to download."""
        if self.only:
            return {self.only: self.files[self.only]}
        return {name: file for name, file in self.files.items() if is_included(name)}


def is_included(name: str) -> bool:
    return any(fnmatch(name, one) for one in INCLUDED) and not any(fnmatch(name, one) for one in EXCLUDED)


def files_of(source: HubSource) -> Repository:
    """List a repository's files from the hub. Raises as `hub_errors`, and NotFound for a missing file. Blocks."""
    from huggingface_hub import HfApi  # takes a fifth of a second, so not imported at the start

    with hub_errors(source):
        info = HfApi(endpoint=endpoint()).model_info(
            source.hub, revision=source.revision, files_metadata=True, timeout=TIMEOUT
        )
        files = dict(map(_file_of, info.siblings or []))
    if info.sha is None or not is_revision(info.sha):
        where = f"'{source.hub}' at revision '{source.revision}'"
        raise Unavailable(f"The hub at {public_endpoint()} names no commit for {where}.", code="hub_unavailable")
    if not isinstance(source, GgufSource):
        return Repository(info.sha, files)
    if source.file not in files:
        others = sorted(name for name in files if name.lower().endswith(".gguf"))
        there = f"It holds {', '.join(others[:8])}." if others else "It holds no GGUF file."
        raise NotFound(f"'{source.hub}' holds no {source.file}. {there}", code="source_not_found", param="source")
    return Repository(info.sha, files, source.file)


def _file_of(sibling: Any) -> tuple[str, RepositoryFile]:
    """Return a file's name and content as the hub lists it. Raises ValueError for an invalid name or digest.

    Names and digests become paths in the cache; one that led out of it could replace or remove a file on this machine.
    """
    name, size = sibling.rfilename, sibling.size or 0
    digest = (sibling.lfs.sha256 if sibling.lfs else sibling.blob_id) or ""
    if not _is_below(name) or not isinstance(size, int) or size < 0:
        raise ValueError(f"no file of a repository: {quoted(str(name))}")
    if digest and not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
        raise ValueError(f"no digest: {quoted(str(digest))}")
    return name, RepositoryFile(size, digest)


def _is_below(name: object) -> bool:
    """Return whether a name is a plain relative path below a folder."""
    return isinstance(name, str) and "\0" not in name and all(part not in ("", ".", "..") for part in name.split("/"))


def cache_folder() -> Path:
    """Return the folder in which huggingface_hub caches files."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def blobs_of(source: HubSource) -> Path:
    """Return the folder with the content of a repository's files, named by digest."""
    return cache_folder() / f"models--{source.hub.replace('/', '--')}" / "blobs"


def part_of(blob: Path) -> Path:
    """Return the path of a partial file."""
    return blob.with_name(f"{blob.name}.part")


def missing_bytes(source: HubSource, repository: Repository) -> int:
    """Return the bytes of the included files that are missing in the cache."""
    blobs = blobs_of(source)
    return sum(file.size - _here(blobs, file) for file in repository.included.values())


def _here(blobs: Path, file: RepositoryFile) -> int:
    blob = blobs / (file.digest or "none")
    return next((min(file.size, path.stat().st_size) for path in (blob, part_of(blob)) if path.is_file()), 0)


def check_disk(source: HubSource, repository: Repository) -> None:
    """Raise Unavailable (disk_full) before the download if the disk has no room for it."""
    folder = cache_folder()
    place = next(one for one in (folder, *folder.parents) if one.exists())
    need, free = missing_bytes(source, repository), shutil.disk_usage(place).free
    spare = max(SPARE, DiskReserve(place).measure()[1])
    if need and need + spare > free:
        raise Unavailable(
            f"'{source.hub}' wants {size_words(need)} of disk, and {place} has {size_words(free)} free. Make room, or "
            "point HF_HOME to another disk.",
            code="disk_full",
            retry_after=60,
        )


def check_files(source: HubSource, folder: Path, repository: Repository) -> None:
    """Raise Unavailable (bad_download) if a file differs from the hub's digest; it is downloaded again next time."""
    for name, file in repository.included.items():
        path = folder / name
        if not path.is_file():
            continue
        if path.stat().st_size != file.size or not _is(path, file.digest):
            os.unlink(path.resolve())
            path.unlink(missing_ok=True)
            raise Unavailable(
                f"{name} of '{source.hub}' came with other content than the hub says. It was removed: try again.",
                code="bad_download",
                retry_after=5,
            )


def keep_name(source: HubSource, commit: str) -> None:
    """Record the commit of a branch or tag, so that the library finds it by that name without the hub."""
    if source.revision != commit:
        name = blobs_of(source).with_name("refs") / source.revision
        name.parent.mkdir(parents=True, exist_ok=True)
        half = name.with_name(f"{name.name}.{os.getpid()}.tmp")
        half.write_text(commit)
        os.replace(half, name)  # others may be reading it


def _is(path: Path, digest: str) -> bool:
    """Return whether a small file has this digest. Large files were checked when they were downloaded."""
    if len(digest) == 40:
        data = path.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() == digest
    return True


def purge(sources: Collection[HubSource], retained: Collection[HubSource] = (), in_use: Collection[Path] = ()) -> int:
    """Delete the files of these repositories at these revisions, including partial ones; return their bytes.

    Files shared with another revision in the cache stay. Blocks.

    Args:
        retained: sources whose files stay, however the revision is named: a branch and its commit are the same files.
        in_use: folders that engines read, which stay as well, because a branch may have moved since.
    """
    from huggingface_hub import CachedRevisionInfo, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    if not sources:
        return 0
    try:
        cache = scan_cache_dir(cache_folder())
    except CacheNotFound:
        return 0

    def commits(selected: Collection[HubSource]) -> set[str]:
        return {
            revision.commit_hash
            for repository in cache.repos
            for revision in repository.revisions
            if any(
                one.hub == repository.repo_id and one.revision in (revision.commit_hash, *revision.refs)
                for one in selected
            )
        }

    expired = commits(sources) - commits(retained) - {folder.name for folder in in_use}
    hubs, freed = {s.hub for s in retained}, 0
    for source in sources:
        for part in blobs_of(source).glob("*.part") if source.hub not in hubs else ():
            freed += part.stat().st_size
            part.unlink(missing_ok=True)
    # Deleting the last revision deletes the whole repository, including partial files of a retained one, so one stays.
    nothing = CachedRevisionInfo("", cache_folder(), 0, frozenset(), frozenset(), 0)
    staying = {
        repo: replace(repo, revisions=repo.revisions | {nothing}) for repo in cache.repos if repo.repo_id in hubs
    }
    cache = replace(cache, repos=frozenset(staying.get(repo, repo) for repo in cache.repos))
    strategy = cache.delete_revisions(*expired)
    strategy.execute()
    for source in sources:
        for commit in expired:
            shutil.rmtree(blobs_of(source).with_name(FILES) / commit, ignore_errors=True)
    return freed + strategy.expected_freed_size
