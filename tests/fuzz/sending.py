"""Sends the exact bytes of a request over its own socket and reads the one answer."""

import http.client
import socket
import time
from typing import NamedTuple

import msgspec

from tests.fuzz.corpus import Raw

MAX_ANSWER = 64 * 2**20
"""Most bytes of an answer that are read."""
LATE = 5.0
"""Seconds after which a server may have closed a new connection without data (`header_seconds` is 10)."""


class Reply(NamedTuple):
    """What came back. Status 0: closed without an answer; -1: not HTTP; -2: no answer in time; -3: no connection."""

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float

    @property
    def code(self) -> str:
        """Return the code of an error of any API."""
        try:
            found = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError):
            return ""
        error = found.get("error") if isinstance(found, dict) else None
        if isinstance(error, dict):
            return str(error.get("code") or error.get("type") or "")
        return str(found.get("error_type", "")) if isinstance(found, dict) else ""


def wire(raw: Raw, host: str) -> bytes:
    headers = list(raw.headers)
    if raw.header("host") is None:
        headers.insert(0, ("Host", host))
    if raw.header("content-length") is None and raw.header("transfer-encoding") is None:
        headers.append(("Content-Length", str(len(raw.body))))
    if raw.header("connection") is None:
        headers.append(("Connection", "close"))
    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
    text = f"{raw.method} {raw.target} HTTP/1.1\r\n{head}\r\n{raw.body}"
    return text.encode("latin-1", "replace")


def send(port: int, raw: Raw, seconds: float) -> Reply:
    """Send a request. Retry if other threads held up this one for so long that the server had closed the connection."""
    reply, late = _send(port, raw, seconds)
    return reply if reply.status or late < LATE else _send(port, raw, seconds)[0]


def _send(port: int, raw: Raw, seconds: float) -> tuple[Reply, float]:
    """Return the answer, and how long after asking for a connection the request was sent."""
    text = wire(raw, f"127.0.0.1:{port}")
    began = time.monotonic()
    late = 0.0

    def reply(status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> tuple[Reply, float]:
        return Reply(status, headers or {}, body, time.monotonic() - began), late

    try:
        sock = socket.create_connection(("127.0.0.1", port), timeout=seconds)
    except OSError:
        return reply(-3)
    with sock:
        try:
            sock.sendall(text)
        except (
            BrokenPipeError,
            ConnectionResetError,
        ):  # refused before all was sent, but the answer may be there
            pass
        except TimeoutError:
            return reply(-2)
        late = time.monotonic() - began
        answer = http.client.HTTPResponse(sock, method=raw.method)
        try:
            answer.begin()
            body = answer.read(MAX_ANSWER)
        except TimeoutError:
            return reply(-2)
        except (ConnectionResetError, http.client.RemoteDisconnected):
            return reply(0)
        except (http.client.HTTPException, ValueError):
            return reply(-1)
        finally:
            answer.close()
        return reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, body)
