"""Compiled modules: without them a chat engine's imports take three times as long.

Python keeps them beside the sources, unless it is told not to (PYTHONDONTWRITEBYTECODE, common in containers) or may
not write there. Then every start compiles some 6,000 modules again: 32 s of CPU for vLLM's imports instead of 11 s. So
the server keeps them in a cache folder of its own; Python checks each against its source.
"""

import importlib.util
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

from registry.cache_folder import cache_folder, is_ours

HEAVY = ("torch", "transformers", "vllm")
"""Packages whose modules are most of what is imported."""
DONT_WRITE, PREFIX = "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"


def keep(environment: MutableMapping[str, str], cache: Path | None = None) -> Path | None:
    """Have processes that start with `environment` use a cache of compiled modules, where they would have none.

    Nothing changes when the packages are compiled already, when Python will do it by itself, or when the folder cannot
    be made safely. A PYTHONPYCACHEPREFIX of the user's stands. Returns the folder that is used.
    """
    if PREFIX in environment or sys.pycache_prefix is not None or not any(_uncompiled(name) for name in HEAVY):
        return None
    folder = cache or cache_folder("bytecode")
    if not is_ours(folder):
        return None
    environment[PREFIX] = str(folder)
    environment.pop(DONT_WRITE, None)
    return folder


def _uncompiled(package: str) -> bool:
    """Whether a package is there without compiled modules, and Python will not write them beside it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None or Path(importlib.util.cache_from_source(spec.origin)).exists():
        return False
    return sys.dont_write_bytecode or not os.access(Path(spec.origin).parent, os.W_OK)
