"""Send a request through an ASGI application in this process: no port, no sockets, bounded buffering."""

import asyncio
import contextvars
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

AsgiApp = Callable[[MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Any]

PRIORITY = "x-vllm-priority"
"""The header from which vLLM reads a request's priority."""
OWN_PRIORITY = "1"
"""Priority of our own requests. Without it they would be critical and shorten every step (`steps.budget`)."""
BUFFER = 64
"""Body parts that may wait for the reader before the application has to wait."""


class Exchange:
    """A running request. Await `start` once, then `part` until it returns None. `leave` acts as a disconnect."""

    def __init__(
        self, app: AsgiApp, path: str, body: bytes, context: contextvars.Context, headers: Mapping[str, str]
    ) -> None:
        self._gone = asyncio.Event()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._parts: deque[bytes] = deque()
        self._body: bytes | None = body
        self._failure: BaseException | None = None
        self._ended = False
        self.status = 0
        self.content_type = ""
        all_headers = {"content-type": "application/json", "content-length": str(len(body)), **headers}
        running = self._run(app, path, all_headers)
        self._task = asyncio.get_running_loop().create_task(running, context=context)

    async def _run(self, app: AsgiApp, path: str, headers: Mapping[str, str]) -> None:
        scope = {
            "type": "http",
            # 2.4: sending to a disconnected client raises OSError, so Starlette needs no task to watch for disconnects
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
            "client": ("slot", 0),
            "server": ("slot", 0),
            "state": {},
        }
        try:
            await app(scope, self._receive, self._send)
        except Exception as error:
            self._failure = self._failure or error
        finally:
            self._ended = True
            self._wake.set()

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if self._gone.is_set():
            raise OSError("the client is gone")
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = {name.lower(): value for name, value in message.get("headers", ())}
            self.content_type = headers.get(b"content-type", b"").decode("latin-1")
        elif part := message.get("body"):
            self._parts.append(part)
            if len(self._parts) >= BUFFER:
                self._room.clear()
        self._wake.set()
        await self._room.wait()

    @property
    def running(self) -> bool:
        """Whether the application is still working on it."""
        return not self._ended

    async def start(self) -> bool:
        """Wait for the status. Returns False if the application ended without an answer."""
        while not self.status and not self._ended and not self._failure:
            await self._wait()
        self._raise()
        return bool(self.status)

    async def until(self, event: asyncio.Event) -> None:
        """Wait for an event of this request or for its end."""
        if event.is_set():
            return
        waiting = asyncio.ensure_future(event.wait())
        waiting.add_done_callback(lambda _: self._wake.set())
        try:
            while not (waiting.done() or self._ended or self._failure):
                await self._wait()
        finally:
            waiting.cancel()
        self._raise()

    async def part(self) -> bytes | None:
        """Return the body bytes received so far, at least one; None at the end. Raises the error given to `fail`."""
        while not self._parts:
            self._raise()
            if self._ended:
                return None
            await self._wait()
        data = self._parts.popleft() if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._room.set()
        return data

    async def _wait(self) -> None:
        self._wake.clear()
        await self._wake.wait()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    def fail(self, error: BaseException) -> None:
        """End the reader at once with `error`; `leave` ends the application."""
        self._failure = error
        self._wake.set()

    def leave(self) -> None:
        """Disconnect: the application notices at its next `receive`, and no longer waits for the reader."""
        self._gone.set()
        self._room.set()

    async def ended(self, within: float) -> None:
        """Wait for the application to end; cancel it after `within` seconds."""
        if self._task.done():
            return
        done, _ = await asyncio.wait([self._task], timeout=within)
        if not done:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=within)


async def whole_answer(app: AsgiApp, path: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
    """Return status and complete body of the answer to a request of our own; status 0 if there was no answer."""
    exchange = Exchange(app, path, json.dumps(body).encode(), contextvars.copy_context(), {PRIORITY: OWN_PRIORITY})
    parts = []
    try:
        await exchange.start()
        while (data := await exchange.part()) is not None:
            parts.append(data)
    finally:
        exchange.leave()
    return exchange.status, b"".join(parts)
