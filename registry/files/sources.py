"""Folders that sources name, and folders that are mistaken for adapters."""

import importlib.util
import re
from collections.abc import Collection
from pathlib import Path

from registry.errors import Unfit
from registry.recipes.source import PackageSource, PathSource


def locate(source: PathSource | PackageSource) -> Path:
    """Return the folder that `source` names. Raises Unfit when it does not exist.

    Nothing is imported: find_spec imports the parents of a dotted name, and the client may be untrusted.
    """
    if isinstance(source, PathSource):
        path = Path(source.path)
        if not _is_folder(path):
            raise Unfit(f"there is no folder {path}", code="source_not_found")
        return path
    package, *below = source.package.split(".")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None  # a name that is none
    if spec is None or not spec.submodule_search_locations:
        raise Unfit(
            f"there is no installed package '{source.package}'; install it, or correct the name",
            code="source_not_found",
        )
    candidates = [Path(root, *below, source.inside) for root in spec.submodule_search_locations]
    for path in candidates:
        if _is_folder(path):
            return path
    raise Unfit(f"package '{source.package}' has no folder '{source.inside}'", code="source_not_found")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # too long a name, or one with a zero in it
        return False


def something_else(names: Collection[str]) -> str | None:
    """Describe a folder without an adapter by its file names; None: unknown."""
    if "adapter_config.json" in names:
        return None
    checkpoints = [name for name in names if re.fullmatch(r"checkpoint-\d{1,12}", name)]
    if checkpoints:
        last = max(checkpoints, key=lambda name: int(name.partition("-")[2]))
        return f"This is a trainer's output folder. The adapter is in {last}: give that folder."
    if "config.json" in names and any(name.endswith((".safetensors", ".bin", ".gguf")) for name in names):
        return "This is a full model, not an adapter: add it with 'roundhouse models add', or give it a recipe."
    return None
