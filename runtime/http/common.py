"""What the typed endpoints share: bodies as msgspec structs, and a model's name where a dialect may leave it out.

A struct is the one definition of a body: it decodes, checks, and shows in the OpenAPI document.
"""

import re
from typing import Any, TypeVar

import msgspec

from registry.errors import BadRequest
from registry.recipes.definition import Task
from runtime.gateway.core import Chosen, Gateway
from runtime.http.working import unreadable

T = TypeVar("T", bound=msgspec.Struct)

# msgspec gives the place of a fault only inside its message; it is read for `param` and for nothing else.
_PLACE = re.compile(r"(?:at `\$\.?([^`]*)`|field `([^`]+)`)")


def decode(body: bytes, kind: type[T]) -> T:
    """JSON bytes as `kind`. Raises BadRequest that says what is wrong and where."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise unreadable(error) from None


def convert(data: dict[str, Any], kind: type[T]) -> T:
    """An object that was parsed already as `kind`. Raises BadRequest as `decode` does."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise invalid(error) from None


def invalid(error: msgspec.ValidationError) -> BadRequest:
    text = str(error)
    places = [inside or field for inside, field in _PLACE.findall(text)]
    return BadRequest(f"{text}.", param=".".join(dict.fromkeys(p for p in reversed(places) if p)) or None)


def unknown_fields(data: dict[str, Any], kind: type[msgspec.Struct]) -> list[str]:
    """The keys of `data` that `kind` does not have."""
    return [key for key in data if key not in kind.__struct_fields__]


def choose_or_only(gateway: Gateway, name: str | None, task: Task) -> Chosen:
    """The named model, or, where the dialect has no name for one, the only model of its task.

    Raises BadRequest when no name was given and there is not exactly one such model: there is no default.
    """
    if name is not None:
        return gateway.choose(name, task)
    ids = [recipe.id for recipe in gateway.recipes if recipe.task is task]
    if len(ids) != 1:
        there = ", ".join(ids) or "none"
        raise BadRequest(
            f"Say which model: 'model' may be left out only where there is exactly one for {task.value}. "
            f"There are: {there}.",
            param="model",
        )
    return gateway.choose(ids[0], task)
