"""The outcome of a line's attempt. Pure: no clock, no I/O.

| outcome of the attempt                               | the line                                                     |
|------------------------------------------------------|--------------------------------------------------------------|
| 2xx, or 4xx except 408 and 429                       | has ended                                                    |
| 408, 429, 500, 502, 503, 504, after it had a turn    | waits again; ends after `ATTEMPTS` such attempts             |
| its engine died                                      | waits again, to run without other such lines; ends with the  |
|                                                      | `DEATHS`th death                                             |
| one of these before it had a turn: queue full or     | waits again; no attempt is counted                           |
| closed, or it gave up its turn (rule 7 of `policy`)  |                                                              |
| none: cancelled, or the server stops                 | waits again, at once; no attempt is counted                  |
"""

from batches.records import Line, LineChange, LineEnd, LineState

ATTEMPTS = 5
"""Attempts that reach an engine; the error of the last one is final."""
DEATHS = 3
ENGINE_DIED = "engine_died"
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a failed line runs again."""
REFUSED_PAUSE, LONGEST_REFUSED = 0.5, 30.0
"""The same if it did not reach an engine. Its server may request longer pauses."""
_REPEATED = frozenset((408, 429))


def decide(line: Line, end: LineEnd, now: float) -> LineChange:
    """Return the line's next state. now: seconds since the epoch."""
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
    spread = 1.0 + line.number % 8 / 8  # lines that failed together are not retried together
    return LineChange(LineState.WAITING, end, attempts, deaths, now + min(LONGEST_PAUSE, pause * spread))
