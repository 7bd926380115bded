"""TLS 1.3 between the servers of a fleet. Both sides present a certificate of the fleet's authority.

| the other side's certificate                  | result                                                  |
|-----------------------------------------------|---------------------------------------------------------|
| from the fleet's authority, and valid         | connected; its DNS name identifies the server           |
| from another authority, or none               | closed; both logs name the cause                        |
| expired, or not yet valid                     | closed; both logs name the cause                        |
| of a server other than the one at the address | closed by the connecting side; both logs name the cause |
| has not come, and as many others are awaited  | closed; this server's log names the cause               |
| as this server allows                         |                                                         |

A renewed certificate is used for new connections: `refresh` checks whether the files have changed.
"""

import datetime
import logging
import resource
import ssl
import time
from pathlib import Path
from weakref import WeakKeyDictionary

from fleet.certificates import AUTHORITY, SERVER, SERVER_KEY, ServerCertificate, read
from registry.errors import Conflict, NotFound

log = logging.getLogger("roundhouse.fleet")
QUIET_SECONDS = 1.0
"""Least time between log lines about refusals, which anyone who can reach the port may cause."""
HANDSHAKE_SHARE = 4
"""Handshakes may use a quarter of the file descriptors, since their clients have shown no certificate yet. Without
descriptors the public port would accept nobody either."""
HANDSHAKE_SECONDS = 60.0
"""The time that asyncio gives a handshake. Its object may be freed later."""


class FleetTls:
    """One server's TLS contexts, from its folder (`fleet.certificates`).

    Raises NotFound if there is no certificate, Conflict if the files cannot be read or do not match.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.certificate: ServerCertificate = read(folder)
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.server.verify_mode = ssl.CERT_REQUIRED
        self.server.num_tickets = 0  # servers do not resume sessions, and two tickets take 6 KiB per connection
        self.server.sslobject_class = _logged(Complaints("a connection to the fleet's port was refused"))
        self.refusals: dict[str, str] = {}
        """Why this server refused others' certificates, by the name that it connected to."""
        self.client.sslobject_class = _remembered(self.refusals)
        self._seen = self._stamp()
        for context in (self.server, self.client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            self._load(context)

    @property
    def name(self) -> str:
        """This server's name in the fleet."""
        return self.certificate.name

    @property
    def ends(self) -> datetime.datetime:
        return self.certificate.ends

    def refresh(self) -> bool:
        """Reload the files if they have changed. Returns whether they had. Raises as the class."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        certificate = read(self._folder)
        if certificate.name != self.certificate.name:
            raise Conflict(
                f"{self._folder} now has a certificate of '{certificate.name}', but this server is "
                f"'{self.certificate.name}': make one with its own name."
            )
        for context in (self.server, self.client):
            self._load(context)
        self.certificate, self._seen = certificate, stamp
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            context.load_verify_locations(self._folder / AUTHORITY)
            key = self._folder / SERVER_KEY
            context.load_cert_chain(self._folder / SERVER, key if key.exists() else None)
        except FileNotFoundError:
            raise NotFound(f"{self._folder} lacks {AUTHORITY} or {SERVER}: roundhouse fleet ca issue.") from None
        except ssl.SSLError as error:
            raise Conflict(f"The certificate in {self._folder} cannot be used: {error.reason}.") from None
        except OSError as error:
            raise Conflict(f"The files in {self._folder} cannot be read: {error.strerror}.") from None

    def _stamp(self) -> tuple[tuple[int, int], ...]:
        """Return a value that changes whenever a file is replaced."""
        files = [self._folder / name for name in (AUTHORITY, SERVER, SERVER_KEY)]
        try:
            statuses = [file.stat() for file in files if file.name != SERVER_KEY or file.exists()]
        except OSError:
            return ()
        return tuple((status.st_ino, status.st_mtime_ns) for status in statuses)


class Complaints:
    """Logs one message with different causes, at most once in QUIET_SECONDS."""

    def __init__(self, message: str) -> None:
        self._message, self._next, self._left_out = message, 0.0, 0

    def add(self, cause: str) -> None:
        if (now := time.monotonic()) < self._next:
            self._left_out += 1
            return
        log.warning(self._message, extra={"cause": cause, "more_since_the_last": self._left_out})
        self._next, self._left_out = now + QUIET_SECONDS, 0


def cause_of(error: ssl.SSLError) -> str:
    """Describe the cause of a failed handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the other side's certificate: {error.verify_message}"
    return (error.reason or str(error)).lower().replace("_", " ")


def _logged(complaints: Complaints) -> type[ssl.SSLObject]:
    """Return a class that logs failed handshakes, which asyncio drops silently."""

    pending: WeakKeyDictionary[ssl.SSLObject, float] = WeakKeyDictionary()
    """The start of each handshake that has not ended, oldest first."""

    def begin(handshake: ssl.SSLObject) -> None:
        now = time.monotonic()
        while (first := next(iter(pending.items()), None)) is not None and first[1] < now - HANDSHAKE_SECONDS:
            del pending[first[0]]
        if len(pending) >= most_handshakes():
            complaints.add("too many connections wait for their handshake")
            raise ssl.SSLError("too many connections wait for their handshake")
        pending[handshake] = now

    class LoggedHandshake(_AlertingHandshake):
        def do_handshake(self) -> None:
            if self not in pending:
                begin(self)
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError:
                pending.pop(self, None)
                raise
            pending.pop(self, None)

        def note(self, error: ssl.SSLError) -> None:
            complaints.add(cause_of(error))

    return LoggedHandshake


def most_handshakes() -> int:
    """Return the most handshakes that a server takes part in at a time."""
    return max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // HANDSHAKE_SHARE)


def _remembered(refusals: dict[str, str]) -> type[ssl.SSLObject]:
    """Return a class that stores causes of failed handshakes.

    asyncio would only report that the other side, after our alert, closed the connection.
    """

    class RememberedHandshake(_AlertingHandshake):
        def note(self, error: ssl.SSLError) -> None:
            refusals[self.server_hostname or ""] = cause_of(error)

    return RememberedHandshake


class _AlertingHandshake(ssl.SSLObject):
    """Sends the other side an alert that says why its certificate is refused.

    asyncio sends OpenSSL's output, such as the alert, only while a handshake continues, not when it fails. So this
    fails later, with the next bytes from the other side or when that closes the connection.
    """

    _refusal: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLCertVerificationError as error:
            self.note(error)
            self._refusal = error
            raise ssl.SSLWantReadError from None
        except ssl.SSLError as error:
            self.note(error)
            raise

    def note(self, error: ssl.SSLError) -> None:
        """Handle the cause of a failure. Called once."""
