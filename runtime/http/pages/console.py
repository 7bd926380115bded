"""The console below `/console`: what it is handed of the gateway, for one request."""

from collections.abc import Callable, Sequence

from fastapi import FastAPI
from fastapi.responses import RedirectResponse, Response
from starlette.types import Scope as Asgi

from console.kept import Console
from console.now import Now
from console.web import Web
from runtime.gateway.core import Gateway
from runtime.gateway.routing.keeper import RouterView
from runtime.gateway.views.values import AdapterView, ModelView, PlanView
from runtime.http.errors import error_response
from runtime.http.guard.keys import whoever
from runtime.http.middleware import context_of, gateway_of
from tenants.caller import Caller
from tenants.ledger.view import UsageReport
from tenants.place import KeyPlace

PATH = "/console"


class Handed:
    """`console.host.Host`."""

    def __init__(self, gateway: Gateway, caller: Caller, caller_now: Callable[[], Caller]) -> None:
        self._gateway, self.caller, self.caller_now = gateway, caller, caller_now

    @property
    def phase(self) -> str:
        return self._gateway.phase

    @property
    def console(self) -> Console:
        return self._gateway.console

    @property
    def usage(self) -> UsageReport:
        return self._gateway.usage

    @property
    def place(self) -> KeyPlace:
        return self._gateway.settings.keys

    def who(self, shown: Sequence[str]) -> Caller:
        return self._gateway.callers.who(shown)

    def now(self) -> Now:
        return self._gateway.look(self._gateway.phase)

    def models(self) -> list[ModelView]:
        return [view for view in self._gateway.models.all(self.caller) if isinstance(view, ModelView)]

    def plan(self, model: str) -> PlanView:
        return self._gateway.models.plan(model)

    async def recipe(self, model: str) -> str:
        return await self._gateway.editor.export(model)

    def adapters(self) -> list[AdapterView]:
        return self._gateway.adapters.all(self.caller)

    def routers(self) -> list[RouterView]:
        return self._gateway.routers.all()

    def may_route(self, router: str) -> bool:
        return self._gateway.switch.card(router, self.caller) is not None


def _handed(scope: Asgi) -> Handed:
    return Handed(gateway_of(scope), context_of(scope).caller, lambda: whoever(scope))


async def below() -> Response:
    """With the slash that the console's relative links need; relative itself, for any prefix before it."""
    return RedirectResponse(f"{PATH[1:]}/", 307)


def add(app: FastAPI) -> None:
    app.add_api_route(PATH, below, methods=["GET", "HEAD"], include_in_schema=False)
    app.mount(PATH, Web(_handed, error_response).application(), name="console")
