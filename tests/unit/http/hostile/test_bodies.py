"""Bodies: the memory of all together is bounded, and larger ones are accepted where they are allowed."""

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from models.messages import Chunk, ResponseStart
from registry.errors import TooLarge
from runtime.gateway.context import RequestContext
from runtime.http.bodies import too_large_error
from runtime.http.guard import bodies as guard
from runtime.http.guard.bodies import NO_KEY_BYTES, BodyMiddleware, BodyPace
from runtime.http.guard.memory import BodyMemory
from tenants.caller import ANONYMOUS, EVERYBODY, VISITOR, Caller
from tenants.caller import Scope as KeyScope
from tenants.keys.keyring import KeyEntry, Keyring
from tests.unit.console.conftest import PEPPER, key
from tests.unit.guard.serving import HOST, JSON, PATIENCE, Served, Wire, served

PART = b"a" * 100_000
TEAM_A, TEAM_B = key("a", KeyScope.INFER), key("b", KeyScope.INFER)


def ring(*keys: tuple[str, KeyEntry]) -> Keyring:
    return Keyring({text[3:11]: known for text, known in keys}, PEPPER, is_open=False)


def bearer(owner: tuple[str, KeyEntry]) -> bytes:
    return b"Authorization: Bearer " + owner[0].encode() + b"\r\n"


def begun(size: int, path: bytes = b"POST /v1/embeddings") -> bytes:
    return path + b" HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: %d\r\n\r\n" % size


async def test_many_bodies_that_never_end_leave_memory_for_others(tmp_path: Path) -> None:
    """200 connections whose bodies lack only the last byte. Such ones used to hold 20 MB, and 2,000 of them 8 GB."""
    async with served(tmp_path, max_bodies=2_000_000, body_seconds=PATIENCE) as server:
        wires = [await server.connect() for _ in range(200)]
        for wire in wires:
            await wire.send(begun(len(PART) + 1) + PART)
        refused = await _refused(wires, 180)
        for answer in refused:
            assert (answer.status, answer.error()["code"]) == (429, "bodies_full")
            assert float(answer.headers["retry-after"]) >= 1
        for wire in wires:
            wire.close()
        async with asyncio.timeout(PATIENCE):
            while (await server.ask(begun(1_000_000)[:-2], b" " * 1_000_000)).status == 429:
                await asyncio.sleep(0.01)  # disconnections are noticed one by one
        assert not server.gateway.released


async def _refused(wires: list[Wire], least: int) -> list[Any]:
    """Return the answers of connections that got one."""
    asking = [asyncio.ensure_future(wire.answer()) for wire in wires]
    async with asyncio.timeout(PATIENCE):
        while sum(one.done() for one in asking) < least:
            await asyncio.sleep(0.01)
    found = [one.result() for one in asking if one.done()]
    for one in asking:
        one.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    return found


async def test_a_routers_fitted_model_may_be_larger_than_a_request(tmp_path: Path) -> None:
    """150 intents have 20 MB, which the bound of requests used to refuse with a 413."""
    body = b'{"safetensors": "' + b"A" * 6_000_000 + b'"}'
    async with served(tmp_path) as server:
        put = begun(len(body), b"PUT /v1/routers/auto/fitted/intents")[:-2]
        answer = await server.ask(put, body)
        assert (answer.status, answer.error()["code"]) == (404, "router_not_found")
        other = await server.ask(begun(len(body), b"PUT /v1/routers/auto/aliases/a")[:-2], body)
        assert other.status == 413


def test_a_small_limit_is_written_exactly() -> None:
    """`--max-json 512KiB` used to be written as `0 MiB`."""
    assert "limit of 512.0 KiB" in too_large_error(512 << 10).message
    assert "limit of 4.0 MiB" in too_large_error(4 << 20).message


TWICE = HOST + b"Content-Type: multipart/x\r\n" + JSON


@pytest.mark.parametrize("path", [b"/console/sign-in", b"/v1/feedback", b"/v1/embeddings", b"/v1/adapters"])
async def test_a_repeated_content_type_does_not_bypass_the_bounds(tmp_path: Path, path: bytes) -> None:
    """The guard used to read the last one and the bounds any, so an endless body got into memory without a key."""
    async with served(tmp_path) as server:
        answer = await server.ask(b"POST " + path + b" HTTP/1.1\r\n" + TWICE + b"Transfer-Encoding: chunked\r\n")
        assert (answer.status, answer.error()["code"]) == (400, "invalid_http")
        assert "one Content-Type" in answer.error()["message"]


@pytest.mark.parametrize(("path", "bounded"), [("/v1/feedback", True), ("/v1/adapters", False)])
async def test_only_forms_of_paths_with_files_bypass_the_memory_bound(path: str, bounded: bool) -> None:
    taken = bytearray()

    async def reads_all(scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            taken.extend(message["body"])
            more = message["more_body"]

    async def endless() -> Message:
        return {"type": "http.request", "body": PART, "more_body": len(taken) < 10 * len(PART)}

    async def send(_message: Message) -> None:
        pass

    memory = BodyMemory(10 * len(PART), 2 * len(PART))
    bodies = BodyMiddleware(reads_all, BodyPace(PATIENCE, 1), lambda _path: 2 * len(PART), memory, 100)
    headers = [(b"content-type", b"multipart/form-data")]
    context = {"roundhouse.context": RequestContext("r")}
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, **context}
    with pytest.raises(TooLarge) if bounded else nullcontext():
        await bodies(scope, endless, send)
    assert len(taken) == (3 if bounded else 11) * len(PART)
    assert memory.held == 0


CHAT = b'{"model": "chat", "messages": []}'


def posted(path: bytes, size: int, head: bytes = b"") -> bytes:
    return b"POST " + path + b" HTTP/1.1\r\n" + HOST + JSON + head + b"Content-Length: %d\r\n\r\n" % size


def echoes(server: Served) -> None:
    server.gateway.links["chat"].script = lambda _: (ResponseStart(200, "application/json"), Chunk(data=b"{}"))


async def test_half_sent_bodies_of_one_team_leave_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key's share is half. Before, 66 connections could hold all of --max-bodies for any time."""
    monkeypatch.setattr(guard, "STALL_SECONDS", PATIENCE)
    async with served(tmp_path, keyring=ring(TEAM_A, TEAM_B), max_bodies=20_000_000) as server:
        echoes(server)
        wires = [await server.connect() for _ in range(40)]
        for wire in wires:
            await wire.send(posted(b"/v1/chat/completions", 1_000_000, bearer(TEAM_A)) + b" " * 999_999)
        for refused in await _refused(wires, 25):
            assert (refused.status, refused.error()["code"]) == (429, "bodies_full")
            assert "of your key" in refused.error()["message"]
        assert (await server.ask(posted(b"/v1/chat/completions", len(CHAT), bearer(TEAM_B))[:-2], CHAT)).status == 200
        for wire in wires:
            wire.close()


@pytest.mark.parametrize(
    ("path", "reported"),
    [
        (b"/v1/chat/completions", b'{"error":{"message":"The body stopped coming'),
        (b"/v1/messages", b'{"type":"error","error":{"type":"timeout_error","message":"The body stopped'),
        (b"/api/chat", b'{"error":"The body stopped'),
        (b"/v1/feedback", b'{"error":{"message":"The body stopped coming'),
    ],
)
async def test_a_stalled_body_gives_way_when_its_memory_is_needed(
    tmp_path: Path, path: bytes, reported: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "STALL_SECONDS", 0.0)
    settings = {"max_json": 100_000, "max_bodies": 100_000, "body_seconds": PATIENCE, "header_seconds": 0.5}
    async with served(tmp_path, **settings) as server:
        stalled = await server.connect()
        await stalled.send(posted(path, 90_001) + b" " * 90_000)
        async with asyncio.timeout(PATIENCE):
            while server.memory.held < 90_000:
                await asyncio.sleep(0.01)
        body = b'{"model": "chat", "messages": []' + b" " * 50_000 + b"}"
        echoes(server)
        answer = await server.ask(posted(b"/v1/chat/completions", len(body))[:-2], body)
        assert answer.status == 200
        answer = await stalled.answer()
        assert (answer.status, answer.body[: len(reported)]) == (408, reported)
        assert await stalled.ended() == b""
        stalled.close()


async def test_a_body_of_signing_in_is_bounded_to_a_keys_length(tmp_path: Path) -> None:
    path, most = b"/console/sign-in", 4096
    async with served(tmp_path, keyring=ring(TEAM_A)) as server:
        wire = await server.connect()
        await wire.send(posted(path, most + 1))
        answer = await wire.answer()
        assert (answer.status, answer.error()["code"]) == (413, "payload_too_large")
        wire.close()
        chunked = b"POST " + path + b" HTTP/1.1\r\n" + HOST + JSON + b"Transfer-Encoding: chunked\r\n"
        piece = b"%x\r\n%s\r\n" % (most + 1, b" " * (most + 1))
        assert (await server.ask(chunked, piece * 2)).status == 413
        form = b'{"key": "%s"}' % TEAM_A[0].encode()
        assert (await server.ask(posted(path, len(form))[:-2], form)).status == 200


@pytest.mark.parametrize(
    ("caller", "most"), [(ANONYMOUS, NO_KEY_BYTES), (EVERYBODY, 10**6), (VISITOR, 10**6), (TEAM_A[1].caller, 10**6)]
)
async def test_without_a_needed_key_only_small_bodies_are_accepted(caller: Caller, most: int) -> None:
    """On all paths, also those that need no key. An open server accepts large ones without a key."""
    sizes: list[int] = []

    async def reads(_scope: Scope, receive: Receive, _send: Send) -> None:
        sizes.append(len((await receive())["body"]))

    async def whole() -> Message:
        return {"type": "http.request", "body": b" ", "more_body": False}

    async def send(_message: Message) -> None:
        pass

    bodies = BodyMiddleware(reads, BodyPace(PATIENCE, 1), lambda _path: 10**6, BodyMemory(10**8, 10**6), 100)
    for size, outcome in ((most, nullcontext()), (most + 1, pytest.raises(TooLarge))):
        headers = [(b"content-length", b"%d" % size)]
        context = {"roundhouse.context": RequestContext("r", caller)}
        with outcome:
            await bodies(
                {"type": "http", "method": "POST", "path": "/ping", "headers": headers, **context}, whole, send
            )
    assert sizes == [1]


def test_a_body_has_less_time_left_the_longer_it_was_waited_for() -> None:
    pace = BodyPace(30.0, 1000)
    assert [pace.seconds_left(waited, 5000) for waited in (0.0, 10.0, 40.0)] == [35.0, 25.0, -5.0]
