"""The times at which deliveries are repeated, with a virtual clock."""

import itertools
from dataclasses import replace

import pytest

from batches.callbacks.policy import LIFE_SECONDS, PAUSES, decide
from batches.callbacks.records import Delivery, DeliveryOutcome, DeliveryState

NEW = Delivery("evt_1", "search", "batch_1", "webhook_1", "https://a.example", "batch.completed", 100.0, 100.0, 100.0)
FAILED = DeliveryOutcome(500, "It answered with status 500.")


def until_over(outcome: DeliveryOutcome, chance: float) -> list[float]:
    """Return the times of all attempts of a delivery that never succeeds."""
    delivery, times = NEW, list[float]()
    while delivery.state is DeliveryState.PENDING:
        times.append(delivery.due)
        change = decide(delivery, outcome, delivery.due, chance)
        delivery = replace(delivery, state=change.state, attempts=change.attempts, due=change.due)
    assert delivery.state is DeliveryState.DEAD
    return times


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_a_receiver_that_never_answers_is_given_up_after_a_day(chance: float) -> None:
    times = until_over(DeliveryOutcome(None, "It gave no answer."), chance)
    gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
    documented = (5, 15, 60, 5 * 60, 15 * 60, 30 * 60)
    spread = 1 + 0.1 * chance
    assert gaps == pytest.approx([seconds * spread for seconds in (*documented, *[3600] * (len(gaps) - 6))])
    assert times[0] == NEW.created
    assert LIFE_SECONDS - 2 * max(gaps) < times[-1] - times[0] <= LIFE_SECONDS


def test_which_outcomes_end_a_delivery() -> None:
    delivered = decide(NEW, DeliveryOutcome(204), 101.0)
    assert (delivered.state, delivered.attempts) == (DeliveryState.DELIVERED, 1)
    assert decide(NEW, DeliveryOutcome(410, "It answered with status 410."), 101.0).state is DeliveryState.DEAD
    for status in (301, 400, 404, 429, 500):
        change = decide(NEW, replace(FAILED, status=status), 101.0)
        assert (change.state, change.due) == (DeliveryState.PENDING, 101.0 + PAUSES[0])


def test_a_delivery_that_is_sent_again_has_another_day() -> None:
    old = replace(NEW, since=NEW.created + 30 * LIFE_SECONDS, attempts=0)
    change = decide(old, FAILED, old.since)
    assert (change.state, change.due) == (DeliveryState.PENDING, old.since + PAUSES[0])
