"""Browser sessions: started with a key, or at the company's provider.

| path                | what                                                                            |
|---------------------|---------------------------------------------------------------------------------|
| `/sign-in`          | GET: the form; POST: starts a session with a key                                |
| `/provider-sign-in` | redirects to the provider, with a cookie for the return                         |
| `/signed-in`        | return from the provider: starts a session with a code                          |
| `/sign-out`         | POST: ends the session, and returns where to end the provider's                 |

The session's cookie is `SameSite=Strict`, so browsers do not send it after a redirect from another site. Therefore
`/signed-in` answers with a page that continues, and the cookie for the return is `Lax`.
"""

import logging
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope as Asgi

from console.host import Host, Visit
from console.rendering import address, html_answer, is_secure, json_object, read_json, redirect_to, templates
from console.sessions import SECONDS, Credential, cookie_name
from registry.errors import BadRequest, NotFound, Unauthorized, Unavailable
from tenants.caller import EVERYBODY

log = logging.getLogger("roundhouse.console")
BACK = "signed-in"
_DEPARTURE_SECONDS = 600
_ERROR = re.compile(r"[a-z_]{1,64}")


class SigningIn:
    """host_of: returns the host for a request. pages: returns the pages to which people may be sent afterwards."""

    def __init__(self, host_of: Callable[[Asgi], Host], pages: Callable[[], Collection[str]]) -> None:
        self._host_of, self._pages = host_of, pages

    def routes(self) -> list[Route]:
        return [
            Route("/sign-in", self.form),
            Route("/sign-in", self.sign_in_with_key, methods=["POST"]),
            Route("/provider-sign-in", self.depart),
            Route(f"/{BACK}", self.arrive),
            Route("/sign-out", self.sign_out, methods=["POST"]),
        ]

    async def form(self, request: Request) -> Response:
        visit = Visit(request, self._host_of(request.scope))
        sign_in = visit.host.console.sign_in
        label = None if sign_in is None else sign_in.settings.label
        context = {"next": self._next(request), "title": "Sign in", "visit": visit, "provider": label}
        return html_answer(templates.get_template("sign_in.html").render(context))

    async def sign_in_with_key(self, request: Request) -> Response:
        host, body = self._host_of(request.scope), await read_json(request)
        key = body.get("key")
        if not isinstance(key, str) or not 8 <= len(key) <= 512:
            raise BadRequest("Send the key as `key`.", param="key")
        caller = host.identify([key])
        if caller is EVERYBODY:
            raise BadRequest("This server does not require a key: you have full access already.", param="key")
        if caller.key is None:
            raise BadRequest("This is not a key of this server: they begin with 'rh-'.", param="key")
        response = json_object({"signed_in": True})
        await self._begin(request, response, caller.key)
        return response

    async def depart(self, request: Request) -> Response:
        host = self._host_of(request.scope)
        sign_in = host.console.sign_in
        if sign_in is None:
            raise _without_provider()
        after = self._next(request)
        departure = await sign_in.begin(_back(request, host), "" if after == "." else after)
        response = redirect_to(departure.url)
        self._set(request, response, host.console.sessions.departure_cookie, departure.cookie, strict=False)
        return response

    async def arrive(self, request: Request) -> Response:
        host, query = self._host_of(request.scope), request.query_params
        sign_in, sessions = host.console.sign_in, host.console.sessions
        if sign_in is None:
            raise _without_provider()
        if "error" in query:
            words = query["error"] if _ERROR.fullmatch(query["error"]) else "an error"
            raise Unauthorized(f"The provider did not sign you in: {words}. Start again.", code="sign_in_failed")
        cookie = sessions.departure(request.headers.get("cookie", ""))
        state, code = query.get("state", ""), query.get("code", "")
        client = request.client.host if request.client else ""
        person, page = await sign_in.finish(cookie, state, code, _back(request, host), query.get("iss"), client)
        host.member(person)  # raises Unauthorized if the team does not exist
        log.info("signed in", extra={"person": person.id, "team": person.team})
        after = page if page in self._pages() else "."
        context = {"next": after, "person": person, "title": "Signed in"}
        response = html_answer(templates.get_template("signed_in.html").render(context))
        await self._begin(request, response, person)
        self._delete(request, response, sessions.departure_cookie, strict=False)
        return response

    async def sign_out(self, request: Request) -> Response:
        host = self._host_of(request.scope)
        sessions, cookies = host.console.sessions, request.headers.get("cookie", "")
        credential = sessions.credential(cookies)
        await sessions.end(cookies)
        after = "sign-in"
        if credential is not None and not isinstance(credential, str) and (sign_in := host.console.sign_in):
            with suppress(Unavailable, Unauthorized):  # the session here has ended anyway
                after = await sign_in.provider.sign_out_url(_back(request, host, "sign-in")) or after
        response = json_object({"signed_in": False, "next": after})
        self._delete(request, response, sessions.cookie, strict=True)
        return response

    # --- parts ------------------------------------------------------------------------------------------------------
    def _next(self, request: Request) -> str:
        after = request.query_params.get("next", "")
        return after if after in self._pages() else "."

    async def _begin(self, request: Request, response: Response, credential: Credential) -> None:
        sessions = self._host_of(request.scope).console.sessions
        self._set(request, response, sessions.cookie, await sessions.begin(credential), strict=True)

    def _set(self, request: Request, response: Response, name: str, value: str, *, strict: bool) -> None:
        secure = is_secure(request)
        response.set_cookie(
            cookie_name(name, secure=secure),
            value,
            SECONDS if strict else _DEPARTURE_SECONDS,
            path="/",
            httponly=True,
            samesite="strict" if strict else "lax",
            secure=secure,
        )

    def _delete(self, request: Request, response: Response, name: str, *, strict: bool) -> None:
        secure = is_secure(request)
        same_site: Literal["strict", "lax"] = "strict" if strict else "lax"
        response.delete_cookie(
            cookie_name(name, secure=secure), path="/", httponly=True, samesite=same_site, secure=secure
        )


def _back(request: Request, host: Host, path: str = BACK) -> str:
    """Return a page's URL as the provider knows it: below --public-url, else as the browser called the server."""
    base = host.public_url
    if base is None:
        base = address(request)
        base = f"https{base.removeprefix('http')}" if is_secure(request) and base.startswith("http:") else base
    return f"{base.rstrip('/')}/console/{path}"


def _without_provider() -> NotFound:
    return NotFound(
        "This server has no sign-in provider. Sign in with a key, or start it with --oidc.",
        code="unknown_path",
    )
