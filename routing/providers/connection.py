"""Connections to a provider, with four time-outs, bounds, and no redirects.

| what happens                                   | error                                       |
|------------------------------------------------|---------------------------------------------|
| unknown name, no listener, TLS failure         | provider_unreachable, retried               |
| the name resolves to a refused address         | provider_address                            |
| the variable with the key is not set           | provider_key                                |
| no connection in time                          | provider_timeout, retried                   |
| silence before the first words or in between   | provider_timeout                            |
| it takes longer than `whole`                   | provider_timeout, not the provider's fault  |
| the client's time is over                      | deadline_exceeded, not the provider's fault |
| the connection breaks                          | provider_failed, retried                    |
| more than `max_answer` bytes                   | provider_answer                             |
"""

import asyncio
import os
import socket
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from yarl import URL

from registry.base.address import AddressRefused, AddressRules, host_fault
from registry.base.lazy import LazyModule
from registry.errors import DeadlineExceeded, ProviderFailed, ProviderTimedOut
from registry.recipes.provider import Protocol, Provider
from routing.providers import faults

if TYPE_CHECKING:
    import aiohttp
else:
    aiohttp = LazyModule("aiohttp")

Body: TypeAlias = "bytes | Callable[[], aiohttp.FormData]"
"""JSON bytes, or a factory of a form for each attempt."""
BUFFER = 64 * 1024
"""Half of the bytes that are buffered before the provider is throttled."""
ERROR_BODY = 64 * 1024
"""Most bytes of an error's body that are read."""
PACKED, UNREADABLE = ("gzip", "x-gzip", "deflate"), ("br", "zstd")
"""Encodings that some servers use even when asked for identity."""
LEAST_KEY = 6
"""Fewest characters of a key that is redacted. Servers without keys are often given a single letter."""
PRIVATE_REMEDY = "`private_addresses: true` in the recipe allows it"
VERSION = "2023-06-01"
"""Version of Anthropic's API."""


class ClientDeadlines(NamedTuple):
    """How long the client waits, on the loop's clock. None to use the recipe's time-outs."""

    first: float | None = None
    """Latest time for the first words."""
    whole: float | None = None
    """Latest time for the whole answer."""


FOREVER = ClientDeadlines()


class _Bound(NamedTuple):
    """The earliest of several deadlines."""

    at: float
    of: Literal["client", "silence", "whole"] = "silence"
    """The reason for the deadline: the client, the provider's silence, or the time for the whole answer."""


class Reply:
    """A response whose head has arrived. `chunks` can be used once."""

    def __init__(self, provider: Provider, response: "aiohttp.ClientResponse", first: _Bound, whole: _Bound) -> None:
        self._provider, self._response, self._first, self._whole = provider, response, first, whole
        self.status = response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.headers.items()}
        self.content_type = response.headers.get("content-type", "").lower()
        self._packed = response.headers.get("content-encoding", "").lower()

    @property
    def is_answer(self) -> bool:
        """Whether the status is a success. Some frameworks answer every POST with 201."""
        return self.status in (200, 201)

    @property
    def is_stream(self) -> bool:
        return self.content_type.startswith("text/event-stream")

    async def chunks(self, begun: Callable[[], bool] = lambda: False) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. begun: whether silence is bounded from here on."""
        length, most = 0, self._provider.max_answer
        if (self._response.content_length or 0) > most:
            raise faults.bad_answer(self._provider.id, f"answers with more than {most} bytes")
        if self._packed in UNREADABLE and self.is_answer:
            raise faults.bad_answer(self._provider.id, f"answers in '{self._packed}', though asked for 'identity'")
        loop, content = asyncio.get_running_loop(), self._response.content
        unpack = zlib.decompressobj(zlib.MAX_WBITS | 32) if self._packed in PACKED else None  # 32: accepts both formats
        while True:
            bound = self._first
            if begun():
                bound = min(self._whole, _Bound(loop.time() + self._provider.timeouts.between_bytes))
            try:
                async with asyncio.timeout_at(bound.at):
                    data = await content.readany()
            except TimeoutError:
                raise silent(self._provider, begun(), bound) from None
            except (aiohttp.ClientError, OSError) as error:
                raise _broken(self._provider, error) from None
            if not data:
                return
            for part in (data,) if unpack is None else self._unpacked(unpack, data):
                length += len(part)
                if length > most:
                    raise faults.bad_answer(self._provider.id, f"answers with more than {most} bytes")
                yield part

    def _unpacked(self, unpack: "zlib._Decompress", data: bytes) -> Iterator[bytes]:
        """Yield decompressed parts: a few bytes may expand a thousandfold."""
        try:
            while True:
                part = unpack.decompress(data, BUFFER)
                yield part
                data = unpack.unconsumed_tail
                if not data and len(part) < BUFFER:
                    return
        except zlib.error:
            raise faults.bad_answer(self._provider.id, f"answers with what is no '{self._packed}'") from None

    async def whole(self) -> bytes:
        chunks_read: list[bytes] = []
        async for chunk in self.chunks(lambda: bool(chunks_read)):
            chunks_read.append(chunk)
        return b"".join(chunks_read)

    async def error_body(self) -> bytes:
        """Return the start of an error's body."""
        content = bytearray()
        async for chunk in self.chunks():
            content += chunk
            if len(content) > ERROR_BODY:
                break
        return without_key(self._provider, bytes(content[:ERROR_BODY]))

    async def release(self) -> None:
        """Read the end of a finished answer, so that its connection can be reused."""
        try:
            async with asyncio.timeout(0.1):
                await self._response.content.readany()
        except (TimeoutError, aiohttp.ClientError, OSError):
            return


class Connection:
    """A provider's connections. Made and closed on the event loop."""

    def __init__(self, provider: Provider) -> None:
        from registry.base.session import Resolver, guarded_session

        self._provider = provider
        self._rules = AddressRules("a provider", PRIVATE_REMEDY, private=provider.private_addresses)
        sending = aiohttp.TraceConfig()
        sending.on_request_headers_sent.append(_is_sent)
        timeout = aiohttp.ClientTimeout(total=None, connect=provider.timeouts.connect)
        self._session = guarded_session(Resolver(self._rules), BUFFER, timeout, [sending])

    async def close(self) -> None:
        await self._session.close()

    async def models(self) -> bytes:
        """List the provider's models. Raises ProviderFailed."""
        # otherwise Anthropic lists only the newest 20
        query = "?limit=1000" if self._provider.protocol is Protocol.ANTHROPIC else ""
        async with self.request("GET", f"models{query}", b"", {}) as reply:
            if reply.status != 200:
                raise faults.failure(self._provider.id, reply.status, await reply.error_body(), reply.headers)
            return await reply.whole()

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        body: Body,
        passed: Mapping[str, str],
        until: ClientDeadlines = FOREVER,
        sent: Callable[[], None] = lambda: None,
    ) -> AsyncIterator[Reply]:
        """Send a request. Leaving the context early closes the connection. Raises ProviderFailed, DeadlineExceeded.

        Args:
            passed: headers with the request's id and its trace context.
            until: how long the client waits, in addition to the recipe's time-outs.
            sent: called when the request is on its connection.
        """
        provider, loop = self._provider, asyncio.get_running_loop()
        headers = {**passed, **self._headers()}
        if isinstance(body, bytes) and body:
            headers["content-type"] = "application/json"
        now, times = loop.time(), provider.timeouts
        whole = _Bound(now + times.whole, "whole")
        if until.whole is not None:
            whole = min(whole, _Bound(until.whole, "client"))
        first = min(whole, _Bound(now + times.first_byte))
        if until.first is not None:
            first = min(first, _Bound(until.first, "client"))
        url = f"{provider.base_url}/{path}"
        if (wrong := host_fault(URL(url).host or "", self._rules)) is not None:
            raise _refused(provider, wrong)
        data = body or None if isinstance(body, bytes) else body()
        try:
            async with asyncio.timeout_at(first.at):
                response = await self._session.request(
                    method, url, data=data, headers=headers, allow_redirects=False, trace_request_ctx=sent
                )
        except aiohttp.ConnectionTimeoutError:
            raise ProviderTimedOut(f"Provider '{provider.id}' gave no connection in time.", again=True) from None
        except TimeoutError:
            raise silent(provider, False, first) from None
        except (aiohttp.ClientError, OSError) as error:
            raise _broken(provider, error) from None
        try:
            yield Reply(provider, response, first, whole)
        finally:
            response.close() if not response.content.at_eof() else response.release()

    def _headers(self) -> dict[str, str]:
        provider = self._provider
        headers = dict[str, str]()
        key = key_of(provider)
        if not key and (provider.key_env or provider.key_file):
            where = f"variable {provider.key_env} is not set" if provider.key_env else "file of its key has none"
            raise ProviderFailed(
                f"Provider '{provider.id}' needs a key, and this server's {where}.",
                code="provider_key",
                counts=False,
            )
        if not key.isprintable():
            where = f"variable {provider.key_env}" if provider.key_env else "file of its key"
            raise ProviderFailed(
                f"Provider '{provider.id}' was not called: this server's {where} has a line break or an invisible "
                "character in the key.",
                code="provider_key",
                counts=False,
            )
        if provider.protocol is Protocol.ANTHROPIC:
            headers["anthropic-version"] = VERSION
            return headers | ({"x-api-key": key} if key else {})
        return headers | ({"authorization": f"Bearer {key}"} if key else {})


LONGEST_KEY = 4096


def key_of(provider: Provider) -> str:
    """Return the provider's key without a trailing line end, '' for none. Key files are read on each call."""
    if provider.key_file:
        with suppress(OSError, ValueError), Path(provider.key_file).open(encoding="utf-8") as file:
            return file.read(LONGEST_KEY).strip()
        return ""
    return os.environ.get(provider.key_env or "", "").strip()


def without_key(provider: Provider, body: bytes) -> bytes:
    """Redact the key from an error: some servers repeat the headers they received."""
    key = key_of(provider).encode(errors="replace")
    return body.replace(key, b"***") if len(key) >= LEAST_KEY else body


async def _is_sent(_session: "aiohttp.ClientSession", context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx()


def silent(provider: Provider, begun: bool, passed: _Bound) -> ProviderTimedOut | DeadlineExceeded:
    """Return the error for a deadline that has passed."""
    times = provider.timeouts
    if passed.of == "whole":
        return ProviderTimedOut(f"Provider '{provider.id}' had not ended within {times.whole:g} s.", counts=False)
    if passed.of == "client":
        return DeadlineExceeded(
            f"The request's deadline passed before provider '{provider.id}' had answered. "
            "Send it again with more time, or later."
        )
    if begun:
        return ProviderTimedOut(f"Provider '{provider.id}' was silent for {times.between_bytes:g} s in mid-answer.")
    return ProviderTimedOut(f"Provider '{provider.id}' did not begin its answer within {times.first_byte:g} s.")


def _refused(provider: Provider, why: str) -> ProviderFailed:
    return ProviderFailed(f"Provider '{provider.id}' was not called: {why}.", code="provider_address", counts=False)


def _broken(provider: Provider, error: Exception) -> ProviderFailed:
    inner = getattr(error, "os_error", error)
    if isinstance(inner, AddressRefused):
        return _refused(provider, str(inner))
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.InvalidURL):
        why = "its name has no address" if isinstance(inner, socket.gaierror) else type(inner).__name__
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            why = "its certificate is not one that this machine trusts"
            if fault := getattr(error.certificate_error, "verify_message", ""):  # such as 'certificate has expired'
                why += f" ({fault.rstrip('.')})"
        return ProviderFailed(
            f"Provider '{provider.id}' cannot be reached: {why}.",
            code="provider_unreachable",
            again=True,
        )
    return ProviderFailed(f"The connection to provider '{provider.id}' broke: {type(error).__name__}.", again=True)
