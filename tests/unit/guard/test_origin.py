"""Hosts and origins that are accepted, as a policy and over a real socket."""

import json
from pathlib import Path

import pytest

from registry.errors import Forbidden, RoundhouseError
from runtime.http.guard.access import unknown_path_error
from runtime.http.guard.origin import OriginPolicy
from tests.unit.guard.serving import HOST, JSON, served

LOCAL = OriginPolicy.of("127.0.0.1", (), ())
OPEN = OriginPolicy.of("0.0.0.0", ("Models.Example:443", "::ffff"), ("https://chat.example",))
BODY = b'{"model": "embed", "input": "a"}'


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "localhost.",
        " localhost:1 ",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.9.9.9",
        "[::1]:80",
        "0.0.0.0:8000",
        "[::]:8000",
    ],
)
def test_loopback_is_always_accepted(host: str) -> None:
    assert LOCAL.host(host)
    assert OPEN.host(host)


@pytest.mark.parametrize(
    "host",
    [
        "", "evil.example", "evil.example:8000", "localhost.evil.example", "evil.example#localhost", "localhost:80:80",
        "localhost:x", "[::1", "[::1]x", "[::1]:x", "127.0.0.1.nip.io", "user@localhost", "192.168.1.9", ":8000",
        "local host",
    ],
)  # fmt: skip
def test_every_other_host_is_refused(host: str) -> None:
    assert not LOCAL.host(host)


def test_a_public_server_accepts_addresses_and_its_named_hosts_but_no_other_name() -> None:
    assert OPEN.host("192.168.1.9:8000")
    assert OPEN.host("[fe80::1]")
    assert OPEN.host("models.example")
    assert not OPEN.host("evil.example")
    assert OriginPolicy.of("127.0.0.1", ("*",), ()).host("evil.example")


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("http://localhost:8000", "localhost:8000", True),
        ("HTTP://LocalHost:8000", "localhost:8000", True),
        ("http://localhost", "localhost", True),
        ("http://localhost", "localhost:80", True),
        ("https://models.example", "models.example", True),
        ("https://chat.example", "models.example", True),
        ("http://[::1]:8000", "[::1]:8000", True),
        ("http://localhost:3000", "localhost:8000", False),
        ("http://localhost", "localhost:8000", False),
        ("http://127.0.0.1:8000", "localhost:8000", False),
        ("http://evil.example", "localhost:8000", False),
        ("http://evil.example:8000", "localhost:8000", False),
        ("http://localhost:8000.evil.example", "localhost:8000", False),
        ("http://chat.example", "models.example", False),
        ("null", "localhost:8000", False),
        ("", "localhost:8000", False),
        ("file://", "localhost:8000", False),
        ("http://[", "localhost:8000", False),
    ],
)
def test_a_page_has_our_own_origin_or_an_allowed_one(origin: str, host: str, own: bool) -> None:
    assert OPEN.origin(origin, host) is own


@pytest.mark.parametrize(
    ("path", "kind", "fits"),
    [
        ("/v1/embeddings", "application/json", True),
        ("/v1/embeddings", "Application/JSON; charset=utf-8", True),
        ("/v1/embeddings", "application/vnd.api+json", True),
        ("/v1/adapters", "multipart/form-data; boundary=x", True),
        ("/v1/audio/transcriptions", "multipart/form-data; boundary=x", True),
        ("/v1/embeddings", "multipart/form-data; boundary=x", False),
        ("/v1/embeddings", "text/plain", False),
        ("/v1/embeddings", "text/vnd.api+json", False),
        ("/v1/audio/transcriptions", "application/octet-stream", False),
        ("/v1/embeddings", "text/plain; application/json", False),
        ("/v1/embeddings", "application/x-www-form-urlencoded", False),
        ("/v1/embeddings", "", False),
        ("/v1/adapters", "text/plain", False),
    ],
)
def test_bodies_have_to_be_json_and_files_forms(path: str, kind: str, fits: bool) -> None:
    for size in ((b"content-length", b"9"), (b"transfer-encoding", b"chunked")):
        headers = [(b"host", b"localhost"), (b"content-type", kind.encode()), size]
        if fits:
            LOCAL.check("POST", path, headers)
        else:
            with pytest.raises(RoundhouseError) as refused:
                LOCAL.check("POST", path, headers)
            assert refused.value.status == 415
    LOCAL.check("POST", path, [(b"host", b"localhost"), (b"content-length", b"0")])


def test_a_star_allows_the_pages_of_all_origins() -> None:
    every = OriginPolicy.of("127.0.0.1", (), ("*",))
    assert every.origin("http://evil.example", "localhost:8000")
    assert every.origin("null", "localhost:8000")


def test_a_referer_counts_only_where_bodies_of_any_type_are_accepted() -> None:
    """Elsewhere the type of the body already keeps pages out, and a program may send any Referer."""
    referer = (b"referer", b"http://evil.example/page")
    LOCAL.check("POST", "/v1/embeddings", [(b"host", b"localhost"), (b"content-type", b"application/json"), referer])


FOREIGN_PAGES = (
    (b"origin", b"http://evil.example"),
    (b"origin", b"null"),
    (b"sec-fetch-site", b"cross-site"),
    (b"sec-fetch-site", b"same-site"),
    (b"referer", b"http://evil.example/page"),
    (b"referer", b"http://localhost:3000/"),
)
FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize("kind", ["", FORM, "text/plain", "text/plain; charset=utf-8", "application/json"])
@pytest.mark.parametrize("size", [(b"content-length", b"9"), (b"transfer-encoding", b"chunked")])
def test_ollamas_paths_accept_any_type_from_programs_and_none_from_a_foreign_page(
    kind: str, size: tuple[bytes, bytes]
) -> None:
    """With any User-Agent: PowerShell's looks like a browser's, and Java's programs may send none."""
    headers = [(b"host", b"localhost"), size, *([(b"content-type", kind.encode())] if kind else [])]
    for agent in (b"", b"curl/8.5.0", b"Java/17.0.9", b"Mozilla/5.0 (Windows NT; Windows NT 10.0; en-US) PowerShell/7"):
        program = [*headers, *([(b"user-agent", agent)] if agent else [])]
        LOCAL.check("POST", "/api/chat", program)
        LOCAL.check("POST", "/api/chat", [*program, (b"origin", b"http://localhost"), (b"sec-fetch-site", b"none")])
        LOCAL.check("POST", "/api/chat", [*program, (b"referer", b"http://localhost/console")])
        OPEN.check("POST", "/api/chat", [*program, (b"referer", b"https://chat.example/a?b")])
        for page in FOREIGN_PAGES:
            with pytest.raises(Forbidden):
                LOCAL.check("POST", "/api/chat", [*program, page])
        with pytest.raises(Forbidden):
            LOCAL.check("POST", "/api/chat", [(b"host", b"evil.example"), *program[1:]])


CHANGING = [
    b"POST /v1/adapters", b"POST /v1/load_lora_adapter", b"POST /v1/models/embed/unload", b"DELETE /v1/adapters/a",
    b"PUT /v1/adapters/a/pin", b"POST /v1/chat/completions", b"POST /v1/embeddings", b"POST /v1/audio/transcriptions",
    b"POST /api/chat", b"POST /api/pull", b"DELETE /api/delete", b"OPTIONS /v1/embeddings",
]  # fmt: skip


@pytest.mark.parametrize(
    "attack",
    [
        b"Host: localhost\r\nOrigin: http://evil.example\r\n",
        b"Host: localhost\r\nOrigin: null\r\n",
        b"Host: localhost\r\nSec-Fetch-Site: cross-site\r\n",
        b"Host: localhost\r\nSec-Fetch-Site: same-site\r\n",
        b"Host: evil.example\r\n",
        b"Host: evil.example\r\nOrigin: http://evil.example\r\nSec-Fetch-Site: same-origin\r\n",
    ],
)
async def test_no_foreign_page_can_send_a_request(tmp_path: Path, attack: bytes) -> None:
    async with served(tmp_path) as server:
        for call in CHANGING:
            for kind in (b"text/plain", b"multipart/form-data; boundary=x", b"application/json"):
                size = b"Content-Length: %d\r\n" % len(BODY)
                head = call + b" HTTP/1.1\r\n" + attack + b"Content-Type: " + kind + b"\r\n" + size
                answer = await server.ask(head, BODY)
                error = json.loads(answer.body)["error"]
                message = error if isinstance(error, str) else error["message"]
                assert answer.status == 403
                assert isinstance(error, str) or error["code"] in ("host_not_allowed", "origin_not_allowed")
                assert "--allowed-hosts" in message or "--cors-origins" in message
                assert "access-control-allow-origin" not in answer.headers
        assert not server.gateway.released


async def test_a_page_after_dns_rebinding_reads_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        for path in (b"/v1/models", b"/v1/status", b"/metrics", b"/docs", b"/health/live"):
            answer = await server.ask(b"GET " + path + b" HTTP/1.1\r\nHost: evil.example:8000\r\n")
            assert (answer.status, answer.error()["code"]) == (403, "host_not_allowed")
        two = await server.ask(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n")
        assert two.status == 400
        assert (await server.ask(b"GET /v1/models HTTP/1.1\r\n")).status == 403


async def test_json_without_its_type_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        head = b"POST /v1/embeddings HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n" % len(BODY)
        answer = await server.ask(head + b"Content-Type: text/plain\r\n", BODY)
        assert (answer.status, answer.error()["code"]) == (415, "unsupported_media_type")
        assert "application/json" in answer.error()["message"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/audio/transcriptions", "/v1/audio/transcriptions"),
        ("/v1/v1/audio/transcriptions", "/v1/audio/transcriptions"),
        ("/v1/audio/transcription", "There is no"),
        ("/asr", "There is no"),
    ],
)
async def test_a_form_for_an_unknown_path_is_a_404(tmp_path: Path, path: str, words: str) -> None:
    async with served(tmp_path) as server:
        head = b"POST %s HTTP/1.1\r\n" % path.encode() + HOST + b"Content-Length: %d\r\n" % len(BODY)
        answer = await server.ask(head + b"Content-Type: multipart/form-data; boundary=x\r\n", BODY)
        assert (answer.status, answer.error()["code"]) == (404, "unknown_path")
        assert words in answer.error()["message"]


@pytest.mark.parametrize(
    ("path", "right", "kind"),
    [
        ("//v1/chat/completions", "/v1/chat/completions", "application/json"),
        ("/v1//messages", "/v1/messages", "application/json"),
        ("//v1//audio///transcriptions", "/v1/audio/transcriptions", "multipart/form-data; boundary=x"),
        ("//api/chat", "/api/chat", "application/x-www-form-urlencoded"),
        ("//v1/models/a%2Fb/load", "/v1/models/a/b/load", "application/json"),
    ],
)
async def test_an_address_with_an_extra_slash_is_named(tmp_path: Path, path: str, right: str, kind: str) -> None:
    async with served(tmp_path) as server:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(BODY)}\r\n"
        answer = await server.ask(head.encode(), BODY)
        assert (answer.status, answer.error()["code"]) == (404, "unknown_path")
        assert f"It is at '{right}'" in answer.error()["message"]


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/V1/Chat/Completions/", "/v1/chat/completions"),
        ("/v1/embedding", "/v1/embeddings"),
        ("/v1/model", "/v1/models"),
        ("/v1/reranks", "/v1/rerank"),
        ("/api/tag", "/api/tags"),
    ],
)
def test_a_path_in_capitals_or_another_number_is_recognised(path: str, right: str) -> None:
    assert unknown_path_error(path).message == f"There is no '{path}' here. Did you mean {right}?"


async def test_a_form_with_a_slash_too_many_is_redirected(tmp_path: Path) -> None:
    head = b"POST /v1/audio/transcriptions/ HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n" % len(BODY)
    async with served(tmp_path) as server:
        answer = await server.ask(head + b"Content-Type: multipart/form-data; boundary=x\r\n", BODY)
        assert (answer.status, answer.headers["location"]) == (307, "../transcriptions")
        assert "leave out the slash" in answer.error()["message"]


def test_curls_own_type_is_named() -> None:
    headers = [(b"host", b"localhost"), (b"content-type", FORM.encode()), (b"content-length", b"9")]
    with pytest.raises(RoundhouseError, match="as curl sends it without -H 'Content-Type: application/json'"):
        LOCAL.check("POST", "/v1/embeddings", headers)


def test_a_path_of_the_fleets_port_is_not_its_own_remedy() -> None:
    assert unknown_path_error("/v1/status").message == "There is no '/v1/status' here. See /docs."
    assert "It is at /v1/status." in unknown_path_error("/status").message


def test_the_beginning_of_paths_is_not_at_another_address() -> None:
    assert unknown_path_error("/v1/").message == "There is no '/v1/' here. See /docs."


@pytest.mark.parametrize(
    ("setting", "origin"),
    [("https://Chat.example/", "https://chat.example"), ("file://", "file://"), ("null", "null")],
)
async def test_an_allowed_page_gets_cors_headers_and_no_other_does(tmp_path: Path, setting: str, origin: str) -> None:
    page = b"Origin: %s\r\n" % origin.encode()
    expected = b"Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: content-type\r\n"
    body = b'{"model": "nothing", "input": "a"}'
    head = b"POST /v1/embeddings HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: %d\r\n" % len(body)
    async with served(tmp_path, cors_origins=(setting,)) as server:
        first = await server.ask(b"OPTIONS /v1/embeddings HTTP/1.1\r\n" + HOST + page + expected)
        assert (first.status, first.headers["access-control-allow-origin"]) == (200, origin)
        private = b"Access-Control-Request-Private-Network: true\r\n"
        first = await server.ask(b"OPTIONS /v1/embeddings HTTP/1.1\r\n" + HOST + page + expected + private)
        assert (first.status, first.headers["access-control-allow-private-network"]) == (200, "true")
        answer = await server.ask(head + page + b"Sec-Fetch-Site: cross-site\r\n", body)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (404, origin)
        assert answer.headers["access-control-expose-headers"] == "*", (
            "SDKs read x-should-retry, and people read which model answered"
        )
        other = await server.ask(head + b"Origin: https://evil.example\r\n", body)
        assert other.status == 403
    async with served(tmp_path) as server:
        assert "access-control-allow-origin" not in (await server.ask(b"GET / HTTP/1.1\r\n" + HOST + page)).headers


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/embeddings", {"error"}),
        ("/v1/messages", {"type", "error", "request_id"}),
        ("/v2/rerank", {"message"}),
        ("/embed", {"error", "error_type"}),
        ("/api/chat", {"error"}),
    ],
)
async def test_early_refusals_are_in_the_dialect_of_their_path(tmp_path: Path, path: str, shape: set[str]) -> None:
    length = b"Content-Length: %d\r\n" % len(BODY)
    refused = [
        (b"POST", JSON + length + b"Origin: http://evil.example\r\n", 403),
        *([] if path == "/api/chat" else [(b"POST", b"Content-Type: text/plain\r\n" + length, 415)]),
        (b"POST", JSON + length + b"X-Tier: gold\r\n", 400),
        (b"GET", b"", 405),
    ]
    async with served(tmp_path) as server:
        for method, headers, status in refused:
            head = method + b" " + path.encode() + b" HTTP/1.1\r\n" + HOST + headers
            answer = await server.ask(head, BODY if method == b"POST" else b"")
            found = json.loads(answer.body)
            assert (answer.status, found.keys()) == (status, shape), found
            if path == "/api/chat":
                assert isinstance(found["error"], str)


def test_only_http_1_0_may_leave_the_host_out() -> None:
    """HAProxy's health checks do. A page's request has the page's origin."""
    LOCAL.check("GET", "/health/ready", [], needs_host=False)
    with pytest.raises(Forbidden, match="Send a Host header"):
        LOCAL.check("GET", "/health/ready", [])
    for headers in ([(b"host", b"evil.example")], [(b"origin", b"http://evil.example")]):
        with pytest.raises(Forbidden):
            LOCAL.check("POST", "/api/chat", headers, needs_host=False)
