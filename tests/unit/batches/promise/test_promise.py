"""Promises of batches on a simulated model: none that fits is late, and teams share by weight.

BATCHES_LONG=N plays N random cases of each instead of a few.
"""

import os
import random

import pytest

from batches.work.policy import RELIEF, Level, level_of
from tests.unit.batches.promise.simulation import CAPACITY, SimulatedBatch, Simulation, fits, make_batch, traffic

CASES = int(os.environ.get("BATCHES_LONG", "12"))
HARD = (46, 313, 333, 726, 967, 1311)
"""Cases that fit and were late while the likely ends of forecasts set the levels."""
RESERVE = 0.2
"""The share of its window that a batch that fits leaves unused, because traffic changes faster than forecasts."""


def _case(chance: random.Random) -> list[SimulatedBatch]:
    count, batches = chance.randrange(2, 9), list[SimulatedBatch]()
    for number in range(count):
        window, line_work = chance.choice((600, 1200, 2400)), float(chance.randrange(1, 15))
        work = chance.uniform(0.1, 1.8) * window * CAPACITY / count
        lines = max(1, int(work / line_work))
        batches.append(make_batch(f"b{number}", chance.choice("abc"), 0.0, window, lines, line_work))
    return batches


@pytest.mark.parametrize("seed", sorted({*range(CASES), *HARD}))
def test_no_batch_that_fits_is_late(seed: int) -> None:
    """All batches exist from the start, because no forecast includes later ones.

    Interactive requests come in unforeseen bursts; late lines get at least half of the places.
    """
    chance = random.Random(seed)
    batches, others = _case(chance), traffic(chance, 6000)
    does_fit = fits(batches, others, RESERVE)
    Simulation(batches, others).run()
    late = [one.id for one in batches if one.ended is None or one.ended > one.record.deadline]
    assert not (does_fit and late)
    assert all(one.ended is not None for one in batches), "a late batch ends, too"


def test_some_cases_fit_and_some_need_more_than_idle_capacity() -> None:
    """So that the test above is able to fail."""
    fitting, urgent = 0, 0
    for seed in range(12):
        chance = random.Random(seed)
        batches, others = _case(chance), traffic(chance, 6000)
        fitting += fits(batches, others, RESERVE)
        Simulation(batches, others).run()
        urgent += any(one.highest is Level.LATE for one in batches)
    assert fitting >= 6
    assert urgent >= 6


@pytest.mark.parametrize("seed", range(CASES))
def test_teams_share_the_work_of_a_model_by_weight(seed: int) -> None:
    """Within the bound of `runtime.scheduling.fair`, the largest lines by weight; twice that after a team arrives."""
    chance = random.Random(seed)
    batches = [
        make_batch(
            f"b{number}", chance.choice("abc"), float(chance.randrange(300)), 10**12, chance.randrange(50, 300),
            float(chance.randrange(1, 15)),
        )
        for number in range(6)
    ]  # fmt: skip
    weights = {team: chance.choice((0.5, 1.0, 3.0)) for team in "abc"}
    for one in batches:
        one.weight = weights[one.record.team]
    simulation = Simulation(batches, traffic(chance, 3000))
    simulation.run()
    largest = {team: max((b.line_work for b in batches if b.record.team == team), default=0.0) for team in "abc"}
    bound = 4 * max(largest[team] / weights[team] for team in "abc")
    assert simulation.gap <= bound


def test_a_level_is_left_only_with_more_slack_than_it_was_entered_with() -> None:
    assert level_of(0.04) is Level.LATE
    assert level_of(0.06, Level.LATE) is Level.LATE
    assert level_of(0.04 + RELIEF, Level.LATE) is Level.LATE
    assert level_of(0.06 + RELIEF, Level.LATE) is Level.IDLE
    assert level_of(0.30, Level.SOON) is Level.SOON
    assert level_of(0.30 + RELIEF, Level.SOON) is Level.IDLE
    assert level_of(0.06, Level.SOON) is Level.PRESSED
