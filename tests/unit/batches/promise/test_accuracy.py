"""The accuracy of forecasts on a simulated model, with real meters, means and forecasts, and a virtual clock.

`python -m tests.unit.batches.promise.test_accuracy` prints the figures.
"""

import heapq
import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from batches.records import Forecast
from batches.work.forecast import BatchNeed, LineWork, RateMeter, RoomRate, RoomWork, forecast
from batches.work.forecaster import EARLY_SECONDS, RENEW_SECONDS
from batches.work.policy import Level
from models.messages import Usage
from models.tasks.kind import work_of

CAPACITY, SPEED = 32, 60.0
"""Places, and the work of each in a second."""
CHAT = "/v1/chat/completions"
LOOK_SECONDS = 0.5
QUIET, STEADY, BURSTS = (0,), (6, 8, 10), (0, 0, 8, 24)
"""Places that interactive requests use, changing every few minutes."""
SAME, OTHERS = (1.0,), (0.6, 0.8, 1.0, 1.3)
"""Speed of the model with a batch's lines."""


@dataclass
class _Batch:
    id: str
    created: float
    lines: list[tuple[Usage, int]]
    """Waiting lines: each one's work and its bytes."""
    total: int
    size: int
    """Bytes of the waiting and running lines."""
    speed: float = SPEED
    """Work of a place in a second on its lines, which depends on adapters, prompts and caches."""
    running: int = 0
    made: dict[str, Forecast] = field(default_factory=dict)
    ended: float = 0.0

    @property
    def left(self) -> int:
        return len(self.lines) + self.running


def _batch(chance: random.Random, number: int, created: float, speeds: Sequence[float]) -> _Batch:
    """Return a batch whose prompts and answers vary around means that a name's batches share up to a third."""
    prompt, answer = 80 * chance.uniform(0.7, 1.4), 60 * chance.uniform(0.7, 1.4)
    count = chance.randrange(300, 4000)
    lines = []
    for _ in range(count):
        tokens = max(4, round(chance.gauss(prompt, prompt / 3)))
        usage = Usage(prompt_tokens=tokens, completion_tokens=max(1, round(answer * chance.uniform(0.25, 1.75))))
        lines.append((usage, 120 + round(tokens * chance.uniform(3.0, 5.0))))
    speed = SPEED * chance.choice(speeds)
    return _Batch(f"b{number}", created, lines, count, sum(size for _, size in lines), speed)


def ratios(
    seed: int, people: Sequence[int], speeds: Sequence[float] = SAME, batches: int = 20
) -> dict[str, list[float]]:
    """Return the ratios of forecast to actual seconds, by the time of the forecast."""
    chance, ids = random.Random(seed), itertools.count()
    work, meter = LineWork(), RateMeter()
    todo = [_batch(chance, number, number * 60.0, speeds) for number in range(batches)]
    here: list[_Batch] = []
    ends: list[tuple[float, int, _Batch, Usage, int]] = []
    done, now, renew_at, others, change_at = list[_Batch](), 0.0, 0.0, 0, 0.0
    while len(done) < batches:
        if now >= change_at:
            others, change_at = chance.choice(people), now + chance.uniform(30.0, 240.0)
        while ends and ends[0][0] <= now:
            _, _, batch, usage, size = heapq.heappop(ends)
            batch.running -= 1
            batch.size -= size
            work.learn(batch.id, CHAT, "m", size, usage, work_of(usage) / batch.speed)
            meter.add(work_of(usage), batch.id)
            if not batch.left:
                batch.ended = now
                here.remove(batch)
                done.append(batch)
        if todo and (todo[0].created <= now or not here):
            here.append(todo.pop(0))
            renew_at = now
        for batch in here:
            while batch.lines and len(ends) < CAPACITY - others:
                usage, size = batch.lines.pop()
                batch.running += 1
                heapq.heappush(ends, (now + work_of(usage) / batch.speed, next(ids), batch, usage, size))
        meter.advance(now, is_full=any(batch.lines for batch in here))
        rate = meter.rate()
        if now >= renew_at and rate is not None and here:
            _renew(here, work, rate, now)
            is_new = any(len(batch.made) < 2 for batch in here)
            renew_at = now + (EARLY_SECONDS if is_new else RENEW_SECONDS)
        now += LOOK_SECONDS
    return {
        label: [(b.made[label].likely - b.made[label].made) / (b.ended - b.made[label].made) for b in done[1:]]
        for label in ("creation", "tenth")
    }  # the first batch has no earlier measurement


def _renew(here: Sequence[_Batch], work: LineWork, rate: RoomRate, now: float) -> None:
    needs = []
    for batch in here:
        need, spread = work.of(batch.id, CHAT, "m", batch.left, batch.size)
        room = RoomWork(need, spread, tail=work.tail(batch.id, CHAT, "m"))
        needs.append(BatchNeed(batch.id, "team", 1.0, Level.IDLE, 1, batch.created, {"m": room}))
    for id_, one in forecast(needs, {"m": rate}, now).items():
        batch = next(batch for batch in here if batch.id == id_)
        batch.made.setdefault("creation", one)
        if batch.left <= 0.9 * batch.total:
            batch.made.setdefault("tenth", one)


def near(found: Sequence[float], factor: float) -> float:
    """Return the share of forecasts within a factor."""
    return sum(1 / factor <= one <= factor for one in found) / len(found)


def measure(people: Sequence[int], speeds: Sequence[float], seeds: Sequence[int]) -> dict[str, float]:
    found = [ratios(seed, people, speeds) for seed in seeds]
    return {
        label: near([one for many in found for one in many[label]], factor)
        for label, factor in (("creation", 2.0), ("tenth", 1.2))
    }


@pytest.mark.parametrize(
    ("people", "speeds"), [(QUIET, SAME), (STEADY, SAME), (QUIET, OTHERS)], ids=["quiet", "steady", "others"]
)
def test_nine_of_ten_forecasts_are_accurate(people: Sequence[int], speeds: Sequence[float]) -> None:
    """Within a factor of two at creation, and within 20 % after a tenth of the lines."""
    assert min(measure(people, speeds, range(2)).values()) >= 0.9


if __name__ == "__main__":
    for name, people in (("quiet", QUIET), ("steady", STEADY), ("bursts", BURSTS)):
        for kind, speeds in (("same", SAME), ("others", OTHERS)):
            print(name, kind, json.dumps(measure(people, speeds, range(10))))
