"""The console's templates, static files, number formats and headers."""

import gzip
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from mimetypes import guess_type
from pathlib import Path
from typing import NamedTuple

import humanize
import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from registry.base.json import NOT_JSON
from registry.base.wording import plain, quoted
from registry.errors import BadRequest, NotFound


class Vendored(NamedTuple):
    package: str
    """The name on npm."""
    version: str
    license: str
    sha256: str


VENDORED = {
    "htmx.min.js": Vendored(
        "htmx.org", "4.0.1", "htmx.LICENSE", "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"
    ),
    "uPlot.iife.min.js": Vendored(
        "uplot", "1.6.32", "uPlot.LICENSE", "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
    ),
    "uPlot.min.css": Vendored(
        "uplot", "1.6.32", "uPlot.LICENSE", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"
    ),
}
"""`npm pack PACKAGE@VERSION` downloads the package. The file is below `package/dist`."""


SERVED = (".css", ".js", ".svg", ".LICENSE")


@dataclass(frozen=True, slots=True)
class File:
    data: bytes
    packed: bytes
    tag: str
    kind: str


@cache
def files() -> dict[str, Path]:
    """Map names below `static/` to files. A page's script is `pages/SLUG.js`."""
    static = FOLDER / "static"
    by_path = {str(path.relative_to(static)): path for path in static.rglob("*") if path.suffix in SERVED}
    return by_path | {f"pages/{path.parent.name}.js": path for path in (FOLDER / "pages").glob("*/page.js")}


@cache
def _read(name: str) -> File:
    data = files()[name].read_bytes()
    kind = "text/javascript" if name.endswith(".js") else guess_type(name)[0] or "text/plain"
    return File(data, gzip.compress(data, mtime=0), f'"{hashlib.sha256(data).hexdigest()[:16]}"', kind)


async def static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in files():
        raise NotFound(f"There is no {quoted(name)} here.", code="unknown_path")
    file = _read(name)
    headers = {**HEADERS, "ETag": file.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.packed, headers={**headers, "Content-Encoding": "gzip"}, media_type=file.kind)
    return Response(file.data, headers=headers, media_type=file.kind)


FOLDER = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "media-src 'self' blob:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(self)",
}
"""Pages have no inline scripts or styles, load nothing from other hosts, and cannot be framed."""


def size(count: float) -> str:
    """Format bytes: 1.2 GiB."""
    return humanize.naturalsize(count, binary=True, format="%.1f")


def seconds(value: float | None) -> str:
    """Format a duration: 12.3 ms, 1.2 s, 3 min."""
    if value is None:
        return "-"
    if value < 0.9995:  # what is more is rounded to 1.0 s
        return f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value * 1e3:.0f} ms"
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min"


def money(value: float | None) -> str:
    """Format money: 0.0123, 5.00, 12.30. Small sums have up to six decimals, like the database, and at least two."""
    if value is None:
        return "-"
    whole, _, decimals = f"{value:,.{2 if value >= 10 else 6}f}".partition(".")
    return f"{whole}.{decimals.rstrip('0'):0<2}"


def moment(value: float) -> str:
    """Format a time: 2026-11-23 14:00, in UTC like hourly sums."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(value))


def instant(value: float) -> str:
    """Format a time precisely: 2026-11-23 14:05:09.120 UTC."""
    whole = round(value, 3)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(whole))}.{round(whole % 1 * 1e3):03d} UTC"


def ago(moment: float | None) -> str:
    """Format a time relative to now: 3 minutes ago, or 3 minutes from now, as for deadlines and forecasts."""
    if not moment:
        return "never"
    passed = time.time() - moment
    return humanize.naturaltime(abs(passed), future=passed < 0)


def count(value: float) -> str:
    return f"{value:,.0f}"


templates = Environment(
    loader=FileSystemLoader([FOLDER / "templates", FOLDER / "pages"]),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
templates.filters.update(size=size, seconds=seconds, ago=ago, count=count, money=money, moment=moment, instant=instant)
templates.filters["amount"] = partial(plain, form=",.6f")


JSON = "application/json"
FRESH = {**HEADERS, "Cache-Control": "no-store"}


async def read_json(request: Request) -> Mapping[str, object]:
    """Return the JSON object in a body, whose size and pace were bounded before. Raises BadRequest."""
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
    """Return the address that the browser used for this server, without a trailing slash."""
    below = str(request.scope.get("app_root_path", ""))
    return f"{request.url.scheme}://{request.url.netloc}{below}"


def is_secure(request: HTTPConnection) -> bool:
    """Whether the browser used TLS, to this server or to the first of several proxies."""
    first = request.headers.get("x-forwarded-proto", "").partition(",")[0]
    return "https" in (request.url.scheme, first.strip().lower())
