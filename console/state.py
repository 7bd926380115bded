"""The console's state: sessions, last requests and decisions, event stream."""

import hashlib
import re
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from cachetools import TTLCache

from console.history import Decisions, History
from console.live import LastRequest, Live, LiveView
from console.texts import TranscriptStore
from registry.bounds import USUAL
from tenants.caller import Person

if TYPE_CHECKING:  # most servers load no client of a provider
    from tenants.sign_in.flow import SignIn

SECONDS = 12 * 3600
"""How long somebody stays signed in."""
_TOKEN = re.compile(r"\s*[A-Za-z0-9_-]{1,128}\s*\Z", re.ASCII)
MAX_SESSIONS, OF_A_KEY = 1_000, 20
"""Sessions at one time, of all keys and of each; the oldest one ends for a new one."""


Credential = str | Person
"""What a session stands for: a key's text, or a person whom a provider knows."""


class Sessions:
    """Args: port: the server's. Cookies go to all ports of a host: it is in their name."""

    def __init__(self, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.cookie, self.departure_cookie = f"roundhouse_session_{port}", f"roundhouse_sign_in_{port}"
        self._credentials: TTLCache[str, Credential] = TTLCache(MAX_SESSIONS, SECONDS, clock)

    def begin(self, credential: Credential) -> str:
        """The token of a new session."""
        token, owner = secrets.token_urlsafe(32), _owner(credential)
        sessions = [(digest, self._credentials.get(digest)) for digest in self._credentials]  # the oldest first
        own = [digest for digest, one in sessions if one is not None and _owner(one) == owner]
        for digest in own[: 1 - OF_A_KEY]:  # who signs in again and again must not sign out all others
            self._credentials.pop(digest, None)
        self._credentials[_digest(token)] = credential
        return token

    def credential(self, cookies: str) -> Credential | None:
        """What the session stands for that a Cookie header names."""
        token = self.token(cookies)
        return None if token is None else self._credentials.get(_digest(token))

    def end(self, cookies: str) -> None:
        token = self.token(cookies)
        if token is not None:
            self._credentials.pop(_digest(token), None)

    def token(self, cookies: str) -> str | None:
        """The session's token in a Cookie header, if there is one that may be ours."""
        return _value(cookies, self.cookie)

    def departure(self, cookies: str) -> str:
        """The cookie of a sign-in that is under way at a provider; '' for none."""
        return _value(cookies, self.departure_cookie) or ""

    def own_cookie(self, cookies: str) -> str:
        """Return our cookies of a Cookie header; "" for none.

        The other cookies must not reach a general parser, as FastAPI runs one for each request: http.cookies takes 10 s
        for 60 KB of backslashes between quotes (CVE-2024-7592; Python before 3.11.10).
        """
        own = ((name, _value(cookies, name)) for name in (self.cookie, self.departure_cookie))
        return "; ".join(f"{name}={value}" for name, value in own if value is not None)


def _value(cookies: str, name: str) -> str | None:
    pairs = (pair.partition("=") for pair in cookies.split(";"))
    return next((value.strip() for one, _, value in pairs if one.strip() == name and _TOKEN.match(value)), None)


def _owner(credential: Credential) -> str:
    return credential if isinstance(credential, str) else credential.id


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


LAST_REQUESTS = 6
"""Requests at the foot of the page Now."""


class Console:
    """One per server, on its event loop. sign_in: at the company's provider, if the server has one."""

    def __init__(self, port: int, viewers: int = USUAL.viewers, sign_in: "SignIn | None" = None) -> None:
        self.sign_in = sign_in
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
