"""Find a model's files on this machine, and their revision.

    path      relative paths start at the recipe file's folder
    package   found without importing the package
    hub       at its pinned revision from huggingface_hub's cache, or downloaded; HF_ENDPOINT and HF_TOKEN apply

Weights are accepted only as safetensors (or in CTranslate2's format), because reading a pickle can run code.
"""

import hashlib
import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from registry.errors import Unavailable, Unfit
from registry.files.sources import TIMEOUT, bounded_progress, endpoint, hub_errors, locate
from registry.recipes.fields import GgufSource, HubSource, PathSource, Source

WHOLE = 256 * 2**20
"""Folders of up to this many bytes are read in full (all-MiniLM-L6-v2, 87 MB: about a tenth of a second)."""
BLOCK = 2**20
BLOCKS = 64
"""MiB read of larger files, in addition to the size: the first, the last, and 62 spread evenly between."""
COUNTED = (".safetensors", ".json", ".txt", ".bin", ".model", ".jinja", ".tiktoken", ".py", ".gguf")


def digest(folder: Path) -> str:
    """Return 64 hex digits over names, sizes and content of all files that an engine may use.

    Two folders of less than 256 MiB have the same digest exactly if they have the same files. For larger ones, two sets
    of weights that differ in only a few places may have the same digest; pin such models by hub revision. Cached by
    names, sizes, inodes and times. These include ctime, since `cp -p`, `rsync -t` and image builders set mtime.
    """
    return _digest(folder.resolve(), _facts(folder))


def _facts(folder: Path) -> tuple[tuple[str, int, int, int, int], ...]:
    files = sorted(file for file in _files(folder) if file.suffix in COUNTED and file.is_file())
    stats = [(str(file.relative_to(folder)), file.stat()) for file in files]
    return tuple((name, stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats)


def _files(folder: Path) -> Iterator[Path]:
    """Iterate over the files below a folder, also behind links to folders (`1_Pooling`), as the libraries read them."""
    seen = set[str]()
    for place, inner, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:  # a link to a folder above it
            inner.clear()
            continue
        seen.add(real)
        inner.sort()
        yield from (Path(place, name) for name in names)


def stamp(folder: Path) -> Hashable:
    """Return a value that differs after any change of the files, even one that was undone.

    Includes the links on the way to the folder, because another folder may be put in its place and taken away again.
    """
    links = [link.lstat() for link in (folder, *folder.parents) if link.is_symlink()]
    return _facts(folder), tuple((link.st_ino, link.st_ctime_ns) for link in links)


@lru_cache(maxsize=256)
def _digest(folder: Path, facts: tuple[tuple[str, int, int, int, int], ...]) -> str:
    whole = sum(size for _, size, *_ in facts) <= WHOLE
    total = hashlib.sha256()
    for name, size, *_ in facts:
        total.update(f"{name}\0{size}\0".encode())
        with (folder / name).open("rb") as stream:
            if whole or size <= BLOCKS * BLOCK:
                total.update(hashlib.file_digest(stream, "sha256").digest())
            else:
                for step in range(BLOCKS):
                    stream.seek((size - BLOCK) * step // (BLOCKS - 1))
                    total.update(stream.read(BLOCK))
    return total.hexdigest()


Fetched = Callable[[int, int | None], None]
"""Called in other threads during a download, with the bytes received and the total if known."""

INCLUDED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.py", "model.bin", "README.md")
"""Patterns of files to download. Code is included: it is small, and runs only with engine.flags.trust_remote_code."""
EXCLUDED = ("onnx/*", "openvino/*", "original/*", "consolidated*", "coreml/*", "model.fp*", "adapter_model*")
"""Duplicates of the weights: for other libraries, in other precisions (6 GB in whisper-large-v3), or as trained."""


def resolve(source: Source, base_dir: Path, *, download: bool = True, most: int | None = None) -> Path:
    """Return the folder with the model's files. Blocks while downloading.

    Args:
        source: from the recipe.
        base_dir: the recipe file's folder, to which relative paths refer.
        download: False to look only in the local cache and return at once.
        most: bytes that may be downloaded; None for any number.

    Raises:
        SurplusBytes: more than `most` bytes came.
        Unfit: a folder or package is missing, or the repository has no weights that may be read.
        NotFound: the hub does not know the repository or the revision, or denies access.
        Unavailable: the hub does not answer, or the files are not in the cache and `download` is False.
    """
    if isinstance(source, HubSource):
        return _from_hub(source, download, most)
    if isinstance(source, PathSource):
        path = Path(os.path.expanduser(source.path))
        return locate(PathSource(path=str(base_dir / path)))  # links stay, so that each load follows them
    return locate(source)


def revision(source: Source, path: Path) -> str:
    """Return the hub's commit, or 12 hex digits of the content's digest for other sources."""
    if isinstance(source, GgufSource) and len(path.parent.name) == 40:
        return path.parent.name
    if isinstance(source, HubSource) and len(path.name) == 40:
        return path.name
    return digest(path)[:12]


def _from_hub(source: HubSource, download: bool, most: int | None) -> Path:
    from huggingface_hub import snapshot_download

    where = f"'{source.hub}' at revision '{source.revision}'"
    try:
        with hub_errors(source):
            folder = snapshot_download(
                source.hub,
                revision=source.revision,
                allow_patterns=[source.file] if isinstance(source, GgufSource) else list(INCLUDED),
                ignore_patterns=None if isinstance(source, GgufSource) else list(EXCLUDED),
                endpoint=endpoint(),
                etag_timeout=TIMEOUT,
                local_files_only=not download,
                tqdm_class=None if most is None else bounded_progress(most),
            )
    except Unavailable:
        if download:
            raise
        raise Unavailable(f"{where} is not downloaded yet.", code="source_not_downloaded") from None
    except OSError as error:
        raise Unavailable(
            f"{where} could not be stored: {error.strerror or error}. Make room, or point HF_HOME to another disk.",
            code="source_not_stored",
        ) from error
    path = Path(folder)
    if isinstance(source, GgufSource):
        return _folder_of_file(source, path)
    if not any(path.glob("*.safetensors")) and not (path / "model.bin").is_file():
        raise Unfit(
            f"{where} has no weights as safetensors (nor a CTranslate2 model.bin), and pickles are never read.",
            code="bad_weights",
        )
    return path


FILES = "ggufs"
"""Folder in a repository's cache with a folder for each added GGUF file."""


def _folder_of_file(source: GgufSource, snapshot: Path) -> Path:
    """Return a folder with only a link to this file, because the repository may have others of the same model."""
    if not (snapshot / source.file).is_file():
        raise Unavailable(f"{source.file} of '{source.hub}' is not downloaded yet.", code="source_not_downloaded")
    folder = snapshot.parent.parent / FILES / snapshot.name / source.file.replace("/", "--")
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (folder / Path(source.file).name).symlink_to((snapshot / source.file).resolve())
    return folder
