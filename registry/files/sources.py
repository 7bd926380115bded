"""Where a source lies on this machine."""

import importlib.util
from pathlib import Path

from registry.errors import Unfit
from registry.recipes.definition import PackageSource, PathSource


def locate(source: PathSource | PackageSource) -> Path:
    """The folder that `source` names, without importing the package itself. Unfit when it is not there."""
    if isinstance(source, PathSource):
        path = Path(source.path)
        if not path.is_dir():
            raise Unfit(f"there is no folder {path}", code="source_not_found")
        return path
    try:
        spec = importlib.util.find_spec(source.package)
    except (ImportError, ValueError):
        spec = None  # a parent that is missing, or a name that is none
    if spec is None or not spec.submodule_search_locations:
        raise Unfit(
            f"there is no installed package '{source.package}'; install it, or correct the name",
            code="source_not_found",
        )
    found = [Path(root) / source.inside for root in spec.submodule_search_locations]
    for path in found:
        if path.is_dir():
            return path
    raise Unfit(f"package '{source.package}' has no folder '{source.inside}'", code="source_not_found")
