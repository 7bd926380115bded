"""The console's paths. All links are relative, so any prefix works.

| path                  | what                                                              |
|-----------------------|-------------------------------------------------------------------|
| `/`                   | redirects to the first page that the caller may see               |
| `/SLUG`               | a page; `?part=NAME` for a part of it                             |
| `/SLUG/ACTION`        | POST of JSON: what a page can do but the API cannot               |
| `/events`             | the stream of events                                              |
| `/at/NODE/SLUG`       | in a fleet: `OF_NODE` and events of another node, proxied         |
| `/sign-in`, ...       | sessions: `console.signing_in`                                    |
| `/static/NAME`        | styles and scripts                                                |

The origins of changes are checked before they get here (`runtime.http.guard`).
"""

import asyncio
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Scope as Asgi

from console import pages as rooms
from console.host import Host, Page, Visit
from console.rendering import HEADERS, address, html_answer, json_object, read_json, redirect_to, static, templates
from console.signing_in import SigningIn
from registry.base.turns import FairTurns
from registry.errors import Forbidden, MethodNotAllowed, NotFound, RoundhouseError, Unauthorized
from tenants.caller import SCOPES, Scope


@cache
def pages() -> dict[str, Page]:
    """Return the pages by folder name, in navigation order."""
    by_slug = {
        name: importlib.import_module(f"{rooms.__name__}.{name}").PAGE
        for _, name, _ in pkgutil.iter_modules(rooms.__path__)
    }
    return dict(sorted(by_slug.items(), key=lambda item: item[1].order))


OF_NODE = ("now", "requests")
"""Pages about one server's own memory."""


class Web:
    """host_of: returns the host for a request. refused: renders an error as a response."""

    def __init__(self, host_of: Callable[[Asgi], Host], refused: Callable[[RoundhouseError], Response]) -> None:
        self._host_of, self._refused = host_of, refused
        self._writing = FairTurns()
        """Turns at writing pages; several threads that compute would leave the event loop little time."""

    def application(self) -> Starlette:
        routes = [
            Route("/", self.first),
            *SigningIn(self._host_of, pages).routes(),
            Route("/events", self.events),
            Route("/static/{name:path}", static),
            Route("/at/{node}/static/{name:path}", static),
            Route("/at/{node}/{slug}", self.of_node),
            Route("/{slug}", self.page),
            Route("/{slug}/{action}", self.act, methods=["POST"]),
        ]
        handlers = {RoundhouseError: self._failed, HTTPException: self._unknown}
        # A table of twenty adapters compresses to a tenth. Static files are compressed already, the stream never is.
        packing = [Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)]
        return Starlette(routes=routes, exception_handlers=handlers, middleware=packing)

    # --- pages ------------------------------------------------------------------------------------------------------
    async def first(self, request: Request) -> Response:
        visit = self._visit(request)
        slug = next(iter(_open_pages(visit)), "sign-in")
        return redirect_to(slug)

    async def page(self, request: Request) -> Response:
        visit, slug = self._visit(request), request.path_params["slug"]
        page = _page(slug, visit.host)
        part = request.query_params.get("part")
        if _must_sign_in(visit, page):
            where = f"sign-in?next={slug}"
            if part is None:
                return redirect_to(where)
            response = self._refused(Unauthorized("Sign in first.", code="missing_api_key"))
            response.headers.update({**HEADERS, "HX-Redirect": where})
            return response
        _check(visit, page)
        if part is not None and part not in page.parts:
            raise NotFound("There is no such part of this page.", code="unknown_path")
        context = {**await page.context(visit), "visit": visit, "address": address(request)}
        if part is None:
            context |= _frame(visit, slug, page.title)
        async with self._writing.take(visit.caller.team):
            return html_answer(await asyncio.to_thread(_written, f"{slug}/{part or 'page'}.html", context))

    async def of_node(self, request: Request) -> Response:
        """Return another server's page, rendered there for this caller."""
        visit, node, slug = self._visit(request), request.path_params["node"], request.path_params["slug"]
        if slug not in (*OF_NODE, "events"):
            raise NotFound("There is no such page of another server.", code="unknown_path")
        page = _page("now" if slug == "events" else slug, visit.host)
        if _must_sign_in(visit, page):
            return redirect_to("../../sign-in?next=fleet")
        _check(visit, page)
        query = f"?{request.url.query}" if request.url.query else ""
        return await visit.host.page_of(node, f"{slug}{query}")

    async def act(self, request: Request) -> Response:
        visit = self._visit(request)
        page = _page(request.path_params["slug"], visit.host)
        action = page.actions.get(request.path_params["action"])
        if action is None:
            raise NotFound("There is no such action here.", code="unknown_path")
        if _must_sign_in(visit, page):
            raise Unauthorized("Sign in first.", code="missing_api_key")
        _check(visit, page)
        return json_object(await action(visit, await read_json(request)))

    async def events(self, request: Request) -> Response:
        visit = self._visit(request)
        if not visit.may(Scope.MODELS):
            raise Forbidden("The page Now needs a key with the scope 'models'.", code="insufficient_scope")
        stream = await visit.host.console.live.opened(
            visit.host.now, visit.team, lambda: visit.host.caller_now() == visit.caller
        )
        headers = {**HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream, headers=headers, media_type="text/event-stream")

    # --- parts ------------------------------------------------------------------------------------------------------
    def _visit(self, request: Request) -> Visit:
        return Visit(request, self._host_of(request.scope))

    async def _failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RoundhouseError)
        is_part = "part" in request.query_params
        if not is_part and request.method == "GET" and "text/html" in request.headers.get("accept", ""):
            visit = self._visit(request)
            frame = _frame(visit, "", "Error")
            text = templates.get_template("refused.html").render({**frame, "error": error, "visit": visit})
            return html_answer(text, error.status)
        response = self._refused(error)
        response.headers.update({**HEADERS, "HX-Reswap": "none"} if is_part else HEADERS)  # keep what is shown
        return response

    async def _unknown(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            return self._refused(MethodNotAllowed(f"{request.method} does not work here."))
        return await self._failed(request, NotFound("There is no such page here.", code="unknown_path"))


def _page(slug: str, host: Host) -> Page:
    page = pages().get(slug)
    if page is None or not page.is_available(host):
        raise NotFound("There is no such page here.", code="unknown_path")
    return page


def _must_sign_in(visit: Visit, page: Page) -> bool:
    """Whether the caller has no key yet, and needs one for this page."""
    return visit.caller.key is None and not visit.may(*page.scopes)


def _check(visit: Visit, page: Page) -> None:
    if not visit.may(*page.scopes):
        words = " or ".join(f"'{scope}'" for scope in sorted(page.scopes))
        raise Forbidden(f"Your key may not see {page.title}: it needs the scope {words}.", code="insufficient_scope")


def _frame(visit: Visit, slug: str, title: str) -> dict[str, object]:
    """Return the values of the layout around every page."""
    return {
        "navigation": _open_pages(visit),
        "slug": slug,
        "title": title,
        "phase": visit.host.phase,
        "scopes": SCOPES,
        "server": visit.host.own_server,
    }


def _open_pages(visit: Visit) -> dict[str, Page]:
    """Return the pages that the server has and the caller may see."""
    own = {slug: page for slug, page in pages().items() if page.is_available(visit.host) and visit.may(*page.scopes)}
    return {slug: page for slug, page in own.items() if slug in OF_NODE} if visit.host.is_passed else own


def _written(template: str, context: Mapping[str, object]) -> str:
    """Render a template. Called in a thread, because 1,000 adapters take longer than a token."""
    return templates.get_template(template).render(context)
