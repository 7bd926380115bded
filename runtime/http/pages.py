"""Pages for people: the console, the reference of the API, and the address itself."""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import fastapi_offline
from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import PlainTextResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope as Asgi

from batches.callbacks.records import Delivery
from batches.records import BatchRecord
from console.host import ConsoleBatch
from console.live import LiveView
from console.state import Console
from console.web import Web
from registry.errors import NotFound, RoundhouseError
from runtime.gateway.core import Gateway
from runtime.gateway.providers.views import ProviderView
from runtime.gateway.routing.store import RouterView
from runtime.gateway.views.fleet import FleetView
from runtime.gateway.views.values import AdapterView, ModelView, PlanView
from runtime.http.admin.bodies import json_answer
from runtime.http.errors import error_response
from runtime.http.guard.keys import current_caller
from runtime.http.middleware import context_of, gateway_of
from tenants.caller import ANONYMOUS, PERSON_MARK, Caller, Person
from tenants.ledger.view import UsageReport
from tenants.watch import Tables

T = TypeVar("T")

PATH = "/console"
ASSETS = "/docs/assets"
FILES = Path(fastapi_offline.__file__).parent / "static"
OLLAMAS_PORT, OLLAMAS_TEXT = ":11434", "Ollama is running"
"""Many clients of Ollama's API look for this text at the address itself, some for nothing else."""


class ConsoleHost:
    """`console.host.Host`."""

    def __init__(
        self, gateway: Gateway, caller: Caller, caller_now: Callable[[], Caller], *, is_passed: bool = False
    ) -> None:
        """is_passed: another server of the fleet asks for its own viewer."""
        self._gateway, self.caller, self.caller_now, self.is_passed = gateway, caller, caller_now, is_passed

    @property
    def phase(self) -> str:
        return self._gateway.phase

    @property
    def console(self) -> Console:
        return self._gateway.services.console

    @property
    def public_url(self) -> str | None:
        return self._gateway.services.settings.public_url

    @property
    def own_server(self) -> object | None:
        fleet = self._gateway.services.fleet
        return None if fleet is None else fleet.own

    def fleet(self) -> FleetView | None:
        fleet = self._gateway.services.fleet
        return None if fleet is None else fleet.view(self.caller)

    async def page_of(self, node: str, path: str) -> Response:
        fleet = self._gateway.services.fleet
        if fleet is None:
            raise NotFound("This server belongs to no fleet.", code="no_fleet")
        if node == fleet.own.name:
            return RedirectResponse(f"../../{path}", 307)
        from runtime.http.fleet.pages import PassedPage

        return PassedPage(fleet, node, f"{PATH}/{path}")

    @property
    def usage(self) -> UsageReport:
        return self._gateway.services.usage

    @property
    def has_tables(self) -> bool:
        return self._gateway.services.settings.keys.has_tables()

    async def tables(self, work: Callable[[Tables], T]) -> T:
        return await self._gateway.services.administration.do(work)

    def identify(self, presented_keys: Sequence[str]) -> Caller:
        return self._gateway.services.keyring().identify(presented_keys)

    def member(self, person: Person) -> Caller:
        return self._gateway.services.keyring().member(person)

    def now(self) -> LiveView:
        return self._gateway.services.live(self._gateway.phase)

    def models(self) -> list[ModelView]:
        return [view for view in self._gateway.services.models.all(self.caller) if isinstance(view, ModelView)]

    def plan(self, model: str) -> PlanView:
        return self._gateway.services.models.plan(model)

    async def recipe(self, model: str) -> str:
        return await self._gateway.services.editor.export(model)

    async def adapters(self) -> list[AdapterView]:
        services = self._gateway.services
        return await services.lists.build(self.caller.team, services.adapters.all(self.caller))

    def routers(self) -> list[RouterView]:
        return self._gateway.services.routers.all()

    def providers(self) -> list[ProviderView]:
        return self._gateway.services.provider_models.views().data

    async def batches(self, team: str | None, limit: int) -> Sequence[BatchRecord]:
        return await self._gateway.services.batches.recent(team, limit)

    async def batch_deliveries(self, batch: ConsoleBatch) -> Sequence[Delivery]:
        assert isinstance(batch, BatchRecord)
        return await self._gateway.services.batches.callbacks.deliveries(batch)

    async def batch_failures(self, batch: ConsoleBatch) -> Mapping[str, int]:
        assert isinstance(batch, BatchRecord)
        return await self._gateway.services.batches.failures(batch)

    def may_route(self, router: str) -> bool:
        return self._gateway.dispatcher.card(router, self.caller) is not None


def _console_host(scope: Asgi) -> ConsoleHost:
    gateway, context = gateway_of(scope), context_of(scope)
    if context.hop is not None:
        return ConsoleHost(gateway, context.caller, lambda: _passed_caller(gateway, context.caller), is_passed=True)
    return ConsoleHost(gateway, context.caller, lambda: current_caller(scope))


def _passed_caller(gateway: Gateway, caller: Caller) -> Caller:
    """Look up a caller that another server let in."""
    keyring, key = gateway.services.keyring(), caller.key or ""
    try:
        if key.startswith(PERSON_MARK):
            return keyring.member(Person(key, caller.person, caller.team, caller.scopes))
        return keyring.by_id(key, caller.team) if key else caller
    except RoundhouseError:
        return ANONYMOUS


async def redirect_to_console() -> Response:
    """Add the slash that relative links need; relative, for any prefix."""
    return RedirectResponse(f"{PATH[1:]}/", 307)


async def home(request: Request) -> Response:
    """Send a browser to the console; tell others what this is, and no more.

    At Ollama's own port it is Ollama's text, unless only JSON is accepted. Elsewhere the text is in the JSON.
    """
    accept = request.headers.get("accept", "")
    if "text/html" in accept:
        return RedirectResponse("console/", 307)
    only_json = "application/json" in accept and "text/plain" not in accept  # axios accepts both
    if request.headers.get("host", "").endswith(OLLAMAS_PORT) and not only_json:
        return PlainTextResponse(OLLAMAS_TEXT)
    places = {"console": "/console", "docs": "/docs", "openapi": "/openapi.json", "models": "/v1/models"}
    return json_answer({"name": "Roundhouse", "version": version("roundhouse"), **places, "ollama": OLLAMAS_TEXT})


async def reference() -> Response:
    """The API reference, with relative links: a proxy may put a path before all of ours.

    It cannot be framed, since it sends requests: another site could let people click on its buttons unawares.
    """
    page = get_swagger_ui_html(
        openapi_url="./openapi.json",
        title="Roundhouse: reference of the API",
        swagger_js_url=f".{ASSETS}/swagger-ui-bundle.js",
        swagger_css_url=f".{ASSETS}/swagger-ui.css",
        swagger_favicon_url=f".{ASSETS}/favicon.png",
    )
    page.headers.update({"Content-Security-Policy": "frame-ancestors 'none'", "X-Frame-Options": "DENY"})
    return page


def add(app: FastAPI) -> None:
    """Add the pages to the application. Swagger's files are fastapi-offline's."""
    app.add_api_route("/", home, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/docs", reference, methods=["GET", "HEAD"], include_in_schema=False)
    app.mount(ASSETS, StaticFiles(directory=FILES), name="assets")
    app.add_api_route(PATH, redirect_to_console, methods=["GET", "HEAD"], include_in_schema=False)
    app.mount(PATH, Web(_console_host, error_response).application(), name="console")
