"""Parts of a client's schema, which know their paths."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

Json = dict[str, Any]
Path = tuple[str | int, ...]


class SchemaError(ValueError):
    """A schema that is not in the language, with the path of the keyword and the fault."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(text)
        self.path = path


@dataclass(frozen=True, slots=True)
class Part:
    """A schema of the client's, with its path."""

    schema: Any
    path: Path

    def inside(self, *path: str | int) -> "Part":
        return Part(reduce(lambda node, key: node[key], path, self.schema), self.path + path)

    def has(self, name: str) -> bool:
        return isinstance(self.schema, Mapping) and name in self.schema

    def get(self, name: str, kind: type | tuple[type, ...], what: str) -> Any:
        """Return a keyword's value; None if it is absent. Raises SchemaError for another type."""
        value = self.schema.get(name)
        if value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
            raise SchemaError((*self.path, name), f"it must be {what}")
        return value


Parts = tuple[Part, ...]
"""Schemas that apply together."""


def dotted(path: Path) -> str:
    """Format a path for errors, such as `properties.age.anyOf[0]`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


def listed(part: Part, name: str) -> list[Part]:
    """Return the schemas in a keyword's list."""
    return [part.inside(name, index) for index in range(len(part.get(name, list, "a list of schemas") or ()))]


def counts(parts: Parts, least: str, most: str) -> tuple[int, int | None]:
    """Return the strictest values of two keywords for the least and the most of something; 0 and None without them."""
    return (
        max((_count(part, least) for part in parts if part.has(least)), default=0),
        min((_count(part, most) for part in parts if part.has(most)), default=None),
    )


def _count(part: Part, name: str) -> int:
    value = part.get(name, (int, float), "a whole number")
    if value is None or value < 0 or value != int(value):
        raise SchemaError((*part.path, name), "it must be a whole number of at least 0")
    return int(value)
