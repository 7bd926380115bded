"""The minimum cost of a front with these libraries: uvicorn in front, aiohttp with TLS 1.3 behind, bytes between.

    python -m benchmarks.fleet.bare PORT NODE NODE_PORT CERTIFICATES CONTEXT

It knows one node and one context, and does nothing else that a front does: no names, keys, choice of a node, guards,
time limits or records. Its own cost is the libraries'; what a front costs beyond it is Roundhouse's.
"""

import base64
import ssl
import sys
import uuid
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn

from benchmarks.fleet.servers import CONTEXT_ID, ScriptedNode, context_of
from benchmarks.peers.servers import Server
from fleet.certificates import AUTHORITY, SERVER
from runtime.gateway.peers.hop import HEADER

Message = MutableMapping[str, Any]


class BareProxy(Server):
    """A process with the proxy in front of a node."""

    def __init__(self, node: ScriptedNode, folder: Path, certificates: Path) -> None:
        super().__init__("bare", node.model, folder)
        self._node, self._certificates = node, certificates
        self._context = context_of(node.model, str(node.http.get(f"/v1/models/{node.model}").json()["revision"]))

    def command(self) -> Sequence[str]:
        words = [str(self.port), self._node.name, str(self._node.fleet_port), str(self._certificates), self._context]
        return [sys.executable, "-m", "benchmarks.fleet.bare", *words]


class _Application:
    def __init__(self, node: str, port: str, certificates: Path, context: str) -> None:
        self._node, self._url, self._context = node, f"https://127.0.0.1:{port}", context
        self._tls = ssl.create_default_context(cafile=str(certificates / AUTHORITY))
        self._tls.load_cert_chain(certificates / SERVER)
        self._session: aiohttp.ClientSession | None = None

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["path"] == "/health":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})
            return
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, ssl=self._tls)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), bool(message.get("more_body", False))
        context = base64.b64encode(self._context.replace(CONTEXT_ID, str(uuid.uuid4())).encode()).decode()
        headers = {HEADER: context, "content-type": "application/json", "accept-encoding": "identity"}
        async with self._session.post(
            self._url + scope["path"], data=body, headers=headers, server_hostname=self._node
        ) as response:
            kind = response.headers.get("content-type", "").encode()
            start = {"type": "http.response.start", "status": response.status, "headers": [(b"content-type", kind)]}
            await send(start)
            async for data in response.content.iter_any():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body"})


def main() -> None:
    port, node, node_port, certificates, context = sys.argv[1:]
    app = _Application(node, node_port, Path(certificates), context)
    config = uvicorn.Config(app, port=int(port), lifespan="off", log_level="warning", access_log=False)
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
