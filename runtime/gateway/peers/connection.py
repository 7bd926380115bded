"""Connections to other servers of the fleet: kept alive, authenticated, and with a timeout for every wait.

| what happens                                      | error                                             |
|---------------------------------------------------|---------------------------------------------------|
| no listener, a refused certificate, a reset       | node_failed, may be retried                       |
| the node answers 421                              | node_failed, may be retried                       |
| `lost` reports the node silent before its answer  | node_failed, may be retried                       |
| the connection breaks, or the node is silent,     | node_failed                                       |
| after the answer's first bytes                    |                                                   |

Requests whose bodies are in memory, which are nearly all, use `peers.wire`. Forms, changes, reports and files use
aiohttp.
"""

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache

import aiohttp
from yarl import URL

from fleet.signatures import HEADER as SIGNATURE
from fleet.signatures import FleetKey, SignedRequest
from fleet.tls import FleetTls, cause_of
from registry.base.session import BoundedConnector
from registry.base.wording import quoted
from registry.errors import BadRequest, NodeFailed
from runtime.gateway.peers.hop import HEADER
from runtime.gateway.peers.wire.connection import WireConnection
from runtime.gateway.peers.wire.pool import NodeAddress, WirePool
from runtime.gateway.request import UploadedForm

log = logging.getLogger("roundhouse.fleet")
OPEN_SECONDS = 15.0
"""Longest wait for a connection and its TLS handshake, which take seconds when many clients reconnect at once."""
USER_TIMEOUT_MS = 3000
"""Milliseconds until unacknowledged bytes end a connection: a cable was cut, or the machine is off."""
KEEPALIVE = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 2}
"""Seconds without a byte until the system asks the other side for a sign, and until it expects that. So it notices a
connection that a restarted machine or a router has forgotten, while the node reports on another one."""
STILL_SECONDS = 0.5
"""A timeout that is noticed this late shows that the process stood still."""
BUFFER = 64 * 1024
IDLE_SECONDS = 30.0
"""Shorter than a node keeps idle connections, so that it never closes one while a request is on its way."""
MISDIRECTED = 421
STATUSES = range(200, 600)
"""Statuses with which an answer can end."""
MOST_ADDRESSES = 4096
"""Number of cached node addresses."""
LONGEST_CAUSE = 1000
"""Most bytes of a refusal's text that are logged."""
ANSWER_DROPPED = frozenset((
    b"connection", b"keep-alive", b"transfer-encoding", b"date", b"server", b"x-request-id", b"request-id", b"upgrade",
    b"trailer",
))  # fmt: skip
"""Answer headers that are not forwarded: hop-by-hop headers and those that this server sets itself."""
REQUEST_DROPPED = frozenset((
    b"host", b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"expect",
    b"content-length", b"content-encoding", b"accept-encoding", b"cookie", b"origin", b"referer", b"authorization",
    b"x-api-key", b"api-key", b"proxy-authorization", b"x-request-id", HEADER.encode(), SIGNATURE.encode(),
))  # fmt: skip
"""Request headers that are not forwarded: hop-by-hop headers, credentials (the hop names the key's id) and
those of browsers."""
KEPT_HEADERS = ("_headers", "_raw_headers")
"""Private attributes in which aiohttp keeps the headers of a response."""
Body = bytes | AsyncIterator[bytes] | None
FORM_DROPPED = frozenset((b"content-type",))
"""Headers that are dropped from forms, which are encoded again."""


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """A client's request to forward."""

    method: str
    node: str
    address: str
    path: str
    """Including the query."""
    headers: Sequence[tuple[bytes, bytes]]
    """The client's, unchanged."""
    context: str
    """The value of the fleet's own header (`runtime.gateway.peers.hop`)."""
    id: str


class PeerAnswer:
    """`runtime.gateway.backend.RelayedAnswer`."""

    def __init__(
        self, node: str, status: int, headers: Iterable[tuple[bytes, bytes]], read: Callable[[], Awaitable[bytes]]
    ) -> None:
        """headers: with lower-case names. read: returns the next bytes, or b'' at the end."""
        self._node, self._read, self.status = node, read, status
        self.headers: Mapping[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name not in ANSWER_DROPPED
        }

    async def read(self) -> bytes:
        try:
            return await self._read()
        except (aiohttp.ClientError, OSError) as error:
            raise broken(self._node, error, again=False) from None


class _Exchange:
    """A request on a connection of `wire`. A class, because a generator costs each stream more memory and time."""

    __slots__ = ("_body", "_client", "_connection", "_head", "_node")

    def __init__(self, client: "PeerClient", node: NodeAddress, head: bytes, body: bytes) -> None:
        self._client, self._node, self._head, self._body = client, node, head, body
        self._connection: WireConnection | None = None

    async def __aenter__(self) -> PeerAnswer:
        connection = self._connection = await self._client.begin(self._node, self._head, self._body)
        answer = PeerAnswer(self._node.name, connection.status, connection.headers, connection.read)
        connection.headers, self._head = [], b""  # frees 1.5 KiB per stream
        return answer

    async def __aexit__(self, *_: object) -> None:
        assert self._connection is not None, "it was entered"
        self._client.end(self._node, self._connection)


class PeerClient:
    """All connections of this server to the others. Created and closed on the event loop."""

    def __init__(self, identity: FleetTls | FleetKey) -> None:
        self._key = identity if isinstance(identity, FleetKey) else None
        self._refusals = {} if isinstance(identity, FleetKey) else identity.refusals
        tls = identity.client
        connector = BoundedConnector(
            limit=0,  # one per client request at most, and those are bounded on arrival
            keepalive_timeout=IDLE_SECONDS,
            ssl=True if tls is None else tls,
            socket_factory=lambda address: _socket(address[0], address[2]),
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
        self._wire = WirePool(tls, _socket, IDLE_SECONDS)
        self._addresses = lru_cache(MOST_ADDRESSES)(self._read_address)
        self._is_cut_off = False
        self._beginning: dict[str, set[asyncio.Timeout]] = {}
        self._running: dict[str, set[aiohttp.ClientResponse | WireConnection]] = {}

    async def close(self) -> None:
        self._wire.close()
        await self._session.close()

    def send(self, request: PeerRequest, body: bytes | UploadedForm) -> AbstractAsyncContextManager[PeerAnswer]:
        """Forward a request. Leaving early closes the connection, which cancels it there. Raises NodeFailed."""
        if self._is_cut_off:
            raise NodeFailed("This server is shutting down.", again=True, retry_after=1)
        if isinstance(body, UploadedForm):
            return self.exchange(request, _form(body), REQUEST_DROPPED | FORM_DROPPED)
        there = self._addresses(request.node, request.address)
        return _Exchange(self, there, _head(request, there, self._own_headers(request, request.path), len(body)), body)

    async def begin(self, node: NodeAddress, head: bytes, body: bytes) -> WireConnection:
        """Send a request, and return its connection once the head of its answer has arrived. Raises NodeFailed.

        Call `end` afterwards.
        """
        connection = self._wire.take(node) or await self._opened(node)
        self._running.setdefault(node.name, set()).add(connection)
        try:
            await connection.send(head, body)
            if connection.status == MISDIRECTED:
                raise _misdirected(node.name)
            if connection.status not in STATUSES:
                raise ConnectionError(f"its answer has the status {connection.status}")
        except BaseException as error:
            self.end(node, connection)
            if not isinstance(error, OSError):
                raise
            raise self._broken(node.name, error) from None
        return connection

    def end(self, node: NodeAddress, connection: WireConnection) -> None:
        """Return a connection to the pool, or close it if its answer was not read completely."""
        self._running[node.name].discard(connection)
        self._wire.give(node, connection)

    async def _opened(self, node: NodeAddress) -> WireConnection:
        """Raises NodeFailed."""
        beginning = self._beginning.setdefault(node.name, set())
        limit = asyncio.timeout(OPEN_SECONDS)
        try:
            async with limit:
                beginning.add(limit)
                return await self._wire.open(node)
        except OSError as error:  # includes TimeoutError
            raise self._broken(node.name, error) from None
        finally:
            beginning.discard(limit)

    @asynccontextmanager
    async def exchange(
        self, request: PeerRequest, body: Body | aiohttp.FormData, dropped: frozenset[bytes] = REQUEST_DROPPED
    ) -> AsyncIterator[PeerAnswer]:
        """Like `send`, with a body that may still be arriving. Raises NodeFailed.

        dropped: headers of the client that are not forwarded.
        """
        node, url = request.node, self._url(request.node, request.address, request.path)
        passed = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in request.headers
            if name not in dropped and not name.startswith(b"sec-")
        ]
        passed += self._own_headers(request, url.raw_path_qs)
        beginning = self._beginning.setdefault(node, set())
        limit = asyncio.timeout(None)
        try:
            async with limit:
                beginning.add(limit)
                response = await self._session.request(
                    request.method, url, data=body, headers=passed, allow_redirects=False, server_hostname=node
                )
        except TimeoutError as error:
            raise broken(node, error, again=True) from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._broken(node, error) from None
        finally:
            beginning.discard(limit)
        running = self._running.setdefault(node, set())
        running.add(response)
        try:
            if response.status == MISDIRECTED:
                raise _misdirected(node)
            if response.status not in STATUSES:
                raise broken(node, ConnectionError(f"its answer has the status {response.status}"), again=True)
            answered = [(name.lower(), value) for name, value in response.raw_headers]
            for name in KEPT_HEADERS:  # frees 5 KiB per stream
                vars(response).pop(name, None)
            yield PeerAnswer(node, response.status, answered, response.content.readany)
        finally:
            running.discard(response)
            response.release() if response.content.at_eof() else response.close()

    async def ask(self, method: str, node: str, address: str, path: str) -> bytes | None:
        """Request a short answer from a path between servers. None if the status is 204. Raises NodeFailed."""
        try:
            url = self._url(node, address, path)
            signed = self._signed(node, method, url.raw_path_qs)
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
        """Read a stream. silence: seconds without data until it counts as broken. Raises NodeFailed."""
        try:
            url = self._url(node, address, path)
            signed = self._signed(node, "GET", url.raw_path_qs)
            async with asyncio.timeout(OPEN_SECONDS + silence):
                response = await self._session.get(url, headers=signed, server_hostname=node, allow_redirects=False)
            async with response:
                if response.status != 200:
                    async with asyncio.timeout(silence):
                        text = (await response.content.read(LONGEST_CAUSE)).decode("utf-8", "replace")
                    raise NodeFailed(f"Node '{node}' answers with status {response.status}: {text}")
                yield _chunks(response.content, silence)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._broken(node, error) from None

    def _broken(self, node: str, error: Exception) -> NodeFailed:
        """The error for a request of which no answer has come. A refused certificate is its cause."""
        return broken(node, error, again=True, cause=self._refusals.pop(node, None))

    def _url(self, node: str, address: str, path: str) -> URL:
        """Raises NodeFailed for an address that is none, or if only one of both servers uses TLS."""
        try:
            url, key = URL(f"{address}{path}", encoded=True), self._key
            (url.host or "").encode("idna")  # the resolver would raise UnicodeError
        except ValueError:
            raise NodeFailed(f"Node '{node}' has the address {quoted(address)}, which is no URL.", again=True) from None
        if (url.scheme == "http") != (key is not None) or (key is not None and key.is_local and not _is_here(url)):
            own = "certificates" if key is None else "neither certificates nor --fleet-key" if key.is_local else "a key"
            raise NodeFailed(f"Node '{node}' at {address} cannot be reached by a server with {own}.", again=True)
        return url

    def _read_address(self, node: str, address: str) -> NodeAddress:
        """Raises NodeFailed in the same cases as `_url`."""
        url = self._url(node, address, "")
        return NodeAddress(node, url.host or "", url.port or 0)

    def _own_headers(self, request: PeerRequest, path: str) -> list[tuple[str, str]]:
        """Headers that this server adds. path: as `_signed`."""
        signed = self._signed(request.node, request.method, path, request.context)
        return [(HEADER, request.context), ("x-request-id", request.id), *signed]

    def _signed(self, node: str, method: str, path: str, context: str = "") -> list[tuple[str, str]]:
        """path: including the query."""
        if self._key is None:
            return []
        return [(SIGNATURE, self._key.sign(SignedRequest(node, method, path, context)))]

    def hears(self, node: str, seconds: float) -> bool:
        """Whether a connection with a running request has received something from a node in the last seconds."""
        since = asyncio.get_running_loop().time() - seconds
        return any(isinstance(one, WireConnection) and one.received_at > since for one in self._running.get(node, ()))

    def cut_off(self) -> None:
        """End all requests, and forward no more."""
        self._is_cut_off = True
        for node in {*self._beginning, *self._running}:
            self.lost(node)

    def lost(self, node: str) -> None:
        """End all requests at a silent node. Those whose answer has not begun may be retried elsewhere."""
        now = asyncio.get_running_loop().time()
        for limit in tuple(self._beginning.get(node, ())):
            with suppress(RuntimeError):  # it has ended meanwhile
                limit.reschedule(now)
        for one in tuple(self._running.get(node, ())):
            one.close()


async def _chunks(content: aiohttp.StreamReader, silence: float) -> AsyncIterator[bytes]:
    """Read what arrives. Raises TimeoutError after `silence` seconds without data.

    After this process stood still, it reads first what arrived meanwhile: the event loop runs timers before it reads.
    """
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + silence
        try:
            async with asyncio.timeout_at(due):
                data = await content.readany()
        except TimeoutError:
            if loop.time() - due > STILL_SECONDS:
                continue
            raise
        if not data:
            return
        yield data


def broken(node: str, error: Exception, *, again: bool, cause: str | None = None) -> NodeFailed:
    """Log a failed connection and return the error for its request. cause: None to use the error's text."""
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    if cause is None:
        cause = cause_of(inner) if isinstance(inner, ssl.SSLError) else str(inner) or type(inner).__name__
    log.warning("a connection to a node broke", extra={"node": node, "cause": cause})
    if again:
        return NodeFailed(f"Node '{node}' cannot be reached. Try again.", again=True, retry_after=1)
    return NodeFailed(f"Node '{node}' broke off in the middle of its answer.")


def _misdirected(node: str) -> NodeFailed:
    return NodeFailed(f"Node '{node}' does not take this request now.", again=True, retry_after=1)


def _head(request: PeerRequest, node: NodeAddress, own: Iterable[tuple[str, str]], size: int) -> bytes:
    """Write the head of a POST with a body of `size` bytes. Raises BadRequest."""
    host = f"[{node.host}]" if ":" in node.host else node.host
    first = f"POST {request.path} HTTP/1.1\r\nhost: {host}:{node.port}\r\naccept-encoding: identity\r\n"
    last = "".join([f"{name}: {value}\r\n" for name, value in own]) + f"content-length: {size}\r\n\r\n"
    passed = [
        b"%b: %b\r\n" % header
        for header in request.headers
        if header[0] not in REQUEST_DROPPED and not header[0].startswith(b"sec-")
    ]
    middle = b"".join(passed)
    if middle.count(b"\n") != len(passed) or middle.count(b"\r") != len(passed):  # line breaks would inject a header
        raise BadRequest("Send headers without line breaks in their values.", code="invalid_http")
    return first.encode("latin-1") + middle + last.encode("latin-1")


def _is_here(url: URL) -> bool:
    """Whether an address is on this machine."""
    with suppress(ValueError):
        return ipaddress.ip_address(url.host or "").is_loopback
    return url.host == "localhost"


def _form(form: UploadedForm) -> aiohttp.FormData:
    """Rebuild the form with the same fields and bytes. The file is read while it is sent."""
    data = aiohttp.FormData()
    for name, values in form.fields.items():
        for value in values:
            data.add_field(name, value)
    data.add_field("file", form.file.open("rb"), filename=form.name or "file", content_type="application/octet-stream")
    return data


def _socket(family: int, protocol: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in KEEPALIVE.items():
        made.setsockopt(socket.IPPROTO_TCP, option, seconds)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    return made
