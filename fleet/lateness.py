"""Take nodes whose answers begin late out of use for a while. Pure functions of state, time and events.

Such a node still reports, so it is not silent, but its engines hang.

| a node is | its requests                         | an answer begins in time    | an answer begins late           |
|-----------|--------------------------------------|-----------------------------|---------------------------------|
| in time   | chosen by `choose`                   | is counted                  | is counted; out if LATE of the  |
|           |                                      |                             | last OF were late               |
| out       | none while another node can answer;  | in time again, with a clean | out for another OUT_SECONDS, if |
|           | a probe after OUT_SECONDS, then none | record, if the request was  | the request was sent since then |
|           | for another OUT_SECONDS              | sent since then             |                                 |

A probe whose client leaves has no result, and the next one follows after OUT_SECONDS. At most half of the nodes are out
at once: if most are late, the load is too high, and fewer nodes would make it worse.
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
    """Time at which the node went out; None if it is in time."""
    until: float = 0.0
    """Time at which the next probe may be sent."""

    def is_out(self, now: float) -> bool:
        """Return whether other nodes get its requests."""
        return self.since is not None and now < self.until


def sent(state: Lateness, now: float) -> Lateness:
    """Return the state after a request is sent, which is the probe if one is due."""
    if state.since is None or now < state.until:
        return state
    return replace(state, until=now + OUT_SECONDS)


def answered(state: Lateness, sent_at: float, now: float, *, is_late: bool, may_leave: bool) -> Lateness:
    """Return the state after an answer began, or should have begun.

    Args:
        sent_at: when its request was sent.
        may_leave: whether the node may go out, as enough others are in time.
    """
    if state.since is not None:
        if sent_at < state.since:
            return state
        return replace(state, until=now + OUT_SECONDS) if is_late else Lateness()
    recent = (*state.recent, is_late)[-OF:]
    if may_leave and sum(recent) >= LATE:
        return Lateness(since=now, until=now + OUT_SECONDS)
    return replace(state, recent=recent)
