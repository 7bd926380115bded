"""Answers of the console, and the JSON that it takes."""

from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from console.rendering import HEADERS
from registry.base.json import NOT_JSON
from registry.errors import BadRequest

JSON = "application/json"
FRESH = {**HEADERS, "Cache-Control": "no-store"}


async def read_json(request: Request) -> Mapping[str, object]:
    """A JSON object, or BadRequest. Its size and pace are bounded before."""
    try:
        return msgspec.json.decode(await request.body(), type=dict[str, object])
    except NOT_JSON:
        raise BadRequest("Send a JSON object.") from None


def redirect_to(where: str) -> Response:
    return RedirectResponse(where, 303, headers=HEADERS)


def html_answer(text: str, status: int = 200) -> Response:
    return HTMLResponse(text, status, headers=FRESH)


def json_object(value: Mapping[str, object]) -> Response:
    return Response(msgspec.json.encode(value), headers=FRESH, media_type=JSON)


def address(request: Request) -> str:
    """This server as the browser called it, without a slash at its end."""
    below = str(request.scope.get("app_root_path", ""))
    return f"{request.url.scheme}://{request.url.netloc}{below}"


def is_secure(request: Request) -> bool:
    """Did the browser come by TLS, to this server or to the first of several proxies?"""
    first = request.headers.get("x-forwarded-proto", "").partition(",")[0]
    return "https" in (request.url.scheme, first.strip().lower())
