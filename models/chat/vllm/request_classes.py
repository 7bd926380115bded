"""Add checks to vLLM's request classes, and describe their errors in words.

They accept integers of any size and infinite floats, but EngineCore's transport, msgpack, supports only 64 bits, and
fails after the request's state is registered. They try every item of a list as each of its kinds (61 for the input of a
response) and record why it is none: 20,000 items that are numbers, 300 kB, block the loop that feeds all streams for
30 s. So numbers are bounded, and a list is refused at its first fault. vLLM would answer with pydantic's records.
"""

import sys
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Le
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, FailFast, ValidationError
from pydantic.dataclasses import is_pydantic_dataclass, rebuild_dataclass
from starlette.responses import JSONResponse, Response

MOST = 2
"""Maximum faults of a request that are described. For a value of several possible kinds, more would not help."""
KINDS = ("role", "type")
"""Fields that determine the kind of an object."""
Place = tuple[str | int, ...]
MOST_REASONS = 4
_PREFIX = "Value error, "


class _Fast(FailFast):
    __hash__ = object.__hash__  # unions of types compare their members


_FAST = _Fast()
_BOUNDS: dict[Any, tuple[Any, ...]] = {
    int: (Ge(-(2**63)), Le(2**63 - 1)),
    float: (Ge(-sys.float_info.max), Le(sys.float_info.max)),
}
_PATCHED: set[type] = set()
_OURS = (_FAST, *_BOUNDS[int], *_BOUNDS[float])


def patch_classes(routes: Iterable[Any]) -> None:
    """Bound the request classes of these routes, once. Applications built afterwards use the bounded classes."""
    for route in routes:
        for kind in get_type_hints(getattr(route, "endpoint", None) or object).values():
            if isinstance(kind, type):
                _patch_class(kind)


def _patch_class(kind: type) -> None:
    """Bound a model or dataclass of pydantic; leave other classes unchanged."""
    if kind in _PATCHED:
        return
    _PATCHED.add(kind)
    if issubclass(kind, BaseModel):
        for field in kind.model_fields.values():
            field.annotation = _bounded(field.annotation)
        kind.model_rebuild(force=True)
    elif is_pydantic_dataclass(kind):
        for name, inner in kind.__dataclass_fields__.items():
            inner.type = _bounded(kind.__pydantic_fields__[name].annotation)
        rebuild_dataclass(kind, force=True)


def _bounded(annotation: Any) -> Any:
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation in _BOUNDS:
        return Annotated[annotation, *_BOUNDS[annotation]]
    if isinstance(annotation, type) and annotation.__module__.startswith("vllm."):
        _patch_class(annotation)
    if origin is list:
        return Annotated[list[_bounded(inner[0])], _FAST]  # type: ignore[misc]
    if origin is dict:
        return dict[inner[0], _bounded(inner[1])]  # type: ignore[misc,valid-type]
    if origin in (Union, types.UnionType):
        return reduce(or_, (_bounded(one) for one in inner))
    if origin is Annotated and not any(one is ours for one in annotation.__metadata__ for ours in _OURS):
        return Annotated[(_bounded(inner[0]), *annotation.__metadata__)]
    return annotation


def patch_errors(app: FastAPI) -> None:
    """Make vLLM's application describe faults in words. Call it before the first request."""
    app.add_exception_handler(RequestValidationError, _refused)
    app.add_exception_handler(ValidationError, _refused_part)
    app.middleware_stack = None  # already built; rebuilt at the first request


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    parts = [{**fault, "loc": fault["loc"][1:]} for fault in errors]
    if all(fault["loc"] and isinstance(fault["loc"][0], int) for fault in parts):
        return _answer(*describe_part(parts, error.body))
    return _answer(*describe(errors, error.body))


async def _refused_part(request: Request, error: Exception) -> Response:
    assert isinstance(error, ValidationError)
    return _answer(*describe_part(error.errors(), await request.json()))


def describe_part(errors: Sequence[Any], body: Any) -> tuple[str, str | None]:
    """Describe faults of a message's parts or calls.

    They are validated late and separately, so vLLM does not say which message they belong to: it is the first with the
    wrong value in that place.
    """
    messages = body.get("messages") if isinstance(body, dict) else None
    faults = [
        {**fault, "loc": ("body", *_of_part(fault, messages if isinstance(messages, list) else ()))}
        for fault in of_their_kind(errors)
    ]
    return describe(faults, None)


def _of_part(fault: Mapping[str, Any], messages: Sequence[Any]) -> Sequence[str | int]:
    where, number = fault["loc"], None
    if where and isinstance(where[0], int):  # of a list of parts or calls; otherwise of one part
        number, where = where[0], where[1:]
    field = "tool_calls" if where and "ToolCall" in str(where[0]) else "content"
    inside = where if number is None else where[1:]
    holder = inside[:-1] if fault["type"] == "missing" else inside
    for index, message in enumerate(messages):
        parts = message.get(field) if isinstance(message, dict) else None
        for place, part in enumerate(parts) if isinstance(parts, list) else ():
            if number in (None, place) and _value(part, holder) == (fault.get("input"),):
                return [f"messages[{index}].{field}[{place}]", *inside]
    return fault["loc"] if number is None else [f"{field}[{number}]", *inside]


def _value(value: Any, path: Iterable[str | int]) -> tuple[Any] | None:
    """Return the value at a path, in a tuple; None if there is none. Skips pydantic's names of its own types."""
    for part in path:
        if not isinstance(value, dict):
            return None
        value = value.get(part, value)
    return (value,)


def of_their_kind(errors: Sequence[Any]) -> Sequence[Any]:
    """Return the faults that concern the kind of object that was sent.

    Pydantic reports faults for each possible kind of a value. If the `role` or `type` matches one kind, faults of the
    others are irrelevant; if it matches none, that is the fault. Among kinds without these fields, those whose required
    fields are all present count.
    """
    tagged = {error["loc"][:-1] for error in errors if error["type"] == "literal_error" and error["loc"][-1] in KINDS}
    of_a_kind = _without(errors, tagged)
    if any(error["loc"][: len(kind)] == kind for kind in tagged for error in of_a_kind):  # of none
        return [error for error in of_a_kind if error["loc"][:-1] not in tagged or error["loc"][-1] in KINDS]
    missing = {error["loc"][:-1] for error in of_a_kind if error["type"] == "missing"}
    return _without(of_a_kind, missing)


def _without(errors: Sequence[Any], kinds: Collection[Place]) -> Sequence[Any]:
    """Return the faults without those of these kinds, except for values that have no others."""
    of = [next((kind for kind in kinds if error["loc"][: len(kind)] == kind), None) for error in errors]
    values = {kind[:-1] for kind in kinds}
    others = {
        value
        for error, kind in zip(errors, of, strict=True)
        for value in values
        if kind is None and error["loc"][: len(value)] == value
    }
    return [error for error, kind in zip(errors, of, strict=True) if kind is None or kind[:-1] not in others]


def _answer(message: str, param: str | None) -> Response:
    body = {"message": message, "type": "BadRequestError", "param": param, "code": 400}
    return JSONResponse({"error": body}, status_code=400)


def describe(errors: Sequence[Any], body: Any) -> tuple[str, str | None]:
    """Describe the fault, with its first field. A field of several types has an error for each, but it is one fault."""
    faults: dict[str, list[str]] = {}
    param: str | None = None
    for error in of_their_kind(errors):
        place = _place(error["loc"], body, is_missing=error["type"] == "missing")
        param = param or getattr(error.get("ctx", {}).get("error"), "parameter", None) or place or None
        faults.setdefault(place, []).append(str(error["msg"]).removeprefix(_PREFIX).removesuffix("."))
    inside = [
        place for place in faults if place and any(other.startswith((f"{place}.", f"{place}[")) for other in faults)
    ]
    for place in inside:  # the kind with a fault inside is the one meant
        del faults[place]
    if param in inside:
        param = next(iter(faults))
    texts = [_text(place, words) for place, words in faults.items()]
    return " ".join(texts[:MOST]) or "The request cannot be read.", param


def _text(place: str, words: Sequence[str]) -> str:
    reasons = "; or: ".join(list(dict.fromkeys(words))[:MOST_REASONS])
    return f"{place}: {reasons}." if place else f"{reasons}."


def _place(where: Sequence[str | int], body: Any, *, is_missing: bool) -> str:
    """Format the path of a fault, such as `messages[0].role`.

    Pydantic's path also contains names of its own types, so only the parts found in the body are used. Without a body,
    all of it is used.
    """
    if body is None:
        return ".".join(map(str, where[1:]))
    path = ""
    for number, part in enumerate(where[1:], 2):
        last = is_missing and number == len(where)
        if isinstance(body, dict) and (part in body or last):
            path += f".{part}"
            body = body.get(part)
        elif isinstance(body, list) and isinstance(part, int) and part < len(body):
            path += f"[{part}]"
            body = body[part]
    return path.removeprefix(".")
