"""Reading a request of one dialect for the other one: every field is carried, known to be of no matter, or refused."""

from collections.abc import Mapping
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


def refuse_others(body: Mapping[str, Any], carried: frozenset[str], harmless: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises BadRequest for a field that is not carried, unless its value changes no answer."""
    for name, value in body.items():
        if value is None or name in carried:
            continue
        if name not in harmless or value not in harmless[name]:
            raise unsupported(name)


def objects(value: object, param: str) -> list[tuple[str, Json]]:
    """A list's items with where they are."""
    if not isinstance(value, list):
        raise wrong(param, "a list")
    found = []
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise wrong(f"{param}[{index}]", "an object")
        found.append((f"{param}[{index}]", item))
    return found


def text(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise wrong(param, "a string")
    return value


def mapping(value: object, param: str) -> Json:
    if not isinstance(value, dict):
        raise wrong(param, "an object")
    return value
