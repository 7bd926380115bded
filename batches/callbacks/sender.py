"""One attempt to deliver an event: signed as Standard Webhooks, without redirects, proxies and cookies.

| what happens                          | `DeliveryOutcome.error` says                      |
|---------------------------------------|---------------------------------------------------|
| an answer with 2xx                    | nothing                                           |
| an answer with 3xx                    | that the redirect is not followed                 |
| another answer                        | its status                                        |
| no complete response head in time     | that it took too long                             |
| no connection, or a broken one        | the kind of error                                 |
| its address is refused                | why                                               |

Bodies of answers are not read. A connection that receives too many bytes is broken off.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from standardwebhooks.webhooks import Webhook as Signer
from yarl import URL

from batches.callbacks.addresses import CallbackAddresses, resolving_for
from batches.callbacks.records import DeliveryOutcome
from registry.base.address import AddressRefused, host_fault
from registry.base.lazy import LazyModule, import_in_thread
from registry.errors import RoundhouseError

if TYPE_CHECKING:
    import aiohttp
else:
    aiohttp = LazyModule("aiohttp")

CONNECT_SECONDS, WHOLE_SECONDS = 5.0, 15.0
BUFFER = 4096
"""Most bytes of an answer that are buffered in memory."""
MOST_ANSWER = 64 * 1024
"""Most bytes of an answer, including its TLS handshake."""


class WebhookEvent(msgspec.Struct):
    """An event in OpenAI's format."""

    id: str
    type: str
    created_at: int
    data: dict[str, str]
    object: str = "event"


def event_body(id_: str, event: str, batch: str, created: float) -> bytes:
    """Return the body of an event, identical in all attempts."""
    return msgspec.json.encode(WebhookEvent(id_, event, int(created), {"id": batch}))


def signed_headers(id_: str, body: bytes, secrets: Sequence[str], now: float) -> dict[str, str]:
    """Return the headers of Standard Webhooks, with a signature for each secret."""
    at = datetime.fromtimestamp(int(now), UTC)
    signatures = (Signer(secret).sign(id_, at, body.decode()) for secret in secrets)
    return {
        "webhook-id": id_,
        "webhook-timestamp": str(int(now)),
        "webhook-signature": " ".join(signatures),
        "content-type": "application/json",
    }


class CallbackSender:
    """Sends callbacks. May be created anywhere; used and closed on one event loop."""

    def __init__(self, addresses: CallbackAddresses) -> None:
        self._addresses = addresses
        self._sessions = dict[str, "aiohttp.ClientSession"]()

    async def send(
        self, url: str, id_: str, body: bytes, secrets: Sequence[str], now: float, team: str = ""
    ) -> DeliveryOutcome:
        """Send an event. now: seconds since the epoch. team: whose URL it is. Raises only CancelledError."""
        target = URL(url)
        if (wrong := host_fault(target.host or "", self._addresses.rules(target.scheme))) is not None:
            return DeliveryOutcome(None, f"It is not called: {wrong}.")
        headers = signed_headers(id_, body, secrets, now)
        await import_in_thread("registry.base.session")
        try:
            with resolving_for(team):
                async with self._session(target.scheme).post(
                    target, data=body, headers=headers, allow_redirects=False
                ) as response:
                    response.close()
                    return _outcome(response.status)
        except aiohttp.ConnectionTimeoutError:
            return DeliveryOutcome(None, f"It gave no connection within {CONNECT_SECONDS:g} s.")
        except TimeoutError:
            return DeliveryOutcome(None, f"It gave no answer within {WHOLE_SECONDS:g} s.")
        except RoundhouseError as error:  # too many names are being resolved
            return DeliveryOutcome(None, error.message)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return DeliveryOutcome(None, _words(error))

    def _session(self, scheme: str) -> "aiohttp.ClientSession":
        from registry.base.session import guarded_session

        if scheme not in self._sessions:
            timeout = aiohttp.ClientTimeout(total=WHOLE_SECONDS, connect=CONNECT_SECONDS)
            resolver = self._addresses.resolver(scheme)
            self._sessions[scheme] = guarded_session(resolver, BUFFER, timeout, most=MOST_ANSWER)
        return self._sessions[scheme]

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()


def _outcome(status: int) -> DeliveryOutcome:
    if 200 <= status < 300:
        return DeliveryOutcome(status)
    if 300 <= status < 400:
        return DeliveryOutcome(status, f"It answered with a redirect ({status}), which is not followed.")
    return DeliveryOutcome(status, f"It answered with status {status}.")


def _words(error: Exception) -> str:
    inner = getattr(error, "os_error", error)
    if isinstance(inner, AddressRefused):
        return f"It is not called: {inner}."
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "Its certificate is not one that this machine trusts."
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"It cannot be reached: {type(inner).__name__}."
    return f"The connection broke: {type(error).__name__}."
