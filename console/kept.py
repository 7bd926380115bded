"""What a server keeps for its console: who has signed in, the last requests and decisions, the stream of events."""

from console.decisions import Decisions
from console.history import History
from console.live import Live
from console.sessions import Sessions
from registry.bounds import USUAL


class Console:
    """One per server, on its event loop."""

    def __init__(self, viewers: int = USUAL.viewers) -> None:
        self.sessions, self.history, self.live = Sessions(), History(), Live(viewers)
        self.decisions = Decisions(self.live.poke)
