"""Decides when deliveries are retried. Pure: no clock, no I/O.

| outcome                                  | the delivery becomes                                       |
|------------------------------------------|------------------------------------------------------------|
| 2xx                                      | delivered                                                  |
| 410                                      | dead: the receiver wants no more (Standard Webhooks)       |
| another status or no answer              | pending; dead after 24 hours of attempts                   |
"""

from batches.callbacks.records import Delivery, DeliveryChange, DeliveryOutcome, DeliveryState

PAUSES = (5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0)
"""Seconds after the first, second, … failed attempt. The last value applies to all later ones."""
SPREAD = 0.1
"""Largest relative extension of a pause, so that deliveries that failed together are not retried together."""
LONGEST_PAUSE = PAUSES[-1] * (1 + SPREAD)
LIFE_SECONDS = 86_400.0
"""Seconds from the first attempt. No pause may end later."""
GONE = 410


def decide(delivery: Delivery, outcome: DeliveryOutcome, now: float, chance: float = 0.0) -> DeliveryChange:
    """Return the state of a delivery after an attempt. chance: random, 0 to 1."""
    attempts = delivery.attempts + 1
    if not outcome.error:
        return DeliveryChange(DeliveryState.DELIVERED, outcome, attempts, now)
    pause = PAUSES[min(attempts, len(PAUSES)) - 1] * (1 + SPREAD * chance)
    if outcome.status == GONE or now + pause > delivery.since + LIFE_SECONDS:
        return DeliveryChange(DeliveryState.DEAD, outcome, attempts, now)
    return DeliveryChange(DeliveryState.PENDING, outcome, attempts, now + pause)
