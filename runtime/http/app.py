"""Completes LitServe's application: our errors, and only documented paths."""

from collections.abc import Sequence
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Mount
from starlette.types import Scope

from registry.base.wording import quoted
from registry.errors import EngineFailed, MethodNotAllowed, NotFound, RoundhouseError
from registry.recipes.definition import Recipe
from runtime.http import pages
from runtime.http.bodies import fault_error, unreadable_error, words_of
from runtime.http.errors import error_response
from runtime.http.guard.access import FOLDERS, PAGES, dialect_of, unknown_path_error
from runtime.http.guard.foreign import ADVICE
from runtime.http.openapi import document
from runtime.http.routes import ENDPOINTS, INFERENCE_PATHS, ROUTES
from runtime.http.sending import DirectLayer, as_asgi

REMOVED_PATHS = {
    ("GET", path) for path in ("/", "/litserve/health", "/litserve/info", "/docs", "/docs/oauth2-redirect", "/redoc")
}
"""Pages of LitServe, and those of FastAPI, which load assets from other hosts. `POST /` is ours."""


UNREADABLE = (ValueError, RecursionError)
"""Causes of FastAPI's errors about a body that it reads itself. Its own text only names a position."""


def finish(app: FastAPI, recipes: Sequence[Recipe]) -> None:
    """Remove LitServe's pages, name the application, and map every error."""
    app.router.redirect_slashes = False  # `_without_slash` redirects without scheme and host
    app.title = "Roundhouse"
    app.version = "0.1.0"
    app.description = "Chat models with LoRA adapters, embeddings, rerankers and speech-to-text on one server."
    app.router.routes[:] = [
        route
        for route in app.router.routes
        if not any(
            (method, getattr(route, "path", "")) in REMOVED_PATHS for method in getattr(route, "methods", None) or ()
        )
    ]

    for route in app.router.routes:
        if isinstance(route, APIRoute) and route.path in INFERENCE_PATHS:
            route.app = as_asgi(route.endpoint)
    add_direct_layer(app)

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, ClientDisconnect):
            return Response(status_code=499)  # the client has left; without a handler a traceback would be logged
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        missing = isinstance(error, HTTPException) and error.status_code == 404
        if missing and (other := _without_slash(app, request)) is not None:
            response = error_response(_slash_error(request))
            response.status_code, response.headers["location"] = 307, other
            return response
        if isinstance(error, HTTPException) and error.status_code == 405:
            headers |= _allow_header(app, request)
            if request.method == "OPTIONS" and headers:
                return Response(status_code=204, headers=headers)
        response = error_response(_client_error(request, error, headers.get("Allow", "")), dialect_of(request.url.path))
        response.headers.update(headers)
        return response

    for kind in (RoundhouseError, RequestValidationError, HTTPException, ClientDisconnect, RecursionError, Exception):
        app.add_exception_handler(kind, answer)  # for the last one uvicorn logs the traceback
    pages.add(app)
    document(app, recipes)
    _check_scopes(app)


def add_direct_layer(app: FastAPI) -> None:
    """Answer paths with JSON bodies directly, bypassing the router. Call it before the first request."""
    handlers = {}
    for path in ENDPOINTS:
        scope = {"type": "http", "method": "POST", "path": path, "root_path": ""}
        chosen = next((route for route in app.router.routes if route.matches(scope)[0] is Match.FULL), None)
        if isinstance(chosen, APIRoute):
            handlers[path] = chosen.app
    app.user_middleware.append(Middleware(DirectLayer, handlers=handlers))


def _check_scopes(app: FastAPI) -> None:
    """Raises RuntimeError for a path without a scope in the route table."""
    known = {(route.method, route.path) for route in ROUTES} | {("GET", path) for path in PAGES}
    for route in app.router.routes:
        path = getattr(route, "path", "")
        if isinstance(route, Mount):
            unknown = [] if f"{path}/" in FOLDERS else ["any method"]
        else:
            methods = set(getattr(route, "methods", None) or ("any method",)) - {"HEAD"}
            unknown = [method for method in sorted(methods) if (method, path) not in known]
        if unknown:
            raise RuntimeError(f"{', '.join(unknown)} {path} has no scope: register it with @route.")


def _without_slash(app: FastAPI, request: Request) -> str | None:
    """The relative redirect from a path to the same path without its trailing slash.

    It is relative because a proxy may use another scheme, host and prefix.
    """
    path = request.scope["path"]
    other = path.rstrip("/")
    if other == path or _is_served(app, request.scope) or not _is_served(app, {**request.scope, "path": other}):
        return None
    last = quote(other.rpartition("/")[2], safe="")
    return "../" * (len(path) - len(other)) + last + (f"?{request.url.query}" if request.url.query else "")


def _is_served(app: FastAPI, scope: Scope) -> bool:
    return any(route.matches(scope)[0] is not Match.NONE for route in app.router.routes)


def _slash_error(request: Request) -> RoundhouseError:
    """For clients that do not follow redirects, such as curl without -L."""
    return NotFound(
        f"There is no {quoted(request.url.path)} here: leave out the slash at the end.", code="unknown_path"
    )


def _client_error(request: Request, error: Exception, allowed: str) -> RoundhouseError:
    """The error in the form that the client may see. allowed: the methods of its path."""
    if isinstance(error, RoundhouseError):
        return error
    if isinstance(error, RecursionError):  # of a body with too many levels
        return unreadable_error(error)
    if isinstance(error, HTTPException) and error.status_code == 404:
        return unknown_path_error(request.url.path)
    if isinstance(error, RequestValidationError | HTTPException) and isinstance(error.__cause__, UNREADABLE):
        return unreadable_error(error.__cause__)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return fault_error(first["loc"][1:], words_of(first), "The request")
    if not isinstance(error, HTTPException):
        return EngineFailed("The server failed on this request.", code="internal_error")
    if error.status_code == 405 and request.url.path in ADVICE:  # like /v1/responses/compact, which may be an id
        return unknown_path_error(request.url.path)
    if error.status_code == 405:
        methods = " or ".join(word for word in allowed.split(", ") if word not in ("", "HEAD", "OPTIONS"))
        advice = f": send {methods}" if methods else "; see /docs"
        adds = request.method == "POST" and request.url.path.startswith("/v1/models/")  # as at Speaches
        more = " A model is added by POST /v1/models, with its 'source'." if adds else ""
        return MethodNotAllowed(f"{request.method} does not work on {quoted(request.url.path)}{advice}.{more}")
    wrong = RoundhouseError(str(error.detail), code="http_error")
    wrong.status, wrong.type = error.status_code, "invalid_request_error"
    return wrong


def _allow_header(app: FastAPI, request: Request) -> dict[str, str]:
    """The Allow header with the methods of all routes of a path. HEAD is treated as GET."""
    fitting = (route for route in app.router.routes if route.matches(request.scope)[0] is not Match.NONE)
    methods = {method for route in fitting for method in getattr(route, "methods", None) or ()}
    more = {"OPTIONS", "HEAD"} if "GET" in methods else {"OPTIONS"}
    return {"Allow": ", ".join(sorted(methods | more))} if methods else {}
