"""A provider's breaker: a pure function of state, time and events.

| state     | a request comes                         | it succeeded          | it failed                              |
|-----------|-----------------------------------------|-----------------------|----------------------------------------|
| closed    | goes                                    | counts                | counts; 5 in a row, or half of 10 or   |
|           |                                         |                       | more within 30 s: open                 |
| open      | refused until its time is over, then it | of before: no matter  | of before: no matter                   |
|           | goes as the probe: half-open            |                       |                                        |
| half-open | refused until the probe has words or    | who was let in:       | who was let in: open, for twice as     |
|           | has ended; after its first words it goes | closed               | long                                   |

Open for 5 s x 2^k, up to 60 s, and up to a tenth more by chance; longer where the provider's Retry-After says so, up to
120 s. What tells nothing of the provider's health (its client's fault, money, a client that left) counts
nowhere; a probe that ended so lets the next request be the probe.

| given up, as                                             | it counts as                                             |
|----------------------------------------------------------|----------------------------------------------------------|
| `connect`, `first_byte` or `between_bytes` passed        | a failure                                                |
| its client's time, its share of it or `whole` passed,    | once words had come a success, else nothing; but if not  |
| its client left                                          | even a status had come within `between_bytes`, a failure |

Clients with little time do not close a provider to others; and one that hangs is left alone, however little they have.
"""

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

WINDOW = 30
"""Seconds, one bucket each."""
LEAST_CALLS, RATE, RUN = 10, 0.5, 5
FIRST, LONGEST, SANE = 5.0, 60.0, 120.0
"""Seconds: the first opening, the longest by doubling, the longest that a provider may ask for."""
PROBE_WAIT = 1.0
"""Retry-After in seconds while a probe is under way."""


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
    """Seconds of the last 30 s, oldest first; empty unless closed."""
    run: int = 0
    """Failures since the last success."""
    opened: int = 0
    """Times in a row, so the k of how long."""
    until: float = 0.0
    """Seconds on the caller's clock; while open."""
    probing: bool = False
    """While half-open: nothing has come of the probe yet."""
    answers: bool = False
    """While half-open: a probe had its first words."""
    period: int = 0
    """Goes up with each change of phase: what was let through before has no say after it."""


class Permit(Struct, frozen=True):
    """Goes back with the outcome."""

    period: int


class CallRefused(Struct, frozen=True):
    seconds: float
    """Seconds until another try makes sense."""


def admit(state: Breaker, now: float) -> tuple[Breaker, Permit | CallRefused]:
    """Decide whether a request may go."""
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
    """Note an answer's first words, so that others need not wait for a probe's end."""
    if state.phase is Phase.HALF_OPEN and permit.period == state.period:
        return replace(state, probing=False, answers=True)
    return state


def ended(
    state: Breaker, permit: Permit, outcome: CallOutcome, now: float, chance: float, retry_after: float | None = None
) -> Breaker:
    """The breaker's state after a request. chance: 0 to 1, for the jitter."""
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
