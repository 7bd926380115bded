"""The outcome of a line's attempt. Pure: no clock, no I/O.

| what came                                            | the line                                                     |
|------------------------------------------------------|--------------------------------------------------------------|
| 2xx, or 4xx but 408 and 429                          | ended, as it is                                              |
| 408, 429, 500, 502, 503, 504, after it had a turn    | waits again; after `ATTEMPTS` such attempts ended            |
| its engine died                                      | waits again, to run without other such lines; the `DEATHS`th |
|                                                      | death ends it                                                |
| the same before it had a turn: full or closed queue; | waits again; no attempt is counted                           |
| it gave its turn up (rule 7 of `policy`)             |                                                              |
| nothing: cancelled, or the server stops              | waits again, at once; no attempt is counted                  |
"""

from batches.records import Line, LineChange, LineEnd, LineState

ATTEMPTS = 5
"""Attempts that reached an engine, of which the last one's error is final."""
DEATHS = 3
ENGINE_DIED = "engine_died"
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a line that failed runs again."""
REFUSED_PAUSE, LONGEST_REFUSED = 0.5, 30.0
"""The same where it did not reach an engine: its server may ask for longer."""
_REPEATED = frozenset((408, 429))


def decide(line: Line, end: LineEnd, now: float) -> LineChange:
    """now: seconds since the epoch."""
    attempts, deaths = line.attempts, line.deaths
    if end.status is None:
        return LineChange(LineState.WAITING, end, attempts, deaths)
    if end.status < 500 and end.status not in _REPEATED:
        return LineChange(LineState.ENDED, end, attempts + end.reached_engine, deaths)
    if not end.reached_engine:
        pause = min(LONGEST_REFUSED, max(REFUSED_PAUSE, end.retry_after or 0.0))
        return LineChange(LineState.WAITING, end, attempts, deaths, now + pause)
    attempts += 1
    deaths += end.code == ENGINE_DIED
    if attempts >= ATTEMPTS or deaths >= DEATHS:
        return LineChange(LineState.ENDED, end, attempts, deaths)
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempts - 1))
    spread = 1.0 + line.number % 8 / 8  # lines that failed together do not come back together
    return LineChange(LineState.WAITING, end, attempts, deaths, now + min(LONGEST_PAUSE, pause * spread))
