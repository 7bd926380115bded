"""Stand-ins for parts of libraries that others import and hardly ever use: imported once something of them is used.

| others, in their modules              | while others are imported                 | once the part is imported |
|---------------------------------------|-------------------------------------------|---------------------------|
| import a module of such a part        | get a `Stand`                             | have the real one         |
| take a name from it                   | get a `Name`                              | have the real one         |
| use what is `known`                   | use that                                  | the same                  |
| use anything else                     | end all stand-ins: the part is imported then and there | |
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from operator import attrgetter
from types import ModuleType
from typing import Any

from models.import_hooks import Around


class Name:
    """Stands for what a module calls `name`, or for an attribute of that."""

    __slots__ = ("_module", "_name", "_stands")

    def __init__(self, stands: "StandIns", module: str, name: str) -> None:
        self._stands, self._module, self._name = stands, module, name

    def of(self, part: str) -> bool:
        return f"{self._module}.".startswith(f"{part}.")

    def real(self) -> Any:
        self._stands.end()
        return attrgetter(self._name)(import_module(self._module))

    def __getattr__(self, attribute: str) -> Any:
        """Meanwhile everything is there (a test compares); what it is, is seen when it is used."""
        if attribute.startswith("__"):  # asked of each object by who goes through modules
            raise AttributeError(attribute)
        if not self._stands.open:
            return getattr(self.real(), attribute)
        return self._stands.named(self._module, f"{self._name}.{attribute}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.real()(*args, **kwargs)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.real(),)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self.real())

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self.real())

    def __or__(self, other: Any) -> Any:  # in annotations
        return Any

    __ror__ = __getitem__ = __or__


class Stand(ModuleType):
    """Stands for a module."""

    def __init__(self, name: str, stands: "StandIns") -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__dict__["_stands"] = stands

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._stands.open:
            return self._stands.asked_for(self.__name__, name)
        return self._stands.asked_later(self.__name__, name)


class StandIns(MetaPathFinder):
    """Around the imports of others: `imports()`.

    Args:
        parts: modules; those beneath them belong to them.
        light: modules of the parts that are imported as they are, for they need nothing else of the part.
        known: what others use of the parts while they are imported, by its full name.
    """

    def __init__(
        self, parts: tuple[str, ...], light: tuple[str, ...] = (), known: Mapping[str, Callable[[], Any]] | None = None
    ) -> None:
        self.parts, self.light, self.known = parts, light, dict(known or {})
        self.open = False
        self.asked: list[tuple[str, str]] = []
        """What others took to be there: (module, name)."""
        self._hook = Around(frozenset(parts), self._imported)

    @contextmanager
    def imports(self) -> Iterator[None]:
        """Nothing changes if the first part is imported already."""
        if self.parts[0] in sys.modules:
            yield
            return
        if self._hook not in sys.meta_path:
            sys.meta_path.insert(0, self._hook)
        self.open = True
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        """From now on imports of the parts import them. Safe to call twice."""
        if not self.open:
            return
        self.open = False
        sys.meta_path.remove(self)
        for name, module in list(sys.modules.items()):
            if isinstance(module, Stand):
                del sys.modules[name]
                parent, _, child = name.rpartition(".")
                if parent in sys.modules and vars(sys.modules[parent]).get(child) is module:
                    delattr(sys.modules[parent], child)

    def named(self, module: str, name: str) -> Name:
        self.asked.append((module, name))
        return Name(self, module, name)

    def asked_for(self, module: str, name: str) -> Any:
        """Meanwhile."""
        known = self.known.get(f"{module}.{name}")
        return self.named(module, name) if known is None else known()

    def asked_later(self, module: str, name: str) -> Any:
        """Of a stand-in that somebody has kept."""
        return getattr(import_module(module), name)

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name in self.light:
            return self._light(name)
        if any(name == part or name.startswith(f"{part}.") for part in self.parts):
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Stand(spec.name, self)

    def exec_module(self, module: ModuleType) -> None:
        """A stand-in holds nothing."""

    def _light(self, name: str) -> ModuleSpec | None:
        """Found without its package, which is not imported."""
        top, *rest = name.split(".")[:-1]
        found = PathFinder.find_spec(top)
        folders = [f"{folder}/{'/'.join(rest)}" for folder in (found and found.submodule_search_locations) or ()]
        return PathFinder.find_spec(name, folders)

    @contextmanager
    def _imported(self, module: ModuleType) -> Iterator[None]:
        """Around the execution of a part."""
        for name in self.light:
            parent, _, child = name.rpartition(".")
            if parent == module.__name__ and name in sys.modules:
                setattr(module, child, sys.modules[name])
        yield
        for holder, attribute, name_ in names():
            if name_.of(module.__name__):
                with suppress(ImportError, AttributeError):  # parts that import each other: it is found when it is used
                    setattr(holder, attribute, name_.real())


def names() -> list[tuple[ModuleType, str, Name]]:
    """Every name in a module that stands for something: (module, attribute, name)."""
    return [
        (holder, attribute, value)
        for holder in list(sys.modules.values())
        for attribute, value in list((getattr(holder, "__dict__", None) or {}).items())
        if type(value) is Name
    ]
