"""vLLM's request classes: what they refuse beyond vLLM's own checks, and how an error of theirs is worded.

They take integers of any size and infinite floats, but EngineCore's transport, msgpack, ends at 64 bits, and fails when
the request's state is registered already. They try every item of a list as each of its kinds (61 for the input of a
response) and note why it is none: 20,000 items that are numbers, 300 kB, keep the loop that feeds all streams for 30 s.
So numbers are bounded, and a list is refused at its first fault. vLLM answers with pydantic's records; here with words.
"""

import sys
import types
from collections.abc import Iterable, Sequence
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
"""Faults of a request that are described. Where a value may be of many kinds, the others say why it is none of them."""
_PREFIX = "Value error, "


class _Fast(FailFast):
    __hash__ = object.__hash__  # a union of types looks for equal ones


_FAST = _Fast()
_BOUNDS: dict[Any, tuple[Any, ...]] = {
    int: (Ge(-(2**63)), Le(2**63 - 1)),
    float: (Ge(-sys.float_info.max), Le(sys.float_info.max)),
}
_PATCHED: set[type] = set()
_OURS = (_FAST, *_BOUNDS[int], *_BOUNDS[float])


def patch_classes(routes: Iterable[Any]) -> None:
    """Bound the request classes of these routes, once. An application that is built afterwards uses them so."""
    for route in routes:
        for kind in get_type_hints(getattr(route, "endpoint", None) or object).values():
            if isinstance(kind, type):
                _patch_class(kind)


def _patch_class(kind: type) -> None:
    """Bound a model or a dataclass of pydantic's; other classes stay as they are."""
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
    """Describe faults in words: for vLLM's application, before its first request."""
    app.add_exception_handler(RequestValidationError, _refused)
    app.add_exception_handler(ValidationError, _refused_part)
    app.middleware_stack = None  # it was made already, and is made again at the first request


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _answer(*describe(error.errors(), error.body))


async def _refused_part(_: Request, error: Exception) -> Response:
    """A message's parts are read late, each by itself, so vLLM does not say which message one belongs to."""
    assert isinstance(error, ValidationError)
    errors = [{**fault, "loc": ("body", *_of_part(fault["loc"]))} for fault in error.errors()]
    return _answer(*describe(errors, None))


def _of_part(where: Sequence[str | int]) -> Sequence[str | int]:
    number, *inside = where or (0,)
    return [f"content[{number}]", *inside[1:]] if isinstance(number, int) else where


def _answer(message: str, param: str | None) -> Response:
    body = {"message": message, "type": "BadRequestError", "param": param, "code": 400}
    return JSONResponse({"error": body}, status_code=400)


def describe(errors: Sequence[Any], body: Any) -> tuple[str, str | None]:
    """What is wrong, and the first field of it. A field of several types has an error for each; they are one fault."""
    faults: dict[str, list[str]] = {}
    param: str | None = None
    for error in errors:
        place = _place(error["loc"], body, is_missing=error["type"] == "missing")
        param = param or getattr(error.get("ctx", {}).get("error"), "parameter", None) or place or None
        faults.setdefault(place, []).append(str(error["msg"]).removeprefix(_PREFIX).removesuffix("."))
    texts = [_text(place, words) for place, words in faults.items()]
    return " ".join(texts[:MOST]) or "The request cannot be read.", param


def _text(place: str, words: Sequence[str]) -> str:
    reasons = "; or: ".join(dict.fromkeys(words))
    return f"{place}: {reasons}." if place else f"{reasons}."


def _place(where: Sequence[str | int], body: Any, *, is_missing: bool) -> str:
    """The path of a fault, as `messages[0].role`.

    Pydantic's path also has names of its own types: only what the body has is kept. Without a body, all of it is.
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
