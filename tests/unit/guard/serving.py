"""The real application with its guard on a real uvicorn, over scripted slots, and a plain socket as its client."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvicorn.server

from runtime.http.guard.bodies import BodyMiddleware
from runtime.http.guard.layers import layers, uvicorn_options
from runtime.http.guard.memory import BodyMemory
from tests.unit.http.fakes import FakeGateway, application

HOST = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
PATIENCE = 200.0
"""Seconds until a test gives up waiting."""


@dataclass
class Served:
    gateway: FakeGateway
    server: uvicorn.Server
    port: int
    memory: BodyMemory

    async def connect(self, limit: int = 2**20) -> "Wire":
        return Wire(*await asyncio.open_connection("127.0.0.1", self.port, limit=limit))

    async def ask(self, head: bytes, body: bytes = b"") -> "Answer":
        """Make a request on a new connection. head: its lines up to the blank one."""
        wire = await self.connect()
        try:
            await wire.send(head + b"\r\n" + body)
            return await wire.answer()
        finally:
            wire.close()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def error(self) -> dict[str, Any]:
        """Return the whole error, in OpenAI's format."""
        assert self.headers["content-type"] == "application/json"
        found: dict[str, Any] = json.loads(self.body)["error"]
        assert found.keys() >= {"message", "type", "param", "code"}
        return found


@dataclass
class Wire:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> Answer:
        async with asyncio.timeout(PATIENCE):
            while (raw := await self.reader.readuntil(b"\r\n\r\n")) == INTERIM:
                pass
            head = raw.decode().split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
            if "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                body = await self._chunks()
        return Answer(int(head[0].split()[1]), headers, body)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int((await self.reader.readline()).strip(), 16):
            body += await self.reader.readexactly(size)
            await self.reader.readline()
        await self.reader.readline()
        return body

    async def ended(self) -> bytes:
        """Return what the server still sends until it closes the connection."""
        rest = b""
        try:
            async with asyncio.timeout(PATIENCE):
                while part := await self.reader.read(65536):
                    rest += part
        except ConnectionError:
            pass
        return rest

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def served(folder: Path, **settings: Any) -> AsyncIterator[Served]:
    gateway = FakeGateway(folder, **settings)
    around = layers(gateway.settings)
    memory = next(given["memory"] for layer, given in around if layer is BodyMiddleware)
    app = application(gateway, around)
    config = uvicorn.Config(app, port=0, log_config=None, access_log=False, **uvicorn_options(gateway.settings))
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.server, "asyncio", _Hurried())
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0)
        try:
            yield Served(gateway, server, server.servers[0].sockets[0].getsockname()[1], memory)
        finally:
            server.should_exit = True
            await task


class _Hurried:
    """asyncio for uvicorn, which otherwise checks only ten times a second whether it should stop."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 20)
