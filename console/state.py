"""The console's state: sessions, last requests and decisions, event stream."""

import hashlib
import re
import secrets
import time
from collections.abc import Callable

import msgspec
from cachetools import TTLCache

from console.history import Decisions, History
from console.live import LastRequest, Live, LiveView
from console.texts import TranscriptStore
from registry.bounds import USUAL

SECONDS = 12 * 3600
"""How long somebody stays signed in."""
_TOKEN = re.compile(r"\s*[A-Za-z0-9_-]{1,128}\s*\Z", re.ASCII)
MAX_SESSIONS, OF_A_KEY = 1_000, 20
"""Sessions at one time, of all keys and of each; the oldest one ends for a new one."""


class Sessions:
    """Args: port: the server's. Cookies go to all ports of a host: it is in their name."""

    def __init__(self, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.cookie = f"roundhouse_session_{port}"
        self._keys: TTLCache[str, str] = TTLCache(MAX_SESSIONS, SECONDS, clock)

    def begin(self, key: str) -> str:
        """The token of a new session."""
        token = secrets.token_urlsafe(32)
        own = [digest for digest in self._keys if self._keys.get(digest) == key]  # the oldest first
        for digest in own[: 1 - OF_A_KEY]:  # who signs in again and again must not sign out all others
            self._keys.pop(digest, None)
        self._keys[_digest(token)] = key
        return token

    def key(self, cookies: str) -> str | None:
        """The key of the session that a Cookie header names."""
        token = self.token(cookies)
        return None if token is None else self._keys.get(_digest(token))

    def end(self, cookies: str) -> None:
        token = self.token(cookies)
        if token is not None:
            self._keys.pop(_digest(token), None)

    def token(self, cookies: str) -> str | None:
        """The session's token in a Cookie header, if there is one that may be ours."""
        pairs = (pair.partition("=") for pair in cookies.split(";"))
        return next(
            (value.strip() for name, _, value in pairs if name.strip() == self.cookie and _TOKEN.match(value)), None
        )

    def own_cookie(self, cookies: str) -> str:
        """Return our cookie of a Cookie header; "" for none.

        The other cookies must not reach a general parser, as FastAPI runs one for each request: http.cookies takes 10 s
        for 60 KB of backslashes between quotes (CVE-2024-7592; Python before 3.11.10).
        """
        token = self.token(cookies)
        return "" if token is None else f"{self.cookie}={token}"


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


LAST_REQUESTS = 6
"""Requests at the foot of the page Now."""


class Console:
    """One per server, on its event loop."""

    def __init__(self, port: int, viewers: int = USUAL.viewers) -> None:
        self.sessions, self.history, self.live = Sessions(port), History(), Live(self.view_for, viewers)
        self.texts = TranscriptStore()
        self.decisions = Decisions(self.live.poke)

    def last(self, team: str | None = None) -> list[LastRequest]:
        """The requests that ended last; of one team, or of all."""
        return [LastRequest.of(row) for row in self.history.rows(team, LAST_REQUESTS)]

    def view_for(self, now: LiveView, team: str | None) -> LiveView:
        """Restrict a view to one team; None: all teams."""
        if team is None:
            return now
        return msgspec.structs.replace(now, shares=None, cost_per_accepted=None, requests=self.last(team))
