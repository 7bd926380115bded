"""Bodies: all of them together have a bound in memory, and who brings a larger one by right is let in."""

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from registry.errors import TooLarge
from runtime.http.bodies import too_large
from runtime.http.guard.bodies import Bodies, BodyPace, Room
from tests.unit.guard.serving import HOST, JSON, PATIENCE, Wire, served

PART = b"a" * 100_000


def begun(size: int, path: bytes = b"POST /v1/embeddings") -> bytes:
    return path + b" HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: %d\r\n\r\n" % size


async def test_many_bodies_that_never_end_leave_memory_for_others(tmp_path: Path) -> None:
    """200 connections, each with all of its body but the last byte: before, they held 20 MB, and 2,000 held 8 GB."""
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
                await asyncio.sleep(0.01)  # those that left are noticed one by one
        assert not server.gateway.released


async def _refused(wires: list[Wire], least: int) -> list[Any]:
    """The answers of those that got one."""
    asking = [asyncio.ensure_future(wire.answer()) for wire in wires]
    async with asyncio.timeout(PATIENCE):
        while sum(one.done() for one in asking) < least:
            await asyncio.sleep(0.01)
    found = [one.result() for one in asking if one.done()]
    for one in asking:
        one.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    return found


async def test_what_was_fitted_for_a_router_may_be_larger_than_a_request(tmp_path: Path) -> None:
    """150 intents have 20 MB. The bound of requests refused them: 413."""
    body = b'{"safetensors": "' + b"A" * 6_000_000 + b'"}'
    async with served(tmp_path) as server:
        put = begun(len(body), b"PUT /v1/routers/auto/fitted/intents")[:-2]
        answer = await server.ask(put, body)
        assert (answer.status, answer.error()["code"]) == (404, "router_not_found")
        other = await server.ask(begun(len(body), b"PUT /v1/routers/auto/aliases/a")[:-2], body)
        assert other.status == 413


def test_a_small_limit_is_told_as_it_is() -> None:
    """`--max-json 512KiB` was `0 MiB`."""
    assert "limit of 512.0 KiB" in too_large(512 << 10).message
    assert "limit of 4.0 MiB" in too_large(4 << 20).message


TWICE = HOST + b"Content-Type: multipart/x\r\n" + JSON


@pytest.mark.parametrize("path", [b"/console/sign-in", b"/v1/feedback", b"/v1/embeddings", b"/v1/adapters"])
async def test_a_type_that_is_told_twice_opens_no_way_round_the_bounds(tmp_path: Path, path: bytes) -> None:
    """The door read the last one, the bounds any: an endless body got into memory, without a key."""
    async with served(tmp_path) as server:
        answer = await server.ask(b"POST " + path + b" HTTP/1.1\r\n" + TWICE + b"Transfer-Encoding: chunked\r\n")
        assert (answer.status, answer.error()["code"]) == (400, "invalid_http")
        assert "one Content-Type" in answer.error()["message"]


@pytest.mark.parametrize(("path", "bounded"), [("/v1/feedback", True), ("/v1/adapters", False)])
async def test_only_forms_of_paths_that_take_files_are_not_held_in_memory(path: str, bounded: bool) -> None:
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

    room = Room(10 * len(PART))
    bodies = Bodies(reads_all, BodyPace(PATIENCE, 1), lambda _path: 2 * len(PART), room, 100)
    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"content-type", b"multipart/form-data")]}
    with pytest.raises(TooLarge) if bounded else nullcontext():
        await bodies(scope, endless, send)
    assert len(taken) == (3 if bounded else 11) * len(PART)
    assert room.held == 0
