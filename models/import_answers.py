"""What transformers works out anew in each process that imports it, kept in a file of the user's cache folder.

| question                                 | how transformers answers it       | kept while                      |
|------------------------------------------|------------------------------------|---------------------------------|
| which names are in which of its models   | reads its 2,500 model files, twice | no file's size or time of       |
|                                          |                                    | change is another (as byte code) |
| which package is of which distribution   | reads all distributions' records   | no distribution is another      |

A chat slot and an embedding slot each spend a tenth of their imports on this (docs/performance.md). Where the folder
cannot be written safely, or a file does not hold what it should, the library's own functions answer.
"""

import hashlib
import importlib.metadata
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from models.import_hooks import Around
from registry.cache_folder import cache_folder, is_ours

Structure = Mapping[frozenset[str], Mapping[str, set[str]]]
"""Needed back ends -> module -> the names that it exports."""


@contextmanager
def kept() -> Iterator[None]:
    """Imports of transformers inside use what is kept, and keep what they had to work out."""
    finder = Around(frozenset({"transformers.utils.import_utils"}), _answered)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def answer(name: str, of: object, ask: Callable[[], Any]) -> Any:
    """The kept answer to `name`, if it was given for the same `of`; else `ask()`, kept for the next time.

    Both are what JSON can hold.
    """
    file = _file(name)
    if file is None:
        return ask()
    with suppress(OSError, ValueError, KeyError, TypeError):
        document = json.loads(file.read_bytes())
        if document["of"] == of:
            return document["answer"]
    found = ask()
    with suppress(OSError):
        _write(file, {"of": of, "answer": found})
    return found


def _file(name: str) -> Path | None:
    """One for each installation; None where it could not be kept safely."""
    try:
        folder = cache_folder("imports")
    except RuntimeError:
        return None
    return folder / f"{name}-{hashlib.sha256(sys.prefix.encode()).hexdigest()[:12]}.json" if is_ours(folder) else None


def _write(file: Path, document: object) -> None:
    """In one step: several slots may do it at once."""
    descriptor, temporary = tempfile.mkstemp(dir=file.parent)
    try:
        with open(descriptor, "w") as out:
            json.dump(document, out)
        os.replace(temporary, file)
    except OSError:
        os.unlink(temporary)
        raise


@contextmanager
def _answered(module: ModuleType) -> Iterator[None]:
    asked = importlib.metadata.packages_distributions
    importlib.metadata.packages_distributions = lambda: packages_distributions(asked)
    try:
        yield
    finally:
        importlib.metadata.packages_distributions = asked
    if hasattr(module, "define_import_structure"):
        setattr(module, "define_import_structure", import_structures(module.define_import_structure))  # noqa: B010


def packages_distributions(ask: Callable[[], Mapping[str, list[str]]]) -> Mapping[str, list[str]]:
    """importlib.metadata's answer: import name -> names of distributions."""
    records = [record for folder in sys.path for record in _records(folder or ".")]
    kept: Mapping[str, list[str]] = answer("packages", records, lambda: dict(ask()))
    return kept


def _records(folder: str) -> list[list[str | int]]:
    """The records of distributions in a folder of the path, with their times of change."""
    try:
        with os.scandir(folder) as found:
            entries = [entry for entry in found if entry.name.endswith((".dist-info", ".egg-info"))]
            return sorted([entry.path, entry.stat().st_mtime_ns] for entry in entries)
    except OSError:  # an archive, or nothing
        return []


def import_structures(ask: Callable[..., Structure]) -> Callable[..., Structure]:
    """`ask`: transformers' define_import_structure. Its answer for the folder of all models is kept, no other."""

    @cache
    def all_models(folder: str) -> list[Any]:
        found: list[Any] = answer("models", fingerprint(folder), lambda: _as_lists(ask(folder)))
        return found

    def define_import_structure(module_path: str | Path, prefix: str | None = None) -> Structure:
        path = Path(module_path)
        folder = path.parent if path.name == "__init__.py" else path
        if folder.parts[-2:] != ("transformers", "models"):
            return ask(module_path, prefix)
        before = "" if prefix is None else f"{prefix}."
        return {
            frozenset(needs): {before + module: set(names) for module, names in modules.items()}
            for needs, modules in all_models(str(folder))
        }

    return define_import_structure


def _as_lists(structure: Structure) -> list[Any]:
    return [
        [sorted(needs), {module: sorted(names) for module, names in modules.items()}]
        for needs, modules in structure.items()
    ]


def fingerprint(folder: str) -> str:
    """Changes with the name, size or time of change of any Python file under `folder`."""
    digest = hashlib.sha256(folder.encode())
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            if name.endswith(".py"):
                found = os.stat(f"{root}/{name}")
                digest.update(f"{root}/{name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()
