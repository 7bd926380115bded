"""The guard on the server that a user starts: LitServe's own uvicorn has our connections and layers.

What it refuses, and when, is in tests/unit/guard; here nothing is loaded.
"""

import select
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import psutil
import pytest

from tests.eventually import PATIENCE
from tests.faults.traffic import ask
from tests.system.serving import STARTER, Server

pytestmark = pytest.mark.real
RECIPE = [STARTER / "starter-embed.yaml"]
OPTIONS = ("--slots", "1", "--cors-origins", "https://chat.example")
FIXED = {"header_seconds": 10}
"""A busy client sends its head within them. Two clients let them pass while the tests run."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("guarded") / "data", RECIPE, *OPTIONS, fixed=FIXED)
    try:
        yield server.wait_ready()
    finally:
        server.close()


@pytest.fixture(scope="module", autouse=True)
def slow_heads(guarded: Server) -> Iterator[Sequence[Future[bytes]]]:
    """What clients get in the end that send half of a head, and nothing at all."""
    with ThreadPoolExecutor(2) as pool:
        yield [pool.submit(exchange, guarded, sent) for sent in (b"GET / HTTP/1.1\r\n", b"")]


def exchange(server: Server, sent: bytes) -> bytes:
    """All that comes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as wire:
        rest = b""
        try:
            wire.sendall(sent)
            while part := wire.recv(65536):
                rest += part
        except (BrokenPipeError, ConnectionResetError):
            pass
        return rest


def test_what_a_page_can_send_is_refused(guarded: Server) -> None:
    def post(headers: dict[str, str], kind: str = "text/plain") -> httpx.Response:
        body = b'{"model": "starter-embed", "input": "a"}'
        return guarded.http.post("/v1/embeddings", content=body, headers={"Content-Type": kind, **headers})

    assert post({"Host": "evil.example"}).status_code == 403
    assert post({"Origin": "http://evil.example"}).status_code == 403
    assert post({"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert post({}).status_code == 415
    assert (
        guarded.http.get("/v1/models", headers={"Host": "evil.example"}).json()["error"]["code"] == "host_not_allowed"
    )
    ours = guarded.http.get("/v1/models", headers={"Origin": "https://chat.example"})
    assert ours.headers["access-control-allow-origin"] == "https://chat.example"
    assert ours.headers["x-request-id"]


def test_connections_have_their_bounds(guarded: Server) -> None:
    before = guarded.gateway().memory_info().rss
    for _ in range(8):
        endless = exchange(guarded, b"GET / HTTP/1.1\r\nx: " + b"a" * 16 * 2**20)
        assert endless == b"" or b" 431 " in endless.partition(b"\r\n")[0]
    assert guarded.gateway().memory_info().rss - before < 32 * 2**20
    assert b"headers_too_large" in exchange(guarded, b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000)
    assert b"invalid_http" in exchange(guarded, b"hello\r\n\r\n")


FORM = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'


@pytest.mark.parametrize("framing", ["declared", "chunked"])
@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/models/starter-embed/plan", "/v1/audio/transcriptions"])
def test_a_body_of_a_gigabyte_is_not_kept_in_memory(guarded: Server, path: str, framing: str) -> None:
    before, sent, block = guarded.gateway().memory_info().rss, 0, b"a" * 2**20
    form = path.startswith("/v1/audio")
    kind = "multipart/form-data; boundary=b" if form else "application/json"
    size = "Content-Length: 1000000000" if framing == "declared" else "Transfer-Encoding: chunked"
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=PATIENCE) as wire:
        wire.sendall(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n{size}\r\n\r\n".encode())
        while sent < 10**9 and not select.select([wire], [], [], 0)[0]:
            data = (FORM if form and not sent else b"") + block
            try:
                wire.sendall(b"%x\r\n%s\r\n" % (len(data), data) if framing == "chunked" else data)
            except (BrokenPipeError, ConnectionResetError):
                break
            sent += len(data)
        answer = wire.recv(4096)
    status = b" 200 " if path.endswith("/plan") else b" 413 "  # it has no use for a body, and does not wait for one
    assert status in answer.partition(b"\r\n")[0], answer
    assert sent < 200 * 2**20
    assert guarded.gateway().memory_info().rss - before < 64 * 2**20


def test_an_input_of_megabytes_is_refused_unread(guarded: Server) -> None:
    assert ask(guarded.http, "starter-embed").status_code == 200
    slot = psutil.Process(guarded.slot_pid("starter-embed"))
    before = slot.memory_info().rss, sum(slot.cpu_times()[:2])
    refused = guarded.http.post("/v1/embeddings", json={"model": "starter-embed", "input": "a b c d " * 475_000})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded"), refused.text
    assert slot.memory_info().rss < before[0] + 128 * 2**20
    assert sum(slot.cpu_times()[:2]) < before[1] + 5, "it took 14 s to tokenise it"


def test_its_data_is_its_users(guarded: Server) -> None:
    for name in ("", "server.json", "state.db"):
        assert (guarded.data / name).stat().st_mode & 0o077 == 0
    body = {"name": "x", "base": "starter-embed", "source": {"path": "/etc"}}
    refused = guarded.http.post("/v1/adapters", json=body).json()["error"]
    assert refused["code"] == "adapters_not_supported"  # before any path is looked at


def test_a_head_that_does_not_come_ends_its_connection(slow_heads: Sequence[Future[bytes]]) -> None:
    """The last one: by now the time is nearly over."""
    half, nothing = [future.result() for future in slow_heads]
    assert b"request_timeout" in half
    assert nothing == b""
