"""Batches on a simulated model, with the real policy, meters and forecasts, and a virtual clock."""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from batches.records import BatchRecord, Forecast, LineCounts
from batches.work import policy
from batches.work.forecast import BatchNeed, RateMeter, RoomRate, RoomWork, forecast
from batches.work.policy import BatchWork, Level, LineGroup, RoomUse, TeamShares, Traffic, room_for

CAPACITY = 16
QUIET_SECONDS, RENEW_SECONDS = 10, 60
ROOM = "m"


@dataclass
class SimulatedBatch:
    """A batch, with times and work in seconds of one place."""

    record: BatchRecord
    line_work: float
    lines: int
    weight: float = 1.0
    running: int = 0
    done: float = 0.0
    """Work of its finished lines."""
    ended: float | None = None
    level: Level = Level.IDLE
    highest: Level = Level.IDLE

    @property
    def id(self) -> str:
        return self.record.id


@dataclass(frozen=True)
class _Running:
    batch: SimulatedBatch
    until: float


class Simulation:
    """A simulated model. others: number of interactive requests that could run, by second."""

    def __init__(self, batches: Sequence[SimulatedBatch], others: Sequence[int]) -> None:
        self._to_come = sorted(batches, key=lambda one: one.record.created)
        self._others = others
        self._here: list[SimulatedBatch] = []
        self._running: list[_Running] = []
        self._meter, self._shares = RateMeter(), TeamShares()
        self._used = float("-inf")
        self._teams: set[str] = set()
        self._served: defaultdict[str, float] = defaultdict(float)
        self.gap = 0.0
        """Largest difference between teams in work divided by weight, since both had waiting lines."""

    def run(self) -> None:
        now, renew_at = 0.0, 0.0
        for others in self._others:
            while self._to_come and self._to_come[0].record.created <= now:
                self._here.append(self._to_come.pop(0))
                renew_at = now
            if now >= renew_at:
                self._forecast(now)
                renew_at = now + RENEW_SECONDS
            self._end(now)
            self._claim(now, others)
            if not self._here and not self._to_come:
                return
            now += 1.0

    def _forecast(self, now: float) -> None:
        rate = self._meter.rate() or RoomRate(float(CAPACITY))
        needs = []
        for one in self._here:
            level, record = one.level, one.record
            work = RoomWork(one.lines * one.line_work + one.running * one.line_work / 2, 0.1)
            needs.append(
                BatchNeed(one.id, record.team, one.weight, level, record.priority, record.deadline, {ROOM: work})
            )
        found: Mapping[str, Forecast] = forecast(needs, {ROOM: rate}, now)
        for one in self._here:
            one.record = replace(one.record, forecast=found[one.id])

    def _end(self, now: float) -> None:
        for one in [one for one in self._running if one.until <= now]:
            self._running.remove(one)
            batch = one.batch
            batch.running -= 1
            batch.done += batch.line_work
            self._meter.add(batch.line_work)
            if not batch.running and not batch.lines:
                batch.ended = now
                self._here.remove(batch)

    def _claim(self, now: float, others: int) -> None:
        """Start lines. Those of class batch use free places, raised ones get at least half of the places."""
        if others:
            self._used = now
        traffic = Traffic(CAPACITY, others, is_quiet=now - self._used >= QUIET_SECONDS)
        free = dict.fromkeys(Level, CAPACITY - others)
        free[Level.LATE] = free[Level.PRESSED] = max(CAPACITY - others, CAPACITY // 2)
        use = RoomUse({level: min(room_for(traffic, level), free[level]) for level in Level}, len(self._running))
        works = [self._work(one, now) for one in self._here if one.lines]
        teams = {one.team for one in works}
        self._shares.join({ROOM: teams})
        if teams != self._teams:
            self._teams = teams
            self._served.clear()
        by_id = {one.id: one for one in self._here}
        for claim in policy.choose(works, {ROOM: use}, self._shares):
            batch = by_id[claim.batch]
            for _ in range(claim.count):
                batch.lines -= 1
                batch.running += 1
                self._running.append(_Running(batch, now + batch.line_work))
                self._shares.charge(ROOM, batch.record.team, batch.line_work, batch.weight)
                self._served[batch.record.team] += batch.line_work / batch.weight
        served = [self._served[team] for team in {one.record.team for one in self._here if one.lines}]
        self.gap = max([self.gap, *([max(served) - min(served)] if served else [])])
        self._meter.advance(now, is_full=any(one.lines for one in self._here))

    def _work(self, one: SimulatedBatch, now: float) -> BatchWork:
        left = policy.slack(one.record, now)
        level = one.level = policy.level_of(left, one.level)
        one.highest = min(one.highest, level)
        group = LineGroup("m", ROOM, one.lines, is_placed=True, line_work=one.line_work)
        record = one.record
        return BatchWork(
            one.id, record.team, one.weight, level, record.deadline, record.created, record.priority, [group]
        )


def make_batch(
    id_: str, team: str, created: float, window: int, lines: int, line_work: float, weight: float = 1.0
) -> SimulatedBatch:
    counts = LineCounts(lines)
    record = BatchRecord(id_, team, "key", "openai", "/v1/embeddings", "file", created, window, counts=counts)
    return SimulatedBatch(record, line_work, lines, weight)


def traffic(chance: random.Random, seconds: int) -> list[int]:
    """Return interactive requests by second: bursts and quiet times, sometimes more than all places."""
    found: list[int] = []
    while len(found) < seconds:
        found += [chance.choice((0, 0, 0, 2, 4, 8, 16, 30))] * chance.randrange(20, 300)
    return found[:seconds]


def fits(batches: Sequence[SimulatedBatch], others: Sequence[int], reserve: float) -> bool:
    """Return whether earliest deadline first would end each batch with the `reserve` part of its window left.

    Lines may use the places that interactive requests leave free, and at least half of all, like late lines.
    """
    left = {one.id: one.lines * one.line_work for one in batches}
    for second, count in enumerate(others):
        free = float(max(CAPACITY - count, CAPACITY // 2))
        here = [one for one in batches if one.record.created <= second and left[one.id] > 0]
        for one in sorted(here, key=lambda one: one.record.deadline):
            if second > one.record.deadline - reserve * one.record.window:
                return False
            part = min(free, left[one.id])
            left[one.id] -= part
            free -= part
    return not any(left.values())
