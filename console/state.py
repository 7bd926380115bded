"""The console's state: sessions, latest requests and decisions, event stream."""

from typing import TYPE_CHECKING

import msgspec

from console.history import Decisions, History
from console.live import LastRequest, Live, LiveView
from console.sessions import Sessions
from console.texts import TranscriptStore
from registry.bounds import USUAL

if TYPE_CHECKING:  # most servers load no client of a provider
    from tenants.sign_in.flow import SignIn

LAST_REQUESTS = 6
"""Requests at the bottom of the page Now."""


class Console:
    """The state of one server's console, on its event loop. sign_in: at the company's provider, if there is one."""

    def __init__(self, port: int, viewers: int = USUAL.viewers, sign_in: "SignIn | None" = None) -> None:
        self.sign_in = sign_in
        self.sessions, self.history, self.live = Sessions(port), History(), Live(self.view_for, viewers)
        self.texts = TranscriptStore()
        self.decisions = Decisions(self.live.poke)

    def last(self, team: str | None = None) -> list[LastRequest]:
        """Return the latest ended requests. team: None for all."""
        return [LastRequest.of(row) for row in self.history.rows(team, LAST_REQUESTS)]

    def view_for(self, now: LiveView, team: str | None) -> LiveView:
        """Restrict a view to one team. None for all teams."""
        if team is None:
            return now
        return msgspec.structs.replace(now, shares=None, cost_per_accepted=None, requests=self.last(team))
