"""The scopes that a request needs, from the route table. Other paths do not exist."""

import re
from collections.abc import Mapping

from starlette.routing import compile_path

from registry.base.wording import quoted
from registry.errors import NotFound
from runtime.http.errors import Dialect
from runtime.http.guard import foreign
from runtime.http.route import PUBLIC
from runtime.http.routes import ENDPOINTS, ROUTES
from tenants.caller import Scope

PAGES = frozenset(("/", "/docs", "/openapi.json", "/console"))
"""Public pages, which reveal nothing about this server's models."""
FOLDERS = ("/docs/assets/", "/console/")
"""Folders of paths that need no key. The console itself decides who may see a page."""
_SLASHES = re.compile("//+")
PATHS = frozenset(route.path for route in ROUTES)
_Methods = Mapping[str, frozenset[Scope]]
_BY_PATH: dict[str, dict[str, frozenset[Scope]]] = {}
for _route in ROUTES:
    _BY_PATH.setdefault(_route.path, {})[_route.method] = _route.scopes
_PATTERNS: list[tuple[re.Pattern[str], _Methods]] = [
    (compile_path(path)[0], methods) for path, methods in _BY_PATH.items() if "{" in path
]


def required_scopes(method: str, path: str) -> frozenset[Scope] | None:
    """The scopes of which a key needs at least one. None if no key is needed. Raises NotFound.

    If the path lacks the method, the scopes of all its methods, and the application answers 405.
    """
    if path.startswith(FOLDERS):
        return None
    method = "GET" if method == "HEAD" else method
    methods = _methods(method, path) or _methods(method, path.rstrip("/"))
    scopes = methods.get(method)
    if scopes is None and path in PAGES:
        return None
    if not methods:
        raise unknown_path_error(path)
    if scopes is None:
        scopes = PUBLIC if PUBLIC in methods.values() else frozenset[Scope]().union(*methods.values())
    return None if scopes == PUBLIC else scopes


def _methods(method: str, path: str) -> _Methods:
    """Methods of the first pattern that matches the path and has `method`. Empty if the path is unknown."""
    if path in _BY_PATH:
        return _BY_PATH[path]
    first: _Methods = {}
    for pattern, methods in _PATTERNS:
        if pattern.match(path):
            if method in methods:
                return methods
            first = first or methods
    return first


def dialect_of(path: str) -> Dialect:
    """The dialect of a path's errors until its body is read."""
    if path.startswith("/api/"):
        return Dialect.OLLAMA
    if path.startswith("/v1/messages/batches"):
        return Dialect.ANTHROPIC
    endpoint = ENDPOINTS.get(path)
    return Dialect.OPENAI if endpoint is None else endpoint.dialect


def _similar(path: str) -> str:
    """Advice for a path in capitals, or in the singular or plural instead of the other."""
    small = path.lower()
    others = (small, f"{small}s", small.removesuffix("s"))
    near = next((one for one in others if one in PATHS and one != path), None)
    return "" if near is None else f"Did you mean {near}?"


def unknown_path_error(path: str) -> NotFound:
    """The error for an unknown path. Suggests a path that differs only by slashes or its beginning."""
    single = _SLASHES.sub("/", path)
    if single != path and _methods("POST", single):
        advice = f"It is at {quoted(single)}: leave the last slash of the client's address out."
        return NotFound(f"There is no {quoted(path)} here. {advice}", code="unknown_path")
    stripped = single.rstrip("/")
    bare = stripped.removeprefix("/v1").removeprefix("/")
    others = (f"/v1/{bare}", f"/{bare}", stripped[stripped.rfind("/v1/") :], stripped[stripped.rfind("/api/") :])
    # the fleet's port lacks some of PATHS
    near = next((one for one in others if bare and one in PATHS and one != path), None)
    if near is None:
        advice = foreign.advice(stripped) or _similar(stripped) or "See /docs."
    else:
        advice = f"It is at {near}. Some clients' address ends in /v1, and others' does not: see docs/clients.md."
    return NotFound(f"There is no {quoted(path)} here. {advice}", code="unknown_path")
