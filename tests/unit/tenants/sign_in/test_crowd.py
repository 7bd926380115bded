"""Many concurrent sign-ins, most of them with made-up codes."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import httpx2
import msgspec
import pytest

from registry.errors import QueueFull, Unauthorized
from tenants.sign_in.flow import SignIn
from tenants.sign_in.provider import DISCOVERY, MOST_STEPS
from tenants.sign_in.settings import OidcSettings

BACK = "http://127.0.0.1:8000/console/signed-in"


@dataclass
class SlowProvider:
    """A provider whose token endpoint refuses each code once the test opens its gate."""

    url: str = ""
    codes: list[str] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if DISCOVERY in head:
            status, names = "200 OK", ("authorization_endpoint", "token_endpoint", "jwks_uri")
            answer: dict[str, str] = {"issuer": self.url, **{name: f"{self.url}/{name}" for name in names}}
        else:
            length = next(int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:"))
            [code] = parse_qs((await reader.readexactly(length)).decode())["code"]
            self.codes.append(code)
            self.arrived.set()
            await self.gates.setdefault(code, asyncio.Event()).wait()
            status, answer = "400 Bad Request", {"error": "invalid_grant"}
        body = msgspec.json.encode(answer)
        writer.write(b"HTTP/1.1 %s\r\nContent-Type: application/json\r\n" % status.encode())
        writer.write(b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        writer.close()

    async def has(self, count: int) -> None:
        while len(self.codes) < count:
            self.arrived.clear()
            await self.arrived.wait()


@asynccontextmanager
async def slow_provider() -> AsyncIterator[tuple[SlowProvider, SignIn]]:
    provider = SlowProvider()
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    group = {"group": "*", "team": "ops"}
    document = {"issuer": provider.url, "client_id": "roundhouse", "groups": [group]}
    try:
        yield provider, SignIn(msgspec.convert(document, OidcSettings))
    finally:
        server.close()


async def arrive(flow: SignIn, code: str, address: str) -> None:
    departure = await flow.begin(BACK, "")
    [state] = parse_qs(urlsplit(departure.url).query)["state"]
    await flow.finish(departure.cookie, state, code, BACK, None, address)


async def test_an_address_may_sign_in_any_number_of_times_one_after_another() -> None:
    async with slow_provider() as (_, flow):
        for _ in range(MOST_STEPS + 1):
            async with flow.provider._step(BACK, "192.0.2.7"):
                pass
        assert not flow.provider._steps


async def test_made_up_codes_from_one_address_leave_room_for_others() -> None:
    async with slow_provider() as (provider, flow):
        made_up = [asyncio.create_task(arrive(flow, f"made-up-{n}", "192.0.2.7")) for n in range(MOST_STEPS)]
        await provider.has(MOST_STEPS)
        with pytest.raises(QueueFull):
            await arrive(flow, "one more", "192.0.2.7")
        person = asyncio.create_task(arrive(flow, "of a person", "192.0.2.8"))
        while not flow.provider._turns._waiting:
            await asyncio.sleep(0)
        provider.gates["made-up-0"].set()
        with pytest.raises(Unauthorized):
            await made_up[0]
        again = asyncio.create_task(arrive(flow, "made-up-again", "192.0.2.7"))
        await provider.has(MOST_STEPS + 1)
        assert provider.codes[-1] == "of a person"
        for task in (person, again, *made_up):
            task.cancel()
        await asyncio.gather(person, again, *made_up, return_exceptions=True)


async def test_a_sign_in_begins_while_many_codes_are_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    async with slow_provider() as (provider, flow):
        made_up = [asyncio.create_task(arrive(flow, f"made-up-{n}", f"192.0.2.{n}")) for n in range(MOST_STEPS)]
        await provider.has(MOST_STEPS)
        assert (await flow.begin(BACK, "")).url.startswith(provider.url)
        monkeypatch.setattr("tenants.sign_in.provider.SECONDS", 0.0)
        with pytest.raises(QueueFull):  # no turn came in time
            await flow.provider.claims("of a person", BACK, "", "", "192.0.2.99")
        for task in made_up:
            task.cancel()
        await asyncio.gather(*made_up, return_exceptions=True)


async def test_certificates_are_read_once_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading takes 0.1 s, which would delay every stream, and any visitor can begin a sign-in."""
    readers: list[threading.Thread] = []
    stock = httpx2.create_ssl_context

    def create_ssl_context() -> object:
        readers.append(threading.current_thread())
        return stock()

    monkeypatch.setattr(httpx2, "create_ssl_context", create_ssl_context)
    monkeypatch.setattr("httpx2._transports.default.create_ssl_context", lambda **named: named["verify"])
    async with slow_provider() as (_, flow):
        for _ in range(3):
            await flow.begin(BACK, "")
    [reader] = readers
    assert reader is not threading.main_thread()
