"""The console behind the guard, over the scripted gateway of tests.unit.http, with keys if a test needs them."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from fastapi import FastAPI

from fleet.membership.members import NewMember
from runtime.gateway.views.fleet import FleetView
from runtime.http.guard.layers import layers
from tenants.caller import SCOPES, Caller, Scope
from tenants.keys import secret
from tenants.keys.keyring import OPEN, KeyEntry, Keyring, TeamEntry
from tenants.sign_in.flow import SignIn
from tenants.sign_in.settings import OidcSettings
from tests.fakes.sign_in import SECRET, RunningProvider, running_provider
from tests.unit.http.fakes import FakeGateway, application
from tests.unit.http.hops.rig import with_fleet

PEPPER = b"p" * 64
HTML = {"Accept": "text/html"}
ORIGIN = {"Origin": "http://127.0.0.1"}


@dataclass
class ConsoleRig:
    """A console and its clients."""

    app: FastAPI
    client: httpx.AsyncClient
    gateway: FakeGateway

    async def page(self, slug: str) -> str:
        response = await self.client.get(f"/console/{slug}", headers=HTML)
        assert response.status_code == 200, response.text
        return response.text


def key(team: str, *scopes: Scope) -> tuple[str, KeyEntry]:
    made = secret.make()
    caller = Caller(team, made.id, frozenset(scopes))
    return made.text, KeyEntry(secret.digest(PEPPER, made.text), caller, None, False)


ADMIN = key("ops", *SCOPES)
TEAMS = {"ops": TeamEntry("salt-of-ops", 2.0), "search": TeamEntry()}
Console = Callable[..., AbstractAsyncContextManager[ConsoleRig]]


@pytest.fixture
def console(tmp_path: Path) -> Console:
    """Return a console.

    keys: those that its server knows; it is open if there are none. fleet: its server's fleet, as the server sees it.
    given: for its gateway.
    """

    @asynccontextmanager
    async def opened(
        *keys: tuple[str, KeyEntry],
        root_path: str = "",
        is_open: bool = False,
        fleet: FleetView | None = None,
        **given: Any,
    ) -> AsyncIterator[ConsoleRig]:
        ring = Keyring({text[3:11]: known for text, known in keys}, PEPPER, is_open=is_open) if keys else OPEN
        gateway = FakeGateway(tmp_path, keyring=ring, **given)
        gateway.gateway.phase = "ready"
        if fleet is not None:
            own = NewMember(fleet.server, "data", fleet.role, "", "1.0")
            with_fleet(gateway.gateway, SimpleNamespace(own=own, view=lambda _caller: fleet))
        app = application(gateway, layers(gateway.settings))
        transport = httpx.ASGITransport(app=app, root_path=root_path)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield ConsoleRig(app, client, gateway)

    return opened


async def sign_in(displayed: ConsoleRig, text: str) -> httpx.Response:
    """Sign in. The client keeps the cookie."""
    return await displayed.client.post("/console/sign-in", json={"key": text}, headers=ORIGIN)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Any]:
    """Yield a browser for tests with `asyncio(loop_scope="module")`. Each test uses a new profile, see `looking`."""
    from tests.unit.console.browsing import browsing

    async with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def provider() -> Iterator[RunningProvider]:
    with running_provider() as provider:
        yield provider


@pytest.fixture
def signing(console: Console, provider: RunningProvider, monkeypatch: pytest.MonkeyPatch) -> Console:
    """Return a console with an administrator's key and sign-in at a provider. changes: to the provider's document."""
    monkeypatch.setenv("TEST_OIDC_SECRET", SECRET)

    @asynccontextmanager
    async def opened(changes: dict[str, Any] | None = None, **given: Any) -> AsyncIterator[ConsoleRig]:
        async with console(ADMIN, **given) as rig:
            services: Any = rig.gateway.gateway.services
            services.keyring()._teams = TEAMS
            services.console.sign_in = SignIn(msgspec.convert(provider.document(**(changes or {})), OidcSettings))
            yield rig

    return opened
