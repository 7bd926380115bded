"""The console's paths, with relative links only: any prefix works.

| path                  | what                                                              |
|-----------------------|-------------------------------------------------------------------|
| `/`                   | to the first page that the caller may see                         |
| `/SLUG`               | a page; `?part=NAME` a part of it                                 |
| `/SLUG/ACTION`        | POST of JSON: what a page can do that the API cannot              |
| `/events`             | the stream of events                                              |
| `/sign-in`            | a key becomes a session; `/sign-out` ends it                      |
| `/static/NAME`        | styles and scripts                                                |

Origins of changes are checked before anything comes here (`runtime.http.guard`).
"""

import asyncio
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Scope as Asgi

from console import pages as rooms
from console.host import Host, Page, Visit
from console.rendering import HEADERS, static, templates
from console.state import SECONDS
from registry.base.json import NOT_JSON
from registry.errors import BadRequest, Forbidden, NotFound, RoundhouseError, Unauthorized
from tenants.caller import EVERYBODY, SCOPES, Scope

JSON = "application/json"


@cache
def pages() -> dict[str, Page]:
    """Each folder of `console.pages` is one, in the order of the navigation."""
    by_slug = {
        name: importlib.import_module(f"{rooms.__name__}.{name}").PAGE
        for _, name, _ in pkgutil.iter_modules(rooms.__path__)
    }
    return dict(sorted(by_slug.items(), key=lambda item: item[1].order))


class Web:
    """Args: host_of: the server's part for a request; refused: an error as an answer."""

    def __init__(self, host_of: Callable[[Asgi], Host], refused: Callable[[RoundhouseError], Response]) -> None:
        self._host_of, self._refused = host_of, refused

    def application(self) -> Starlette:
        routes = [
            Route("/", self.first),
            Route("/sign-in", self.sign_in),
            Route("/sign-in", self.signed_in, methods=["POST"]),
            Route("/sign-out", self.sign_out, methods=["POST"]),
            Route("/events", self.events),
            Route("/static/{name:path}", static),
            Route("/{slug}", self.page),
            Route("/{slug}/{action}", self.act, methods=["POST"]),
        ]
        handlers = {RoundhouseError: self._failed, HTTPException: self._unknown}
        # A table of twenty adapters packs to a tenth. Static files come packed already, and the stream never is.
        packing = [Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)]
        return Starlette(routes=routes, exception_handlers=handlers, middleware=packing)

    # --- pages ------------------------------------------------------------------------------------------------------
    async def first(self, request: Request) -> Response:
        visit = self._visit(request)
        slug = next((slug for slug, page in pages().items() if visit.may(*page.scopes)), "sign-in")
        return _go(slug)

    async def page(self, request: Request) -> Response:
        visit, slug = self._visit(request), request.path_params["slug"]
        page = _page(slug)
        part = request.query_params.get("part")
        if visit.caller.key is None and not visit.may(*page.scopes):
            where = f"sign-in?next={slug}"
            if part is None:
                return _go(where)
            response = self._refused(Unauthorized("Sign in first.", code="missing_api_key"))
            response.headers.update({**HEADERS, "HX-Redirect": where})
            return response
        _check(visit, page)
        if part is not None and part not in page.parts:
            raise NotFound("There is no such part of this page.", code="unknown_path")
        context = {**await page.context(visit), "visit": visit, "address": address(request)}
        if part is None:
            context |= _frame(visit, slug, page.title)
        return _html(await asyncio.to_thread(_written, f"{slug}/{part or 'page'}.html", context))

    async def act(self, request: Request) -> Response:
        visit, page = self._visit(request), _page(request.path_params["slug"])
        action = page.actions.get(request.path_params["action"])
        if action is None:
            raise NotFound("There is no such action here.", code="unknown_path")
        if visit.caller.key is None and not visit.may(*page.scopes):
            raise Unauthorized("Sign in first.", code="missing_api_key")
        _check(visit, page)
        return _json(await action(visit, await _body(request)))

    async def events(self, request: Request) -> Response:
        visit = self._visit(request)
        if not visit.may(Scope.MODELS):
            raise Forbidden("The page Now needs a key with the scope 'models'.", code="insufficient_scope")
        stream = await visit.host.console.live.opened(
            visit.host.now, visit.team, lambda: visit.host.caller_now() == visit.caller
        )
        headers = {**HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream, headers=headers, media_type="text/event-stream")

    # --- signing in -------------------------------------------------------------------------------------------------
    async def sign_in(self, request: Request) -> Response:
        after = request.query_params.get("next", "")
        context = {"next": after if after in pages() else ".", "title": "Sign in", "visit": self._visit(request)}
        return _html(templates.get_template("sign_in.html").render(context))

    async def signed_in(self, request: Request) -> Response:
        host, body = self._host_of(request.scope), await _body(request)
        key = body.get("key")
        if not isinstance(key, str) or not 8 <= len(key) <= 512:
            raise BadRequest("Send the key as `key`.", param="key")
        caller = host.identify([key])
        if caller is EVERYBODY:
            raise BadRequest("This server asks for no key: everything is open to you already.", param="key")
        if caller.key is None:
            raise BadRequest("This is not a key of this server: they begin with 'rh-'.", param="key")
        response = _json({"signed_in": True})
        first = request.headers.get("x-forwarded-proto", "").partition(",")[0]  # the first of several proxies
        secure = "https" in (request.url.scheme, first.strip().lower())
        sessions = host.console.sessions
        token = sessions.begin(key)
        response.set_cookie(sessions.cookie, token, SECONDS, path="/", httponly=True, samesite="strict", secure=secure)
        return response

    async def sign_out(self, request: Request) -> Response:
        sessions = self._host_of(request.scope).console.sessions
        sessions.end(request.headers.get("cookie", ""))
        response = _json({"signed_in": False})
        response.delete_cookie(sessions.cookie, path="/", httponly=True, samesite="strict")
        return response

    # --- parts ------------------------------------------------------------------------------------------------------
    def _visit(self, request: Request) -> Visit:
        return Visit(request, self._host_of(request.scope))

    async def _failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RoundhouseError)
        is_part = "part" in request.query_params
        if not is_part and request.method == "GET" and "text/html" in request.headers.get("accept", ""):
            visit = self._visit(request)
            frame = _frame(visit, "", "Not shown")
            text = templates.get_template("refused.html").render({**frame, "error": error, "visit": visit})
            return _html(text, error.status)
        response = self._refused(error)
        response.headers.update({**HEADERS, "HX-Reswap": "none"} if is_part else HEADERS)  # what stands there stays
        return response

    async def _unknown(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            wrong = RoundhouseError(f"{request.method} does not work here.", code="method_not_allowed")
            wrong.status, wrong.type = 405, "invalid_request_error"
            return self._refused(wrong)
        return await self._failed(request, NotFound("There is no such page here.", code="unknown_path"))


def address(request: Request) -> str:
    """This server as the browser called it, without a slash at its end."""
    below = str(request.scope.get("app_root_path", ""))
    return f"{request.url.scheme}://{request.url.netloc}{below}"


def _page(slug: str) -> Page:
    page = pages().get(slug)
    if page is None:
        raise NotFound("There is no such page here.", code="unknown_path")
    return page


def _check(visit: Visit, page: Page) -> None:
    if not visit.may(*page.scopes):
        words = " or ".join(f"'{scope}'" for scope in sorted(page.scopes))
        raise Forbidden(f"Your key may not see {page.title}: it needs the scope {words}.", code="insufficient_scope")


async def _body(request: Request) -> Mapping[str, object]:
    """A JSON object, or BadRequest. Its size and pace are bounded before."""
    try:
        return msgspec.json.decode(await request.body(), type=dict[str, object])
    except NOT_JSON:
        raise BadRequest("Send a JSON object.") from None


def _frame(visit: Visit, slug: str, title: str) -> dict[str, object]:
    """What the layout around every page shows."""
    open_to = {name: page for name, page in pages().items() if visit.may(*page.scopes)}
    return {"navigation": open_to, "slug": slug, "title": title, "phase": visit.host.phase, "scopes": SCOPES}


def _written(template: str, context: Mapping[str, object]) -> str:
    """In a thread: with 1,000 adapters it takes longer than a token."""
    return templates.get_template(template).render(context)


def _go(where: str) -> Response:
    return RedirectResponse(where, 303, headers=HEADERS)


def _html(text: str, status: int = 200) -> Response:
    return HTMLResponse(text, status, headers={**HEADERS, "Cache-Control": "no-store"})


def _json(value: Mapping[str, object]) -> Response:
    return Response(msgspec.json.encode(value), headers={**HEADERS, "Cache-Control": "no-store"}, media_type=JSON)
