"""Something to do around the execution of one module, when it is imported."""

import importlib.abc
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

Aside = Callable[[ModuleType], AbstractContextManager[None]]


class Around(importlib.abc.MetaPathFinder):
    """For sys.meta_path. Modules that do not come from a source file are imported as they would be without it.

    Args:
        names: of the modules.
        aside: makes what is entered before and left after such a module's code has run.
    """

    def __init__(self, names: frozenset[str], aside: Aside) -> None:
        self._names, self._aside = names, aside

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in self._names else None
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path, self._aside)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, aside: Aside) -> None:
        super().__init__(name, path)
        self._aside = aside

    def exec_module(self, module: ModuleType) -> None:
        with self._aside(module):
            super().exec_module(module)
