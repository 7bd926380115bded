"""The console's state: sessions, last requests and decisions, event stream."""

import msgspec

from console.decisions import Decisions
from console.history import History
from console.live import Live
from console.live_view import LastRequest, LiveView
from console.sessions import Sessions
from console.texts import TranscriptStore
from registry.bounds import USUAL

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
