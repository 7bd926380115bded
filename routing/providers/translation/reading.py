"""Reads one dialect for another: each field is translated, ignored or refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from registry.errors import BadRequest

Json = dict[str, Any]


def unsupported(param: str, why: str = "") -> BadRequest:
    return BadRequest(
        f"'{param}' cannot be carried to this model, whose provider speaks another dialect{why and f': {why}'}. "
        "Leave it out, or name another model.",
        param=param,
        code="unsupported_value",
    )


def wrong(param: str, what: str) -> BadRequest:
    return BadRequest(f"'{param}' must be {what}.", param=param)


@dataclass(frozen=True, slots=True)
class Fields:
    """Rules for the fields of one kind of object. Unknown fields are refused, too.

    Args:
        carried: have a counterpart.
        left_out: do not change the answer: hints for caches, records, remains of earlier answers.
        only: omitted with one of these values, refused with any other.
        refused: the remaining fields of the client's dialect.
    """

    carried: frozenset[str]
    left_out: frozenset[str]
    only: Mapping[str, tuple[Any, ...]]
    refused: frozenset[str]

    def check(self, values: Mapping[str, Any], where: str = "") -> None:
        """Raise BadRequest for a field that cannot be translated."""
        for name, value in values.items():
            if value is None or name in self.carried or name in self.left_out:
                continue
            if name not in self.only or value not in self.only[name]:
                raise unsupported(f"{where}.{name}" if where else name)

    def of(self, value: object, where: str) -> Json:
        """Return an object with these fields. Raises BadRequest."""
        values = mapping(value, where)
        self.check(values, where)
        return values


def fields(
    carried: str, left_out: str = "", refused: str = "", only: Mapping[str, tuple[Any, ...]] | None = None
) -> Fields:
    """Build rules from names separated by spaces."""
    return Fields(frozenset(carried.split()), frozenset(left_out.split()), only or {}, frozenset(refused.split()))


def objects(value: object, param: str) -> list[tuple[str, Json]]:
    """Return the items of a list, with their paths."""
    if not isinstance(value, list):
        raise wrong(param, "a list")
    items = []
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise wrong(f"{param}[{index}]", "an object")
        items.append((f"{param}[{index}]", item))
    return items


def present(values: Mapping[str, Any], *names: str) -> Json:
    """Return the named fields that have a value."""
    return {name: values[name] for name in names if values.get(name) is not None}


def text(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise wrong(param, "a string")
    return value


def mapping(value: object, param: str) -> Json:
    if not isinstance(value, dict):
        raise wrong(param, "an object")
    return value
