"""A provider's circuit breaker: a pure function of state, time and events.

| state     | a request arrives                       | it succeeds           | it fails                               |
|-----------|-----------------------------------------|-----------------------|----------------------------------------|
| closed    | goes                                    | counts                | counts; opens after 5 in a row, or     |
|           |                                         |                       | half of 10 or more within 30 s         |
| open      | refused until the time is over, then it | if it was sent        | if it was sent before, ignored         |
|           | goes as the probe: half-open            | before, ignored       |                                        |
| half-open | refused until the probe has ended or    | closes, if it was     | opens for twice as long, if it was     |
|           | produced words; after these it goes     | admitted here         | admitted here                          |

Open for 5 s x 2^k, up to 60 s, plus up to a tenth at random. Longer if the provider's Retry-After says so, up to 120 s.
Outcomes that say nothing about the provider's health (the client's fault, money, a client that disconnected) are
ignored. After a probe with such an outcome, the next request is the probe.

| ended because                                            | counts as                                                |
|----------------------------------------------------------|----------------------------------------------------------|
| `connect`, `first_byte` or `between_bytes` passed        | a failure                                                |
| the client's deadline, its share of it or `whole`        | a success if there were words, else nothing; but a       |
| passed, or the client disconnected                       | failure if no status arrived within `between_bytes`      |

So clients with little time do not block a provider for others, but a provider that hangs is still found out.
"""

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

WINDOW = 30
"""Seconds, in buckets of one second."""
LEAST_CALLS, RATE, RUN = 10, 0.5, 5
FIRST, LONGEST, SANE = 5.0, 60.0, 120.0
"""Seconds: first opening, longest by doubling, longest that a provider may request."""
PROBE_WAIT = 1.0
"""Retry-After in seconds while a probe is running."""


class Phase(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CallOutcome(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"
    NEITHER = "neither"


class SecondCounts(Struct, frozen=True):
    """The calls of one second."""

    second: int
    calls: int = 0
    failures: int = 0


class Breaker(Struct, frozen=True):
    phase: Phase = Phase.CLOSED
    buckets: tuple[SecondCounts, ...] = ()
    """The last 30 s, oldest first. Empty unless closed."""
    run: int = 0
    """Failures since the last success."""
    opened: int = 0
    """Consecutive openings: the k of the duration."""
    until: float = 0.0
    """End of the open state, in seconds on the caller's clock."""
    probing: bool = False
    """Whether a probe without an outcome is running, while half-open."""
    answers: bool = False
    """Whether a probe has produced words, while half-open."""
    period: int = 0
    """Incremented on each change of phase. Requests admitted in an earlier period are ignored."""


class Permit(Struct, frozen=True):
    """Permission for one request, passed back with its outcome."""

    period: int


class CallRefused(Struct, frozen=True):
    seconds: float
    """Seconds until a retry makes sense."""


def admit(state: Breaker, now: float) -> tuple[Breaker, Permit | CallRefused]:
    """Decide whether a request may be sent."""
    if state.phase is Phase.CLOSED:
        return state, Permit(state.period)
    if state.phase is Phase.OPEN:
        if now < state.until:
            return state, CallRefused(state.until - now)
        state = replace(state, phase=Phase.HALF_OPEN, period=state.period + 1)
    elif state.probing:
        return state, CallRefused(PROBE_WAIT)
    return replace(state, probing=not state.answers), Permit(state.period)


def begun(state: Breaker, permit: Permit) -> Breaker:
    """Note an answer's first words, so that other requests need not wait for a probe's end."""
    if state.phase is Phase.HALF_OPEN and permit.period == state.period:
        return replace(state, probing=False, answers=True)
    return state


def ended(
    state: Breaker, permit: Permit, outcome: CallOutcome, now: float, chance: float, retry_after: float | None = None
) -> Breaker:
    """Return the state after a request. chance: 0 to 1, for jitter."""
    if permit.period != state.period:
        return state
    if state.phase is Phase.HALF_OPEN:
        match outcome:
            case CallOutcome.SUCCESS:
                return Breaker(period=state.period + 1)
            case CallOutcome.FAILURE:
                return _opened(state, state.opened + 1, now, chance, retry_after)
            case CallOutcome.NEITHER:
                return replace(state, probing=False)
    if outcome is CallOutcome.NEITHER:
        return state
    failed = outcome is CallOutcome.FAILURE
    buckets, run = _counted(state.buckets, int(now), failed), state.run + 1 if failed else 0
    if failed:
        calls, failures = sum(b.calls for b in buckets), sum(b.failures for b in buckets)
        if run >= RUN or (calls >= LEAST_CALLS and failures >= RATE * calls):
            return _opened(state, state.opened, now, chance, retry_after)
    return replace(state, buckets=buckets, run=run)


def _counted(buckets: tuple[SecondCounts, ...], second: int, failed: bool) -> tuple[SecondCounts, ...]:
    recent = buckets
    while recent and recent[0].second <= second - WINDOW:
        recent = recent[1:]
    last = recent[-1] if recent and recent[-1].second == second else SecondCounts(second)
    before = recent[:-1] if recent and recent[-1].second == second else recent
    return (*before, SecondCounts(second, last.calls + 1, last.failures + failed))


def _opened(state: Breaker, times: int, now: float, chance: float, retry_after: float | None) -> Breaker:
    seconds = min(LONGEST, FIRST * 2.0 ** min(times, 10)) * (1 + chance / 10)
    if retry_after is not None and retry_after <= SANE:
        seconds = max(seconds, retry_after)
    return Breaker(phase=Phase.OPEN, opened=times, until=now + seconds, period=state.period + 1)
