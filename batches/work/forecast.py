"""Forecasts of the ends of batches. Pure: no clock, no I/O. Work is in the unit of `models.tasks.kind`.

1. The work of a line is estimated from lines that ended: from their bytes, and from what an answer took. Lines of the
   same batch and name are used first, then those of the name, then those of the endpoint.
2. A model's rate is the work of lines that ended while others waited, divided by that time. It includes the effects of
   other requests and of other models. When lines of a new batch end, earlier measurements count little.
3. Batches share a rate as `policy` orders them: higher levels first; late batches one after the other; at other levels
   teams by weight, and a team's batches one after the other.
4. A batch ends with its last lines, which run beside fewer and fewer others. So a long line's time is added.
5. A batch ends with the last of its models. The likely time is the middle of three. Early and late are off by a factor,
   which depends on how rates vary and how little is known of the lines.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cachetools import LRUCache

from batches.records import Forecast
from batches.work.policy import Level, order_of
from models.messages import Usage
from models.tasks.kind import ANSWER_TOKEN, read_work

WINDOW_SECONDS = 5.0
"""Time over which a rate is measured."""
MEMORY, MEMORY_LINES = 20, 1000
"""A rate averages about this many windows, or windows with this many lines if those are fewer. Newer windows count
more. If many lines end in a window, it says more than earlier ones.
"""
NEW_LINES = 16
"""Lines that earlier measurements count for in a new batch: adapters, prompts and caches differ."""
BATCHES = 64
"""Most batches that a meter remembers."""
LEAST_RATE = 1e-3
LONGEST = 366 * 86_400.0
"""The longest forecast, in seconds."""
LEAST_SPREAD, MOST_SPREAD = 0.05, 1.0
MEANS = 4096
"""Most names whose lines are remembered."""
KNOWN = 5
"""Ended lines of a kind that are needed to use their mean."""
BYTE_WORK, ANSWER_WORK = 0.2, 128 * ANSWER_TOKEN
"""Work per byte and per answer, before any line of that endpoint has ended."""
LINE_BYTES = 500
"""Bytes per line, until then."""
READ_ONLY = frozenset(("/v1/embeddings", "/v1/rerank", "/v2/rerank"))
"""Endpoints whose answers have no tokens."""


@dataclass(frozen=True, slots=True)
class RoomRate:
    """A model's rate of lines."""

    per_second: float
    spread: float = MOST_SPREAD
    """Relative standard deviation."""


class RateMeter:
    """Measures the rate of one model's lines on this server."""

    def __init__(self) -> None:
        self.ran = -math.inf
        """Last time at which it measured, as given to `advance`."""
        self._seen: float | None = None
        self._seconds = self._work = self._starts = 0.0
        self._count = self._lines = self._known = 0
        self._mean = self._variance = 0.0
        self._batches = LRUCache[str, None](BATCHES)

    def add(self, work: float, batch: str = "") -> None:
        """Record an answered line. It counts only while others wait."""
        if self._seen is None:
            return
        if batch not in self._batches:
            self._batches[batch] = None
            self._end_window(WINDOW_SECONDS / 4)
            self._seconds, self._work, self._lines = 0.0, 0.0, 0  # its first lines took longer
            self._known = min(self._known, NEW_LINES)
        self._work += work
        self._lines += 1

    def advance(self, now: float, *, is_full: bool) -> None:
        """Advance the time. is_full: from now on lines wait although the model runs as many as it may."""
        if is_full:
            self.ran = now
        if self._seen is None:
            self._starts = now
        elif not self._work and not self._seconds and now - self._starts < WINDOW_SECONDS:
            pass  # the first lines have not ended yet
        else:
            self._seconds += now - self._seen
        self._seen = now if is_full else None
        self._end_window(WINDOW_SECONDS)

    def rate(self) -> RoomRate | None:
        """Return the measured rate. None if nothing was measured."""
        if self._count:
            mean = self._mean
            if self._seconds >= WINDOW_SECONDS / 4:
                mean += self._part * (self._work / self._seconds - mean)
            deviation = self._variance**0.5 / max(mean, LEAST_RATE)
            return RoomRate(max(mean, LEAST_RATE), min(MOST_SPREAD, max(LEAST_SPREAD, deviation)))
        if self._seconds >= WINDOW_SECONDS / 4 and self._work:
            return RoomRate(self._work / self._seconds)
        return None

    @property
    def _part(self) -> float:
        """Weight in the mean of the current window, even if it is incomplete."""
        return max(min(1.0, self._seconds / WINDOW_SECONDS) / MEMORY, self._lines / max(1, self._lines + self._known))

    def _end_window(self, least: float) -> None:
        """Include the rate of a window that was long enough."""
        if self._seconds < least or not (self._work or self._count):  # the first lines may take longer
            return
        self._count += 1
        part, off = max(1 / self._count, self._part), self._work / self._seconds - self._mean
        self._mean += part * off
        self._variance = (1 - part) * (self._variance + part * off * off)
        self._known = min(MEMORY_LINES, self._known + self._lines)
        self._seconds, self._work, self._lines = 0.0, 0.0, 0


@dataclass(slots=True)
class _Mean:
    count: int = 0
    byte: float = 0.0
    """Work per byte read."""
    answer: float = 0.0
    size: float = 0.0
    """Bytes per line."""
    seconds: float = 0.0
    """Time of a line in the model, and its variance."""
    variance: float = 0.0

    def add(self, byte: float, answer: float, size: int, seconds: float) -> None:
        self.count += 1
        part, off = max(1 / self.count, 0.01), seconds - self.seconds
        self.seconds += part * off
        self.variance = (1 - part) * (self.variance + part * off * off)
        self.size += part * (size - self.size)
        self.byte += part * (byte - self.byte)
        self.answer += part * (answer - self.answer)


class LineWork:
    """Estimates the work of lines."""

    def __init__(self) -> None:
        self._means = LRUCache[tuple[str, ...], _Mean](MEANS)

    def learn(self, batch: str, endpoint: str, name: str, size: int, usage: Usage, seconds: float = 0.0) -> None:
        """Record an answered line. size: bytes of its request. seconds: from its claim to its end."""
        byte, answer = read_work(usage) / max(1, size), usage.completion_tokens * ANSWER_TOKEN
        for key in ((batch, name), ("", name), ("", "", endpoint)):
            mean = self._means.get(key)
            if mean is None:
                mean = self._means[key] = _Mean()
            mean.add(byte, answer, size, seconds)

    def of(self, batch: str, endpoint: str, name: str, count: int, size: int) -> tuple[float, float]:
        """Return the work of `count` lines of `size` bytes in total, and its relative error."""
        if (known := self._known(batch, endpoint, name)) is not None:
            mean, least = known
            spread = least + 0.5 / mean.count**0.5
            return max(count, size * mean.byte + count * mean.answer), min(MOST_SPREAD, spread)
        answer = 0.0 if endpoint in READ_ONLY else ANSWER_WORK
        return max(count, size * BYTE_WORK + count * answer), MOST_SPREAD

    def tail(self, batch: str, endpoint: str, name: str) -> float:
        """Return the seconds that the last lines take beyond their work: a long line's, less half of a mean one's."""
        if (known := self._known(batch, endpoint, name)) is None:
            return 0.0
        mean, _ = known
        return mean.seconds / 2 + 2 * math.sqrt(mean.variance)

    def _known(self, batch: str, endpoint: str, name: str) -> tuple[_Mean, float] | None:
        """Return the most similar kind of lines of which enough have ended, and its least error (rule 1)."""
        for key, least in (((batch, name), 0.1), (("", name), 0.3), (("", "", endpoint), 0.5)):
            mean = self._means.get(key)
            if mean is not None and mean.count >= KNOWN:
                return mean, least
        return None

    def one(self, batch: str, endpoint: str, name: str) -> float:
        if (known := self._known(batch, endpoint, name)) is not None:
            mean, _ = known
            return max(1.0, mean.size * mean.byte + mean.answer)
        return max(1.0, LINE_BYTES * BYTE_WORK + (0.0 if endpoint in READ_ONLY else ANSWER_WORK))


@dataclass(frozen=True, slots=True)
class RoomWork:
    """The work that a batch still needs from a model."""

    work: float
    spread: float = MOST_SPREAD
    """Likely error of the forecast, relative to the remaining time."""
    delay: float = 0.0
    """Seconds until the model can start."""
    tail: float = 0.0
    """Seconds that the last lines take beyond their work (rule 4)."""


@dataclass(frozen=True, slots=True)
class BatchNeed:
    """A batch, with the fields that `policy` orders by."""

    id: str
    team: str
    weight: float
    level: Level
    priority: int
    deadline: float
    rooms: Mapping[str, RoomWork] = field(default_factory=dict)


def forecast(needs: Sequence[BatchNeed], rates: Mapping[str, RoomRate], now: float) -> Mapping[str, Forecast]:
    """Return forecasts of these batches, except those that need a model whose rate is unknown."""
    ends: dict[str, list[tuple[float, float]]] = {need.id: [(0.0, LEAST_SPREAD)] for need in needs}
    rooms = {key: None for need in needs for key in need.rooms}
    unknown: set[str] = set()
    for key in rooms:
        waiting = [need for need in needs if key in need.rooms]
        rate = rates.get(key)
        if rate is None:
            unknown.update(need.id for need in waiting)
            continue
        for need, seconds in _shared(key, waiting, max(LEAST_RATE, rate.per_second)):
            own = need.rooms[key]
            spread = min(MOST_SPREAD, (own.spread**2 + rate.spread**2) ** 0.5)
            ends[need.id].append((min(LONGEST, own.delay + seconds + own.tail), spread))
    forecasts: dict[str, Forecast] = {}
    for id_, parts in ends.items():
        if id_ not in unknown:
            seconds, spread = max(parts)
            late = min(LONGEST, seconds * (1 + spread))
            forecasts[id_] = Forecast(now, now + seconds / (1 + spread), now + seconds, now + late)
    return forecasts


def _shared(key: str, needs: Iterable[BatchNeed], rate: float) -> Iterable[tuple[BatchNeed, float]]:
    """Yield the seconds until each of these batches has had its work of a room."""
    levels: dict[Level, dict[str, list[BatchNeed]]] = {}
    for need in needs:
        team = "" if need.level is Level.LATE else need.team  # late batches of all teams run one after the other
        levels.setdefault(need.level, {}).setdefault(team, []).append(need)
    seconds = 0.0
    for level in sorted(levels):
        teams = levels[level]
        steps: list[tuple[float, str, BatchNeed]] = []
        weights, last = {team: many[0].weight for team, many in teams.items()}, dict.fromkeys(teams, 0.0)
        for team, many in teams.items():
            for need in sorted(many, key=lambda one: order_of(one.level, 0.0, one.priority, one.deadline)):
                last[team] += need.rooms[key].work / weights[team]
                steps.append((last[team], team, need))
        active, passed = sum(weights.values()), 0.0
        for until, team, need in sorted(steps, key=lambda step: step[0]):
            seconds += (until - passed) * active / rate
            passed = until
            yield need, seconds
            if until == last[team]:
                active -= weights.pop(team, 0.0)
