"""Browser sessions: a token in a cookie, and the key or person behind it.

| a session is     | without a fleet | in a fleet                                                     |
|------------------|-----------------|----------------------------------------------------------------|
| started          | in memory       | also as a row in the fleet's database, without the token       |
| used there       | from memory     | from memory; the row is read again after FRESH_SECONDS         |
| used elsewhere   | unknown         | read from its row                                              |
| ended            | deleted         | its row, too: other servers notice within FRESH_SECONDS        |
| used while the   | -               | valid where it is in memory, unknown elsewhere                 |
| database is down |                 |                                                                |

The keyring is consulted on each request: a session only names a key or person.
"""

import asyncio
import hashlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec, Protocol, TypeVar

import msgspec
from cachetools import TTLCache

from registry.base.json import NOT_JSON
from registry.base.threads import Threads
from registry.errors import QueueFull, Unavailable
from tenants.caller import Person

SECONDS = 12 * 3600
"""Lifetime of a session, in seconds."""
FRESH_SECONDS = 1.0
"""Time for which a session read from the database is trusted."""
ANSWER_SECONDS = 1.0
"""Longest wait for the database."""
SECURE_PREFIX = "__Host-"
"""Prefix of cookies set over TLS. Browsers refuse such a cookie from a page of another host, such as a subdomain."""
_TOKEN = re.compile(r"\s*[A-Za-z0-9_-]{1,128}\s*\Z", re.ASCII)
MAX_SESSIONS, OF_A_KEY = 1_000, 20
"""Most concurrent sessions, in total and per key. A new one replaces the oldest."""
P = ParamSpec("P")
T = TypeVar("T")
Credential = str | Person
"""The owner of a session: a key, by its id, or a person known to a provider."""


class SessionStore(Protocol):
    """Sessions of all servers of a fleet. Calls block on the database. All raise Unavailable."""

    def add(self, digest: str, owner: str, credential: str, most: int) -> None:
        """Add a session. most: sessions per owner; the oldest ones are removed."""
        ...

    def find(self, digest: str) -> str | None: ...
    def remove(self, digest: str) -> None: ...


STRANGERS = "cookies not known here"
"""Owner of the calls that search for unknown cookies. Anyone can send many of them, which must not block sign-ins."""


class Sessions:
    """port: used in the names of cookies, because all ports of a host share cookies. Replaced by the fleet's name."""

    def __init__(self, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.cookie, self.departure_cookie = f"roundhouse_session_{port}", f"roundhouse_sign_in_{port}"
        self._credentials: TTLCache[str, Credential] = TTLCache(MAX_SESSIONS, SECONDS, clock)
        self._fresh: TTLCache[str, bool] = TTLCache(MAX_SESSIONS, FRESH_SECONDS, clock)
        self._store: SessionStore | None = None
        self._threads = Threads("database of sessions", count=2, waiting=64)
        self._refreshing: set[asyncio.Task[None]] = set()

    def share(self, store: SessionStore, fleet: str) -> None:
        """From now on, share sessions and unfinished sign-ins with all servers of the fleet."""
        self._store = store
        self.cookie, self.departure_cookie = f"roundhouse_session_{fleet}", f"roundhouse_sign_in_{fleet}"

    @property
    def is_shared(self) -> bool:
        return self._store is not None

    async def begin(self, credential: Credential) -> str:
        """Start a session. Returns its token."""
        token, owner = secrets.token_urlsafe(32), _owner(credential)
        sessions = [(digest, self._credentials.get(digest)) for digest in self._credentials]  # oldest first
        own = [digest for digest, session in sessions if session is not None and _owner(session) == owner]
        for digest in own[: 1 - OF_A_KEY]:  # repeated sign-ins must not sign out everyone else
            self._credentials.pop(digest, None)
        digest = _digest(token)
        if self._store is not None:
            await self._call("", self._store.add, digest, owner, _encode(credential), OF_A_KEY)
        self._credentials[digest] = credential
        return token

    def credential(self, cookies: str) -> Credential | None:
        """Return the key or person behind the session in a Cookie header."""
        token = self.token(cookies)
        credential = None if token is None else self._credentials.get(_digest(token))
        if credential is not None and token is not None and self._is_due(token):  # as in a long-running stream
            task = asyncio.create_task(self.refresh(cookies), name="session")
            self._refreshing.add(task)
            task.add_done_callback(self._refreshing.discard)
        return credential

    def _is_due(self, token: str) -> bool:
        return self._store is not None and not self._refreshing and _digest(token) not in self._fresh

    async def refresh(self, cookies: str) -> None:
        """Read the session's row again, unless it was read just now. Known sessions stay valid without an answer."""
        token = self.token(cookies)
        if self._store is None or token is None or (digest := _digest(token)) in self._fresh:
            return
        try:
            row = await self._call("" if digest in self._credentials else STRANGERS, self._store.find, digest)
        except QueueFull:
            return
        except Unavailable:
            self._fresh[digest] = True
            return
        self._fresh[digest] = True
        credential = None if row is None else _decode(row)
        if credential is None:
            self._credentials.pop(digest, None)
        elif self._credentials.get(digest) is None:
            self._credentials[digest] = credential

    async def end(self, cookies: str) -> None:
        """End a session. Raises Unavailable if other servers cannot be informed."""
        token = self.token(cookies)
        if token is not None:
            self._credentials.pop(_digest(token), None)
            if self._store is not None:
                await self._call("", self._store.remove, _digest(token))

    async def _call(self, owner: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the database in a thread. Raises Unavailable, QueueFull."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._threads.run_for(owner, work, *args, **kwargs)
        except TimeoutError:
            raise Unavailable(
                "The fleet's database does not answer: nobody can sign in or out now. Try again.",
                code="database_unavailable",
                retry_after=5,
            ) from None

    def token(self, cookies: str) -> str | None:
        """Return the session token in a Cookie header, if there is one that may be ours."""
        return _value(cookies, self.cookie)

    def departure(self, cookies: str) -> str:
        """Return the cookie of an unfinished sign-in at a provider, '' if there is none."""
        return _value(cookies, self.departure_cookie) or ""

    def own_cookie(self, cookies: str, *, secure: bool) -> str:
        """Return our cookies of a Cookie header, '' if there are none. secure: whether the browser used TLS.

        Other cookies must not reach a general parser, such as FastAPI's, which runs for each request: http.cookies
        takes 10 s for 60 KB of backslashes between quotes (CVE-2024-7592; Python before 3.11.10).
        """
        names = [cookie_name(name, secure=secure) for name in (self.cookie, self.departure_cookie)]
        own = ((name, _exact_value(cookies, name)) for name in names)
        return "; ".join(f"{name}={value}" for name, value in own if value is not None)


def cookie_name(name: str, *, secure: bool) -> str:
    """Return the name of a cookie in the browser."""
    return f"{SECURE_PREFIX}{name}" if secure else name


def _value(cookies: str, name: str) -> str | None:
    """Return the value of one of our cookies, of which `own_cookie` has left one."""
    return _exact_value(cookies, cookie_name(name, secure=True)) or _exact_value(cookies, name)


def _exact_value(cookies: str, name: str) -> str | None:
    pairs = (pair.partition("=") for pair in cookies.split(";"))
    return next((value.strip() for pair, _, value in pairs if pair.strip() == name and _TOKEN.match(value)), None)


def _owner(credential: Credential) -> str:
    return credential if isinstance(credential, str) else credential.id


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class _Stored(msgspec.Struct, omit_defaults=True):
    """A credential in the database."""

    key: str = ""
    person: Person | None = None


def _encode(credential: Credential) -> str:
    """Encode a credential. People's names are not stored: other servers show the id."""
    if isinstance(credential, str):
        return msgspec.json.encode(_Stored(key=credential)).decode()
    return msgspec.json.encode(_Stored(person=replace(credential, name=credential.id))).decode()


def _decode(text: str) -> Credential | None:
    """Decode a credential. None if another version wrote it."""
    try:
        stored = msgspec.json.decode(text, type=_Stored)
    except NOT_JSON:
        return None
    return stored.person or stored.key or None
