"""One client's connections cannot harm those of others, over a real socket."""

import asyncio
import contextlib
import json
import resource
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from models.messages import Chunk, ResponseStart
from registry.bounds import Bounds
from runtime.http.guard import protocol
from runtime.http.guard.layers import SIGN_IN_BYTES, raise_file_limit
from runtime.http.guard.protocol import GuardedConnection
from tests.unit.guard.serving import HOST, INTERIM, JSON, PATIENCE, Served, Wire, served

CHAT = b"/v1/chat/completions"
BODY = b'{"model": "chat", "messages": []}'
REQUESTED = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
READ = b"GET /health/live HTTP/1.1\r\n" + HOST


async def test_two_requests_on_one_connection_are_answered(tmp_path: Path) -> None:
    async with served(tmp_path, header_seconds=PATIENCE) as server:
        wire = await server.connect()
        for _ in range(3):
            await wire.send(READ + b"\r\n")
            assert (await wire.answer()).status == 200
        wire.close()


async def test_the_last_file_descriptor_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """libuv closes connections beyond the limit without an answer, and nothing else would tell of it.

    It is logged once for many connections.
    """
    monkeypatch.setattr(GuardedConnection, "_next_log", 0.0)
    for files, lines in ((1_024, 0), (8, 1)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        async with served(tmp_path / str(files), header_seconds=PATIENCE) as server:
            for _ in range(3):
                assert (await server.ask(READ)).status == 200
        assert caplog.text.count("no file descriptors are left") == lines


@pytest.mark.parametrize(
    "head",
    [b"GET / HTTP/1.1\r\nx: ", b"GET /", b"GET / HTTP/1.1\r\n", b"\r\n\r\n"],
    ids=["value", "path", "names", "nothing"],
)
async def test_headers_without_an_end_are_cut(tmp_path: Path, head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser joins all reads, so it must not get more than the bound and one read."""
    taken = 0
    feed = GuardedConnection.data_received
    seen: list[GuardedConnection] = []

    def spy(self: GuardedConnection, data: bytes) -> None:
        nonlocal taken
        seen.append(self)
        if not self._refused:
            taken += len(data)
        feed(self, data)

    monkeypatch.setattr(GuardedConnection, "data_received", spy)
    filler = {b"\r\n\r\n": b"\r\n" * 1024, b"GET / HTTP/1.1\r\n": b"a: b\r\n" * 300}.get(head, b"a" * 2048)
    async with served(tmp_path, header_seconds=PATIENCE) as server:
        wire = await server.connect()
        await wire.send(head)
        sending = asyncio.create_task(_pour(wire, filler, 2 * 2**20))
        answer = await wire.answer()
        assert answer.status == 431
        assert answer.error()["code"] == "headers_too_large"
        assert "64 KiB" in answer.error()["message"]
        await sending
        assert await wire.ended() == b""
        assert taken <= 64 * 1024 + 256 * 1024
        wire.close()


async def _pour(wire: Wire, part: bytes, size: int, first: bytes = b"") -> None:
    try:
        await wire.send(first)
        for _ in range(size // len(part)):
            await wire.send(part)
        wire.writer.write_eof()
    except ConnectionError:
        pass


async def test_a_whole_header_over_the_bound_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        assert (await server.ask(READ + b"x: " + b"a" * 60_000 + b"\r\n")).status == 200
        for head in (b"x: " + b"a" * 2**20 + b"\r\n", b"x: y\r\n" * 20_000):
            assert (await server.ask(READ + head)).status == 431


async def test_trailers_without_an_end_are_cut(tmp_path: Path) -> None:
    head = b"POST /v1/embeddings HTTP/1.1\r\n" + HOST + JSON + b"Transfer-Encoding: chunked\r\n\r\n0\r\nx: "
    async with served(tmp_path, header_seconds=PATIENCE, body_seconds=PATIENCE) as server:
        wire = await server.connect()
        await wire.send(head)
        await _pour(wire, b"a" * 2048, 2**20)
        await wire.ended()  # the request is already being answered, so there is no error
        wire.close()


async def test_slow_headers_are_ended(tmp_path: Path) -> None:
    async with served(tmp_path, header_seconds=PATIENCE) as server:
        wires = [await server.connect() for _ in range(200)]
        for wire in wires:
            await wire.send(b"GET /health/live HTTP/1.1\r\nHost: loc")
        inside = server.server.server_state.connections
        async with asyncio.timeout(PATIENCE):
            while sum(c._begun for c in inside if isinstance(c, GuardedConnection)) < len(wires):
                await asyncio.sleep(0.01)
        for connection in tuple(inside):
            assert isinstance(connection, GuardedConnection)
            assert connection._deadline is not None
            connection._over()  # as its timer does
        for wire in wires:
            answer = await wire.answer()
            assert (answer.status, answer.error()["code"]) == (408, "request_timeout")
            wire.close()


async def test_nothing_after_a_refusal_begins_a_request(tmp_path: Path) -> None:
    async with served(tmp_path, header_seconds=PATIENCE) as server:
        wire = await server.connect()
        await wire.send(REQUESTED[:40])
        connection = await only_connection(server)
        async with asyncio.timeout(PATIENCE):
            while not connection._begun:
                await asyncio.sleep(0.01)
        connection._over()  # as its timer does
        assert (await wire.answer()).status == 408
        connection.data_received(REQUESTED[40:])
        assert connection.cycle is None
        wire.close()


async def test_the_time_for_headers_ends_with_them(tmp_path: Path) -> None:
    async with served(tmp_path, header_seconds=PATIENCE) as server:
        wire = await server.connect()
        timer = (await only_connection(server))._deadline
        assert timer is not None
        await wire.send(READ + b"\r\n")
        assert (await wire.answer()).status == 200
        assert timer.cancelled()
        wire.close()


async def only_connection(server: Served) -> GuardedConnection:
    async with asyncio.timeout(PATIENCE):
        while not (connections := tuple(server.server.server_state.connections)):
            await asyncio.sleep(0.01)
    (connection,) = connections
    assert isinstance(connection, GuardedConnection)
    return connection


async def test_a_connection_without_a_request_is_closed(tmp_path: Path) -> None:
    async with served(tmp_path, header_seconds=0.05) as server:
        for sent in (b"", b"\r\n"):
            wire = await server.connect()
            await wire.send(sent)
            assert await wire.ended() == b""
            wire.close()


async def soon(case: Callable[[float], Awaitable[None]]) -> None:
    """Run the case with short timeouts, and again with longer ones if this machine was too slow."""
    for seconds in (0.05, 1.0):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            return await case(seconds)
    await case(10.0)


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
async def test_an_idle_connection_is_closed(tmp_path: Path, sent: bytes) -> None:
    """Also if it sends bytes that are no request."""

    async def case(seconds: float) -> None:
        async with served(tmp_path, keep_alive=seconds, header_seconds=seconds) as server:
            wire = await server.connect()
            await wire.send(READ + b"\r\n")
            assert (await wire.answer()).status == 200
            await wire.send(sent)
            assert await wire.ended() == b""
            wire.close()

    await soon(case)


@pytest.mark.parametrize(
    ("path", "prefix"),
    [
        (CHAT, b'{"error":{"message":"The body came too slowly.'),
        (b"/v1/embeddings", b'{"error":{"message":"The body came too slowly.'),
        (b"/v1/load_lora_adapter", b'{"error":{"message":"The body came too slowly.'),
        (b"/v1/messages", b'{"type":"error","error":{"type":"timeout_error","message":"The body'),
        (b"/v2/rerank", b'{"message":"The body'),
        (b"/embed", b'{"error":"The body'),
    ],
)
async def test_slow_bodies_are_ended(tmp_path: Path, path: bytes, prefix: bytes) -> None:
    head = b"POST " + path + b" HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 1000\r\n\r\n{"
    async with served(tmp_path, body_seconds=0.05) as server:
        wires = [await server.connect() for _ in range(200 if path == CHAT else 10)]
        for wire in wires:
            await wire.send(head)
        for wire in wires:
            answer = await wire.answer()
            assert (answer.status, answer.body[: len(prefix)]) == (408, prefix)
            wire.close()
        assert not server.gateway.released


async def test_a_slow_upload_is_ended(tmp_path: Path) -> None:
    kind = b"Content-Type: multipart/form-data; boundary=x\r\n"
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\n" + HOST + kind + b"Content-Length: 1000\r\n\r\n--x\r\n"
    async with served(tmp_path, body_seconds=0.05) as server:
        answer = await server.ask(head[:-2])
        assert (answer.status, answer.error()["code"]) == (408, "request_timeout")


async def test_a_body_over_the_bound_is_refused_while_it_is_read(tmp_path: Path) -> None:
    head = b"POST /v1/load_lora_adapter HTTP/1.1\r\n" + HOST + JSON + b"Transfer-Encoding: chunked\r\n\r\n"
    async with served(tmp_path, max_json=1000) as server:
        wire = await server.connect()
        pouring = asyncio.create_task(_pour(wire, b"400\r\n" + b" " * 1024 + b"\r\n", 2**20, head))
        answer = await wire.answer()
        assert (answer.status, answer.error()["code"]) == (413, "payload_too_large")
        wire.close()
        await pouring


async def test_a_body_of_unknown_length_is_bounded_to_its_end(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        for size, status in ((SIGN_IN_BYTES, 400), (SIGN_IN_BYTES + 1, 413)):
            body = b'{"no": "%s"}' % (b"x" * (size - 10))
            head = b"POST /console/sign-in HTTP/1.1\r\n" + HOST + JSON + b"Transfer-Encoding: chunked\r\n"
            answer = await server.ask(head, b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
            assert (len(body), answer.status) == (size, status)


async def test_an_unread_body_does_not_keep_a_connection(tmp_path: Path) -> None:
    head = b"POST /nowhere HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 1000\r\n\r\n{"

    async def case(seconds: float) -> None:
        async with served(tmp_path, header_seconds=seconds, keep_alive=PATIENCE) as server:
            wire = await server.connect()
            await wire.send(head)
            assert (await wire.answer()).status == 404
            assert await wire.ended() == b""
            wire.close()

    await soon(case)


async def test_two_thousand_idle_connections_make_room_for_the_next(tmp_path: Path) -> None:
    raise_file_limit()
    async with served(tmp_path, max_idle_per_address=500, header_seconds=PATIENCE) as server:
        first = await server.connect()
        await first.send(READ + b"\r\n")
        assert (await first.answer()).status == 200
        wires = [await server.connect() for _ in range(2_000)]
        assert await first.ended() == b""
        for wire in wires[:1_500]:
            assert await wire.ended() == b""
        assert (await server.ask(READ)).status == 200
        for wire in (first, *wires):
            wire.close()


async def test_idle_connections_make_room_for_their_own_address_only(tmp_path: Path) -> None:
    async with served(tmp_path, max_idle_per_address=2, header_seconds=PATIENCE) as server:
        wires = []
        for address in ("127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2", "127.0.0.2"):
            wires.append(Wire(*await asyncio.open_connection("127.0.0.1", server.port, local_addr=(address, 0))))
            await wires[-1].send(READ + b"\r\n")
            assert (await wires[-1].answer()).status == 200
        assert await wires[2].ended() == b""
        for wire in (*wires[:2], *wires[3:]):
            await wire.send(READ + b"\r\n")
            assert (await wire.answer()).status == 200
            wire.close()
        wires[2].close()


async def test_idle_connections_make_room_if_the_system_allows_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    async with served(tmp_path, header_seconds=PATIENCE) as server:
        wires = [await server.connect() for _ in range(40)]
        for wire in wires[:7]:
            assert await wire.ended() == b""
        assert (await server.ask(READ)).status == 200
        for wire in wires:
            wire.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_bytes_that_are_no_http_get_a_json_error(tmp_path: Path, sent: bytes) -> None:
    async with served(tmp_path) as server:
        wire = await server.connect()
        await wire.send(sent)
        answer = await wire.answer()
        assert (answer.status, answer.error()["code"]) == (400, "invalid_http")
        assert answer.headers["x-request-id"].startswith("req-")
        assert await wire.ended() == b""
        wire.close()


async def test_bytes_that_are_no_http_get_one_error_however_many_they_are(tmp_path: Path) -> None:
    """The parser refuses them, and they are more than headers may be."""
    async with served(tmp_path, header_seconds=PATIENCE) as server:
        wire = await server.connect()
        connection = await only_connection(server)
        connection.data_received(b"hello" * 20_000)
        assert (await wire.answer()).error()["code"] == "invalid_http"
        assert await wire.ended() == b""
        wire.close()


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"GET /nowhere HTTP/1.1\r\n", 404, "unknown_path"),
        (b"GET /" + b"a" * 50_000 + b" HTTP/1.1\r\n", 404, "unknown_path"),
        (b"OPTIONS * HTTP/1.1\r\n", 404, "unknown_path"),
        (b"DELETE /v1/chat/completions HTTP/1.1\r\n", 405, "method_not_allowed"),
        (b"CONNECT /v1/models HTTP/1.1\r\n", 405, "method_not_allowed"),
        (
            b"GET /ws HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: eA==\r\n"
            b"Sec-WebSocket-Version: 13\r\n",
            404,
            "unknown_path",
        ),
    ],
    ids=["path", "long-path", "star", "method", "connect", "websocket"],
)
async def test_unsupported_requests_get_a_json_error(tmp_path: Path, head: bytes, status: int, code: str) -> None:
    async with served(tmp_path) as server:
        answer = await server.ask(head + HOST)
        assert (answer.status, answer.error()["code"]) == (status, code)
        assert len(answer.body) <= 4096


@pytest.mark.parametrize(
    "sent",
    [
        b"zz\r\n",
        b"2\n{}\n0\n\n",
        b"-2\r\n{}\r\n",
        b"FFFFFFFFFFFFFFFFF\r\n",
        b"2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n",
    ],
    ids=["size", "no-cr", "negative", "overflow", "length-in-trailer"],
)
async def test_a_malformed_body_gets_a_json_error(tmp_path: Path, sent: bytes) -> None:
    """Its request is in progress, but has no answer yet."""
    head = b"POST /v1/embeddings HTTP/1.1\r\n" + HOST + JSON + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
    async with served(tmp_path, header_seconds=PATIENCE) as server:
        wire = await server.connect()
        await wire.send(head + sent)
        assert (await wire.answer()).error()["code"] == "invalid_http"
        assert await wire.ended() == b""
        wire.close()


async def test_a_malformed_body_gets_no_second_answer(tmp_path: Path) -> None:
    head = b"POST /nowhere HTTP/1.1\r\n" + HOST + JSON + b"Transfer-Encoding: chunked\r\n\r\n"
    async with served(tmp_path, header_seconds=PATIENCE) as server:
        wire = await server.connect()
        await wire.send(head)
        assert (await wire.answer()).status == 404
        await wire.send(b"zz\r\n")
        assert await wire.ended() == b""
        wire.close()


async def test_a_request_is_answered_before_bytes_beyond_its_length_are_refused(tmp_path: Path) -> None:
    """Clients that count characters instead of bytes declare too short a body."""
    beyond = REQUESTED + "ü}".encode()
    async with served(tmp_path, header_seconds=PATIENCE) as server:
        server.gateway.links["chat"].script = lambda _: (ResponseStart(200, "application/json"), Chunk(data=b"{}"))
        for sent, answers in ((beyond, 1), (REQUESTED + beyond, 2)):
            wire = await server.connect()
            await wire.send(sent)
            bodies = [await wire.answer() for _ in range(answers)]
            assert [answer.body for answer in bodies] == [b"{}"] * answers
            assert bodies[-1].headers["connection"] == "close"
            assert await wire.ended() == b""
            wire.close()


async def test_an_http_1_0_client_gets_no_interim_answer(tmp_path: Path) -> None:
    """It has none, and would take this for the answer, whatever it expects (RFC 9110, 10.1.1)."""
    head = b"POST /v1/embeddings HTTP/1.0\r\n" + JSON + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}"
    async with served(tmp_path) as server:
        wire = await server.connect()
        await wire.send(head)
        assert (await wire.ended()).startswith(b"HTTP/1.1 400 ")
        wire.close()


async def test_a_trailer_is_no_header(tmp_path: Path) -> None:
    """It would bypass all checks of headers. RFC 9110, 6.5.1 forbids merging trailers."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + JSON + b"Transfer-Encoding: chunked\r\nX-First: a\r\n\r\n"
    body = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
    late = b"X-Roundhouse-Context: e30=\r\nAuthorization: Bearer another\r\nCookie: a=b\r\n\r\n"
    async with served(tmp_path) as server:
        server.gateway.links["chat"].script = lambda _: (ResponseStart(200, "application/json"), Chunk(data=b"{}"))
        wire = await server.connect()
        await wire.send(head + body + late + READ + b"\r\n")
        assert [(await wire.answer()).status for _ in range(2)] == [200, 200]
        names = {name for name, _ in server.gateway.records.all[0].context.headers}
        assert b"x-first" in names
        assert not names & {b"x-roundhouse-context", b"authorization", b"cookie"}
        await wire.send(head + body + b"X: " + b"a" * 100_000 + b"\r\n\r\n")
        assert await wire.ended() == b"", "their bytes count as those of headers"
        wire.close()


@pytest.mark.parametrize("pieces", [1, 7, 10_000], ids=lambda pieces: f"{pieces} bytes at a time")
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
async def test_a_request_to_upgrade_to_http_2_is_answered_in_http_1(
    tmp_path: Path, is_chunked: bool, pieces: int
) -> None:
    """Java's own client asks for it with each request, and sends its body at once."""
    body = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "x" * 99}], "stream": False}).encode()
    framed = b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    if is_chunked:
        framed = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    wish = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    sent = (b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + JSON + wish + framed) * 2 + READ + b"\r\n"
    async with served(tmp_path) as server:
        server.gateway.links["chat"].script = lambda _: (ResponseStart(200, "application/json"), Chunk(data=b"{}"))
        wire = await server.connect()
        for at in range(0, len(sent), pieces):
            await wire.send(sent[at : at + pieces])
        assert [(await wire.answer()).body for _ in range(3)] == [b"{}", b"{}", b'{"status":"live"}']
        requested = [json.loads(request.body) for request in server.gateway.links["chat"].requests]
        assert [one["messages"][0]["content"] for one in requested] == ["x" * 99] * 2
        wire.close()


async def test_an_unread_stream_is_cut_and_its_lease_returned(tmp_path: Path) -> None:
    """64 MiB do not fit into sockets. The link stops the engine at 16 MiB; the connection ends at its deadline."""
    body = b'{"model": "chat", "messages": [], "stream": true}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: %d\r\n\r\n" % len(body)
    async with served(tmp_path, unread_seconds=0.05) as server:
        server.gateway.links["chat"].script = lambda _: (
            ResponseStart(status=200, content_type="text/event-stream"),
            *[Chunk(data=b"data: " + b"a" * 2**20 + b"\n\n")] * 64,
        )
        wire = await server.connect(limit=1024)
        await wire.send(head + body)
        async with asyncio.timeout(PATIENCE):
            while not server.gateway.released:
                await asyncio.sleep(0.01)
            while server.server.server_state.connections:
                await asyncio.sleep(0.01)
        assert server.gateway.links["chat"].cancelled
        wire.close()


@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
async def test_a_long_answer_is_not_cut_while_its_client_reads(
    tmp_path: Path, close: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many vectors are sent in one piece, which may take a slow network minutes."""
    monkeypatch.setattr("runtime.http.guard.protocol.SLOWEST", 2**20)
    body, text = b'{"model": "chat", "messages": []}', b"a" * 2**23
    head = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + JSON + close + b"Content-Length: %d\r\n\r\n" % len(body)
    async with served(tmp_path, unread_seconds=PATIENCE) as server:
        server.gateway.links["chat"].script = lambda _: (ResponseStart(200, "application/json"), Chunk(data=text))
        wire = await server.connect(limit=1024)
        await wire.send(head + body)
        connection = await only_connection(server)
        async with asyncio.timeout(PATIENCE):
            while (left := connection.transport.get_write_buffer_size()) < 2**21:
                await asyncio.sleep(0.01)
        connection._cut(left + 2**20)
        assert (await wire.answer()).body == text
        connection._cut(2**20 - 1)
        assert connection.transport.is_closing()
        wire.close()


async def test_an_unread_answer_does_not_keep_a_closed_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.http.guard.protocol.LINGER", 0.05)
    ask = READ.replace(b"/health/live", b"/openapi.json") + b"\r\n"
    async with served(tmp_path, keep_alive=0.05, header_seconds=PATIENCE, unread_seconds=PATIENCE) as server:
        wire = await server.connect(limit=1024)
        await wire.send(ask * 200)
        connection = await only_connection(server)
        async with asyncio.timeout(PATIENCE):
            size = before = 0
            while size == 0 or size != before:  # until the system's buffers are full, too
                await asyncio.sleep(0.1)
                before, size = size, connection.transport.get_write_buffer_size()
        connection.leave()
        async with asyncio.timeout(PATIENCE):
            while server.server.server_state.connections:
                await asyncio.sleep(0.01)
        wire.close()


async def test_pipelined_requests_are_answered_in_order_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvicorn reads on after each answer, so a client that never reads made the gateway grow by 230 MiB."""
    most = 0
    begin = GuardedConnection.on_message_begin

    def spy(self: GuardedConnection) -> None:
        nonlocal most
        most = max(most, len(self.pipeline))
        begin(self)

    monkeypatch.setattr(GuardedConnection, "on_message_begin", spy)
    async with served(tmp_path, header_seconds=PATIENCE, bounds=Bounds(pipelined=100)) as server:
        wire = await server.connect()
        await wire.send((READ + b"\r\n") * 100)
        assert [(await wire.answer()).status for _ in range(100)] == [200] * 100
        wire.close()
        most = 0
        wire = await server.connect()
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                await wire.send((READ + b"\r\n") * 2_000)
        await wire.ended()
        assert 0 < most <= 100
        wire.close()


async def test_a_last_answer_is_not_lost_while_the_rest_of_the_body_arrives(tmp_path: Path) -> None:
    """Closing a connection while the client's bytes arrive would destroy the answer."""
    body = b"x" * 100_000
    head = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Connection: close\r\nContent-Length: %d\r\n\r\n"
    async with served(tmp_path) as server:
        for _ in range(20):
            wire = await server.connect()
            await wire.send(head % (3 * len(body)) + body)  # refused by its type, before its body has arrived
            async with asyncio.timeout(PATIENCE):
                await wire.reader.readuntil(b"\r\n")
            for _ in range(2):
                await wire.send(body)
                await asyncio.sleep(0)
            rest = await wire.reader.read()
            assert b"unsupported_media_type" in rest
            wire.close()
        async with asyncio.timeout(PATIENCE):
            while server.server.server_state.connections:
                await asyncio.sleep(0.01)


async def test_a_byte_order_mark_is_no_part_of_the_json(tmp_path: Path) -> None:
    """Windows' editors write one, and RFC 8259, 8.1, lets a parser ignore it."""
    body = b"\xef\xbb\xbf" + BODY
    head = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: %d\r\n" % len(body)
    async with served(tmp_path) as server:
        server.gateway.links["chat"].script = lambda _: (ResponseStart(200, "application/json"), Chunk(data=b"{}"))
        assert (await server.ask(head, body)).status == 200


async def test_the_error_for_another_encoding_names_utf_8(tmp_path: Path) -> None:
    body = '{"model": "embed", "input": "café"}'.encode("latin-1")
    head = b"POST /v1/embeddings HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: %d\r\n" % len(body)
    async with served(tmp_path) as server:
        answer = await server.ask(head, body)
        assert (answer.status, answer.error()["code"]) == (400, "invalid_json")
        assert "UTF-8" in answer.error()["message"]


@pytest.mark.parametrize("path", [b"/health", b"/api/tags", b"/api/version", b"/v1/models", b"/docs", b"/v1/nothing"])
async def test_head_is_answered_like_get_without_a_body(tmp_path: Path, path: bytes) -> None:
    """Load balancers use it for /health, and Ollama's clients for two paths."""
    prefix = []
    async with served(tmp_path) as server:
        for method in (b"GET", b"HEAD"):
            wire = await server.connect()
            await wire.send(method + b" " + path + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
            head, _, body = (await wire.ended()).partition(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            prefix.append({line for line in lines if not line.startswith((b"date:", b"x-request-id:"))})
            assert bool(body) == (method == b"GET")
            wire.close()
    assert prefix[0] == prefix[1]


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_a_client_that_half_closes_after_its_request_gets_the_answer(tmp_path: Path, version: bytes) -> None:
    async with served(tmp_path) as server:
        wire = await server.connect()
        await wire.send(READ.replace(b"1.1", version) + b"\r\n")
        wire.writer.write_eof()
        assert (await wire.answer()).body == b'{"status":"live"}'
        assert await wire.ended() == b""


@pytest.mark.parametrize("is_stream", [False, True])
async def test_http_1_0_gets_no_chunks_but_the_end_of_the_connection(tmp_path: Path, is_stream: bool) -> None:
    kind = "text/event-stream" if is_stream else "application/json"
    async with served(tmp_path) as server:
        server.gateway.links["chat"].script = lambda _: (
            ResponseStart(200, kind), Chunk(data=b"data: 1\n\n"), Chunk(data=b"data: 2\n\n")
        )  # fmt: skip
        wire = await server.connect()
        await wire.send(REQUESTED.replace(b"HTTP/1.1", b"HTTP/1.0").replace(HOST, b"Connection: keep-alive\r\n"))
        head, _, body = (await wire.ended()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert body == b"data: 1\n\ndata: 2\n\n"
        wire.close()


@pytest.mark.parametrize("requests", [1, 2])
async def test_a_client_that_half_closes_can_wait_for_a_long_answer(
    tmp_path: Path, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interim answers, which clients skip (RFC 9110, 15.2), show whether it is still connected."""
    monkeypatch.setattr(protocol, "PROBE_SECONDS", 0.02)
    async with served(tmp_path) as server:
        gate = server.gateway.links["chat"].gate
        gate.clear()
        server.gateway.links["chat"].script = lambda _: (ResponseStart(200, "application/json"), Chunk(data=b"{}"))
        wire = await server.connect()
        await wire.send(REQUESTED * requests)
        wire.writer.write_eof()
        for _ in range(3 if requests == 1 else 0):
            assert await wire.reader.readuntil(b"\r\n\r\n") == INTERIM
        gate.set()
        for _ in range(requests):
            answer = await wire.answer()
            assert (answer.status, answer.body) == (200, b"{}")
        assert await wire.ended() == b""


async def test_no_probe_gets_into_the_stream_of_a_client_that_half_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "PROBE_SECONDS", 0.01)
    async with served(tmp_path) as server:
        chat, parts = server.gateway.links["chat"], (b"data: 1\n\n", b"data: 2\n\n")
        chat.gate.clear()
        chat.free = 2
        chat.script = lambda _: (ResponseStart(200, "text/event-stream"), *(Chunk(data=part) for part in parts))
        wire = await server.connect()
        await wire.send(REQUESTED)
        answer = asyncio.create_task(wire.answer())
        connection = await only_connection(server)
        while connection._running is None or not connection._running.response_started:
            await asyncio.sleep(0.001)
        wire.writer.write_eof()
        await asyncio.sleep(0.05)  # some probes
        chat.gate.set()
        assert (await answer).body == b"".join(parts)


@pytest.mark.parametrize(("version", "requests"), [(b"1.1", 1), (b"1.1", 2), (b"1.0", 1)])
@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_client_that_closes_its_connection_ends_the_work(
    tmp_path: Path, version: bytes, requests: int, is_reset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "PROBE_SECONDS", 0.02)
    async with served(tmp_path) as server:
        server.gateway.links["chat"].gate.clear()
        wire = await server.connect()
        await wire.send(REQUESTED.replace(b"1.1", version) * requests)
        async with asyncio.timeout(PATIENCE):
            while not server.gateway.links["chat"].requests:
                await asyncio.sleep(0.01)
            if is_reset:
                linger = struct.pack("ii", 1, 0)
                wire.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            wire.close()
            while not server.gateway.released:
                await asyncio.sleep(0.01)
        assert len(server.gateway.links["chat"].requests) == 1


async def test_a_client_that_closes_after_it_sent_another_request_ends_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading stops at that request, and with it the notice of the end."""
    monkeypatch.setattr(protocol, "PROBE_SECONDS", 0.02)
    async with served(tmp_path) as server:
        chat = server.gateway.links["chat"]
        chat.gate.clear()
        wire = await server.connect()
        connection = await only_connection(server)
        try:
            async with asyncio.timeout(PATIENCE):
                await wire.send(REQUESTED)
                while not chat.requests:
                    await asyncio.sleep(0.01)
                await wire.send(REQUESTED)
                while not connection.pipeline:
                    await asyncio.sleep(0.01)
                wire.close()
                while not server.gateway.released:
                    await asyncio.sleep(0.01)
            assert len(chat.requests) == 1
        finally:
            chat.gate.set()


@pytest.mark.parametrize(
    ("codings", "status", "code"),
    [
        ([b"gzip, chunked"], 501, "unsupported_transfer_coding"),
        ([b"gzip", b"chunked"], 501, "unsupported_transfer_coding"),
        ([b"identity, chunked"], 501, "unsupported_transfer_coding"),
        ([b"chunked, chunked"], 400, "invalid_http"),
        ([b"chunked", b"chunked"], 400, "invalid_http"),
        ([b"chunked, gzip"], 400, "invalid_http"),
        ([b"gzip"], 400, "invalid_http"),
        ([b"identity"], 400, "invalid_http"),
        ([b"chunked,"], 400, "invalid_http"),
        ([b"x;q=chunked"], 400, "invalid_http"),
        ([b"Chunked"], 200, ""),
        ([b" chunked "], 200, ""),
    ],
    ids=lambda value: b"+".join(value).decode() if isinstance(value, list) else None,
)
async def test_only_the_coding_chunked_alone_is_accepted(
    tmp_path: Path, codings: list[bytes], status: int, code: str
) -> None:
    """RFC 9112, 6.1. The parser checks only the last coding, and would take compressed bytes for the body."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + JSON
    head += b"".join(b"Transfer-Encoding: %s\r\n" % coding for coding in codings)
    async with served(tmp_path) as server:
        server.gateway.links["chat"].script = lambda _: (ResponseStart(200, "application/json"), Chunk(data=b"{}"))
        answer = await server.ask(head, b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY))
        assert answer.status == status
        assert status == 200 or answer.error()["code"] == code
