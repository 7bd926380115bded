"""What is wrong with a request that vLLM's request classes cannot read, in words: vLLM tells pydantic's own records."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

MOST = 2
"""Places of one request that are told. Where a thing may be of many kinds, the others say why it is none of those."""
_PREFIX = "Value error, "


def patch(app: FastAPI) -> None:
    """vLLM's application, before its first request."""
    app.add_exception_handler(RequestValidationError, _refused)
    app.add_exception_handler(ValidationError, _refused_part)
    app.middleware_stack = None  # it was made already, and is made again at the first request


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _answer(*describe(error.errors(), error.body))


async def _refused_part(_: Request, error: Exception) -> Response:
    """A message's parts are read late, each by itself: of which message one is, is not told."""
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
    """What is wrong, and the first place of it. A field of several types has an error for each: they are one place."""
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
    """`messages[0].role`. Of pydantic's way only what the body has: the rest are names of its own types. All of it
    where no body is known."""
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
