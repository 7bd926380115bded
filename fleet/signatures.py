"""Sign requests between servers of a fleet on a closed network (`--fleet-key`), instead of certificates.

A signature contains the time by the database's clock, a nonce, and an HMAC over both and the request.

| a request                                                  | result                                                  |
|------------------------------------------------------------|---------------------------------------------------------|
| signed with the fleet's key within the last WINDOW_SECONDS | accepted                                                |
| not signed, or signed with another key or for another      | refused with 421; the logs of both servers name the     |
| server, method, path or context                            | cause                                                   |
| signed more than WINDOW_SECONDS before or after now        | the same                                                |
| a signature that was used before                           | the same, even if the first request failed              |
| signed before this server started                          | the same, because it no longer knows the nonces of then |
| signed after the database's clock was set back             | accepted; what was used before stays refused            |

Nothing is encrypted, and neither bodies nor answers are signed, so nobody else may be able to modify traffic on the
network.
"""

import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fleet.tls import Complaints
from registry.errors import BadRequest, Misdirected, NotFound

log = logging.getLogger("roundhouse.fleet")
HEADER = "x-roundhouse-signature"
WINDOW_SECONDS = 30.0
MAX_TAKEN = 1 << 18
"""Signatures to remember, about 40 MB; enough for 4,000 requests per second."""
KEY_BYTES = range(32, 4097)
"""Allowed lengths of the key in bytes, without surrounding white space."""
_FORM = re.compile(r"(\d{1,15})\.([0-9a-f]{16})\.([0-9a-f]{64})\Z")


class SignedRequest(NamedTuple):
    """The parts of a request that a signature covers."""

    node: str
    """The server that is called."""
    method: str
    path: str
    """Path with its query, as sent."""
    context: str
    """Value of the fleet's own header; '' if there is none."""


class Signature(NamedTuple):
    milliseconds: str
    """Time since the epoch, by the database's clock."""
    nonce: str
    digest: str

    @property
    def seconds(self) -> float:
        return int(self.milliseconds) / 1e3


def sign(key: bytes, request: SignedRequest, now: float, nonce: str) -> str:
    """Return the header's value. nonce: 16 hex digits, unique to the request."""
    milliseconds = str(int(now * 1e3))
    return f"{milliseconds}.{nonce}.{_digest(key, request, milliseconds, nonce)}"


def read_signature(value: str) -> Signature | None:
    """Read a signature, or return None if it is malformed."""
    match = _FORM.match(value)
    return None if match is None else Signature(*match.groups())


def fault_of(key: bytes, request: SignedRequest, signature: Signature | None, now: float) -> str | None:
    """Return why a request is not trusted, or None if it is."""
    if signature is None:
        return "the request is not signed with a key of the fleet"
    digest = _digest(key, request, signature.milliseconds, signature.nonce)
    if not hmac.compare_digest(digest, signature.digest):
        return "the signature is from another key, or for another request"
    age = now - signature.seconds
    if abs(age) > WINDOW_SECONDS:
        return f"the signature is {age:.0f} s old" if age > 0 else f"the signature is from {-age:.0f} s in the future"
    return None


def _digest(key: bytes, request: SignedRequest, milliseconds: str, nonce: str) -> str:
    text = "\n".join(("1", milliseconds, nonce, *request))  # none of them can contain a line feed
    return hmac.digest(key, text.encode(), "sha256").hex()


def read_key(path: Path) -> bytes:
    """Read the key from a file. Raises NotFound, BadRequest if it is too short or too long."""
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise NotFound(f"--fleet-key {path} cannot be read: {error.strerror}.") from None
    if len(key) not in KEY_BYTES:
        raise BadRequest(
            f"The fleet's key in {path} has {len(key)} characters, and needs 32 to 4,096. Make one: "
            f"openssl rand -hex 32 > {path}."
        )
    return key


def key_of_pepper(pepper: bytes) -> bytes:
    """Derive the key of a fleet on one machine, whose servers share the pepper."""
    return hmac.digest(pepper, b"fleet", "sha256")


class FleetKey:
    """Signs and checks requests with the fleet's key, in place of `fleet.tls.FleetTls`.

    For one event loop.

    Args:
        name: this server's name.
        clock: the database's clock, in seconds since the epoch.
        is_local: whether all servers are on this machine.
    """

    ends = server = client = None
    """No certificate, and no TLS."""

    def __init__(
        self, name: str, key: bytes, clock: Callable[[], float] = time.time, *, is_local: bool = False
    ) -> None:
        self.name, self.is_local, self._key, self._clock = name, is_local, key, clock
        self._complaints = Complaints("a request to the fleet's port was refused")
        self._since = self._now = clock()
        self._taken: dict[str, float] = {}
        """Used nonces, oldest first, each with the time at which it may be forgotten."""
        self._taken_before: dict[str, float] = {}
        """The same from before the clock was set back, until it gets there again."""

    def refresh(self) -> bool:
        """See `FleetTls`. A key is read only at start."""
        return False

    def sign(self, request: SignedRequest) -> str:
        """Return the value of HEADER for a request that is sent now."""
        return sign(self._key, request, self._clock(), secrets.token_hex(8))

    def check(self, request: SignedRequest, value: str) -> None:
        """Check a received request. Raises Misdirected, so that its sender tries another node."""
        now, signature = self._clock(), read_signature(value)
        if now < self._now - WINDOW_SECONDS:  # set back: until it gets there again, everything would seem too old
            log.warning("the database's clock was set back", extra={"seconds": round(self._now - now)})
            self._since = now - WINDOW_SECONDS
            before = sorted((self._taken_before | self._taken).items(), key=lambda item: item[1])
            self._taken_before, self._taken = dict(before[-MAX_TAKEN:]), {}
        self._now = now
        fault = fault_of(self._key, request, signature, now)
        if fault is None and signature is not None:
            fault = self._take(signature, now)
        if fault is not None:
            self._complaints.add(fault)
            raise Misdirected(f"This server does not trust the request: {fault}.")

    def _take(self, signature: Signature, now: float) -> str | None:
        """Store a nonce. Returns why it is refused, or None if it is accepted."""
        for taken in (self._taken, self._taken_before):
            while taken and next(iter(taken.values())) < now:
                del taken[next(iter(taken))]
        if signature.seconds < self._since:
            return "the signature is older than this server's start"
        if signature.nonce in self._taken or signature.nonce in self._taken_before:
            return "the signature was used before"
        if len(self._taken) >= MAX_TAKEN:
            return f"there were {MAX_TAKEN:,} requests within a minute"
        self._taken[signature.nonce] = now + 2 * WINDOW_SECONDS
        return None
