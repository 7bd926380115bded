"""Styles, scripts and what of others is shipped: a few files, read once, never a path of a request on the disk."""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from mimetypes import guess_type
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from console.rendering import FOLDER, HEADERS
from registry.base.wording import quoted
from registry.errors import NotFound

SERVED = (".css", ".js", ".svg", ".LICENSE")


@dataclass(frozen=True, slots=True)
class File:
    data: bytes
    packed: bytes
    tag: str
    kind: str


@cache
def files() -> dict[str, Path]:
    """Names below `static/` to files; a page's script is `pages/SLUG.js`."""
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
