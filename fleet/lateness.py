"""A node whose answers begin late gets no requests for a while: a pure function of state, time and events.

It reports, so it is not silent, but what it is to answer with stands still.

| a node is | its requests                           | an answer begins in time     | an answer begins late            |
|-----------|----------------------------------------|------------------------------|----------------------------------|
| in time   | as `choose` says                       | counts                       | counts; LATE of the last OF: out |
| out       | none while another node can answer;    | if it was sent since then:   | if it was sent since then: out   |
|           | after OUT_SECONDS one, the probe, then | in time, and nothing before  | for OUT_SECONDS from now on      |
|           | none for OUT_SECONDS more              | counts                       |                                  |

A probe whose client leaves says nothing: the next one follows OUT_SECONDS after it. At most half of the nodes are out
at once, since where most are late the work is too much, and fewer nodes would make it worse.
"""

from msgspec import Struct
from msgspec.structs import replace

LATE, OF = 3, 10
OUT_SECONDS = 10.0


class Lateness(Struct, frozen=True):
    """A node's lateness, as one server sees it. Times are the caller's monotonic seconds."""

    recent: tuple[bool, ...] = ()
    """Whether each of the last OF answers began late."""
    since: float | None = None
    """The time at which the first late request went out; None: no request is late."""
    until: float = 0.0
    """The time at which the next probe may go."""

    def is_out(self, now: float) -> bool:
        """Whether its requests go to other nodes."""
        return self.since is not None and now < self.until


def sent(state: Lateness, now: float) -> Lateness:
    """A request goes to the node: the probe, if it is out and one is due."""
    if state.since is None or now < state.until:
        return state
    return replace(state, until=now + OUT_SECONDS)


def answered(state: Lateness, sent_at: float, now: float, *, is_late: bool, may_leave: bool) -> Lateness:
    """An answer has begun, or has not when it should have.

    Args:
        sent_at: when its request was sent.
        may_leave: whether the node may go out: enough others are in time.
    """
    if state.since is not None:
        if sent_at < state.since:
            return state
        return replace(state, until=now + OUT_SECONDS) if is_late else Lateness()
    recent = (*state.recent, is_late)[-OF:]
    if may_leave and sum(recent) >= LATE:
        return Lateness(since=now, until=now + OUT_SECONDS)
    return replace(state, recent=recent)
