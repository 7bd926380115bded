"""Connections to other servers of the fleet: kept alive, with certificates or signed, and no silence without an end.

| what happens                                      | error                                             |
|---------------------------------------------------|---------------------------------------------------|
| no listener, a refused certificate, a reset       | node_failed, again                                |
| the node answers 421                              | node_failed, again                                |
| the node is silent while its answer has not begun | node_failed, again; `lost` says when it is silent |
| the connection breaks, or the node is silent,     | node_failed                                       |
| after the answer's first bytes                    |                                                   |
"""

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import aiohttp
from yarl import URL

from fleet.signatures import HEADER as SIGNATURE
from fleet.signatures import FleetKey, SignedRequest
from fleet.tls import FleetTls, cause_of
from registry.errors import NodeFailed
from runtime.gateway.peers.hop import HEADER
from runtime.gateway.request import ClientMessage, UploadedForm

log = logging.getLogger("roundhouse.fleet")
OPEN_SECONDS = 15.0
"""Until a connection is open with its TLS handshake: where a whole crowd comes back, a node needs seconds for those."""
USER_TIMEOUT_MS = 3000
"""Milliseconds for which sent bytes may stay unacknowledged, also the very first: a cable that is cut, no machine."""
BUFFER = 64 * 1024
IDLE_SECONDS = 30.0
"""Less than a node keeps an idle connection, so that none is closed while a request is on its way."""
MISDIRECTED = 421
LONGEST_CAUSE = 1000
"""Bytes of a refusal's text for the log."""
ANSWER_DROPPED = frozenset((
    "connection", "keep-alive", "transfer-encoding", "date", "server", "x-request-id", "request-id", "upgrade",
    "trailer",
))  # fmt: skip
"""Headers of the connection, and those that the server in front writes itself."""
REQUEST_DROPPED = frozenset((
    b"host", b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"expect",
    b"content-length", b"content-encoding", b"accept-encoding", b"cookie", b"origin", b"referer", b"authorization",
    b"x-api-key", b"api-key", b"proxy-authorization", b"x-request-id", HEADER.encode(), SIGNATURE.encode(),
))  # fmt: skip
"""Headers of the connection; keys, since the node knows the key by its id; what pages send."""
KEPT_HEADERS = ("_headers", "_raw_headers")
"""Private attributes in which aiohttp keeps the headers of a response."""
Body = bytes | AsyncIterator[bytes] | None
FORM_DROPPED = frozenset((b"content-type",))
"""Headers of a form, which is written anew."""


class PeerAnswer:
    """`runtime.gateway.backend.RelayedAnswer`."""

    def __init__(self, node: str, response: aiohttp.ClientResponse) -> None:
        self._node, self._response = node, response
        self.status = response.status
        self.headers: Mapping[str, str] = {
            name: value.decode("latin-1")
            for name, value in ((raw.decode("latin-1").lower(), value) for raw, value in response.raw_headers)
            if name not in ANSWER_DROPPED
        }
        for name in KEPT_HEADERS:  # 5 KiB of each stream, which nothing reads any more
            vars(response).pop(name, None)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        content = self._response.content
        try:
            while data := await content.readany():
                yield data
        except (aiohttp.ClientError, OSError) as error:
            raise broken(self._node, error, again=False) from None


class PeerClient:
    """All connections of one server to the others. Made and closed on the event loop."""

    def __init__(self, identity: FleetTls | FleetKey) -> None:
        self._key = identity if isinstance(identity, FleetKey) else None
        self._refusals = {} if isinstance(identity, FleetKey) else identity.refusals
        connector = aiohttp.TCPConnector(
            limit=0,  # each request of a client has one at most, and those are bounded where they come in
            keepalive_timeout=IDLE_SECONDS,
            ssl=True if isinstance(identity, FleetKey) else identity.client,
            socket_factory=_socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=BUFFER,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None, connect=OPEN_SECONDS),
            headers={"accept-encoding": "identity"},
            skip_auto_headers=("user-agent", "accept"),
        )
        self._beginning: dict[str, set[asyncio.Timeout]] = {}
        self._running: dict[str, set[aiohttp.ClientResponse]] = {}

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def send(
        self,
        node: str,
        address: str,
        path: str,
        message: ClientMessage,
        headers: Sequence[tuple[bytes, bytes]],
        context: str,
        request_id: str,
    ) -> AsyncIterator[PeerAnswer]:
        """Pass a request on. Leaving early closes the connection, which cancels the request there.

        Args:
            headers: of the client, as they came.
            context: the value of the fleet's own header (`runtime.gateway.peers.hop`).

        Raises NodeFailed.
        """
        path += f"?{message.query}" if message.query else ""
        is_form = isinstance(message.body, UploadedForm)
        passed = _passed(headers, REQUEST_DROPPED | FORM_DROPPED if is_form else REQUEST_DROPPED)
        body = message.body if isinstance(message.body, bytes) else _form(message.body)
        async with self._exchange("POST", node, address, path, body, passed, context, request_id) as answer:
            yield answer

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        node: str,
        address: str,
        path: str,
        body: Body,
        headers: Sequence[tuple[bytes, bytes]],
        context: str,
        request_id: str,
    ) -> AsyncIterator[PeerAnswer]:
        """Like `send`, for any method, with a body that may still be on its way. Raises NodeFailed."""
        passed = _passed(headers, REQUEST_DROPPED)
        async with self._exchange(method, node, address, path, body, passed, context, request_id) as answer:
            yield answer

    @asynccontextmanager
    async def _exchange(
        self,
        method: str,
        node: str,
        address: str,
        path: str,
        body: Body | aiohttp.FormData,
        headers: Sequence[tuple[str, str]],
        context: str,
        request_id: str,
    ) -> AsyncIterator[PeerAnswer]:
        url = self._url(node, address, path)
        passed = [*headers, (HEADER, context), ("x-request-id", request_id), *self._signed(node, method, url, context)]
        beginning = self._beginning.setdefault(node, set())
        limit = asyncio.timeout(None)
        try:
            async with limit:
                beginning.add(limit)
                response = await self._session.request(
                    method, url, data=body, headers=passed, allow_redirects=False, server_hostname=node
                )
        except TimeoutError as error:
            raise broken(node, error, again=True) from None
        except (aiohttp.ClientError, OSError) as error:
            raise broken(node, error, again=True, cause=self._refusals.pop(node, None)) from None
        finally:
            beginning.discard(limit)
        running = self._running.setdefault(node, set())
        running.add(response)
        try:
            if response.status == MISDIRECTED:
                raise NodeFailed(f"Node '{node}' does not take this request now.", again=True, retry_after=1)
            yield PeerAnswer(node, response)
        finally:
            running.discard(response)
            response.release() if response.content.at_eof() else response.close()

    async def ask(self, method: str, node: str, address: str, path: str) -> bytes | None:
        """Request a short answer of a path between servers; None: 204. Raises NodeFailed."""
        try:
            url = self._url(node, address, path)
            signed = self._signed(node, method, url)
            async with self._session.request(
                method, url, headers=signed, server_hostname=node, allow_redirects=False
            ) as response:
                if response.status not in (200, 204):
                    raise NodeFailed(f"Node '{node}' answers with status {response.status}.")
                return None if response.status == 204 else await response.content.read(BUFFER)
        except (aiohttp.ClientError, OSError) as error:
            raise broken(node, error, again=True) from None

    @asynccontextmanager
    async def follow(self, node: str, address: str, path: str, silence: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Read a stream. silence: seconds until it counts as broken. Raises NodeFailed."""
        timeout = aiohttp.ClientTimeout(total=None, connect=OPEN_SECONDS, sock_read=silence)
        try:
            url = self._url(node, address, path)
            async with self._session.get(
                url,
                headers=self._signed(node, "GET", url),
                timeout=timeout,
                server_hostname=node,
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    text = (await response.content.read(LONGEST_CAUSE)).decode("utf-8", "replace")
                    raise NodeFailed(f"Node '{node}' answers with status {response.status}: {text}")
                yield response.content.iter_any()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise broken(node, error, again=True, cause=self._refusals.pop(node, None)) from None

    def _url(self, node: str, address: str, path: str) -> URL:
        """Raises NodeFailed for a node that is not reached as this server is: by TLS, or with the fleet's key."""
        url, key = URL(f"{address}{path}", encoded=True), self._key
        if (url.scheme == "http") != (key is not None) or (key is not None and key.is_local and not _is_here(url)):
            own = "certificates" if key is None else "neither certificates nor --fleet-key" if key.is_local else "a key"
            raise NodeFailed(f"Node '{node}' at {address} cannot be reached by a server with {own}.", again=True)
        return url

    def _signed(self, node: str, method: str, url: URL, context: str = "") -> list[tuple[str, str]]:
        if self._key is None:
            return []
        return [(SIGNATURE, self._key.sign(SignedRequest(node, method, url.raw_path_qs, context)))]

    def lost(self, node: str) -> None:
        """End all requests at a node that is silent: those whose answer has not begun may be tried elsewhere."""
        now = asyncio.get_running_loop().time()
        for limit in tuple(self._beginning.get(node, ())):
            with suppress(RuntimeError):  # it has just ended
                limit.reschedule(now)
        for response in tuple(self._running.get(node, ())):
            response.close()


def broken(node: str, error: Exception, *, again: bool, cause: str | None = None) -> NodeFailed:
    """The error for a request whose connection failed; logs it. cause: None: the error says it."""
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    if cause is None:
        cause = cause_of(inner) if isinstance(inner, ssl.SSLError) else str(inner) or type(inner).__name__
    log.warning("a connection to a node broke", extra={"node": node, "cause": cause})
    if again:
        return NodeFailed(f"Node '{node}' cannot be reached. Try again.", again=True, retry_after=1)
    return NodeFailed(f"Node '{node}' broke off in the middle of its answer.")


def _passed(headers: Sequence[tuple[bytes, bytes]], dropped: frozenset[bytes]) -> list[tuple[str, str]]:
    return [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in headers
        if name not in dropped and not name.startswith(b"sec-")
    ]


def _is_here(url: URL) -> bool:
    """Whether an address is of this machine."""
    with suppress(ValueError):
        return ipaddress.ip_address(url.host or "").is_loopback
    return url.host == "localhost"


def _form(form: UploadedForm) -> aiohttp.FormData:
    """The same fields and bytes. The file is read while it is sent."""
    data = aiohttp.FormData()
    for name, values in form.fields.items():
        for value in values:
            data.add_field(name, value)
    data.add_field("file", form.file.open("rb"), filename=form.name or "file", content_type="application/octet-stream")
    return data


def _socket(address: "aiohttp.AddrInfoType") -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    return made
