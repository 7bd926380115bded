"""Times at which deliveries are tried again. Pure: no clock, no I/O.

| what came                                | the delivery                                               |
|------------------------------------------|------------------------------------------------------------|
| 2xx                                      | delivered                                                  |
| 410                                      | dead: the receiver wants no more (Standard Webhooks)       |
| anything else, or no answer              | pending; after 24 hours of attempts dead                   |
"""

from batches.callbacks.records import Delivery, DeliveryChange, DeliveryOutcome, DeliveryState

PAUSES = (5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0)
"""Seconds after the first, second, … failed attempt; the last one after all others."""
SPREAD = 0.1
"""Part of a pause by which it may be longer, so that deliveries that failed together do not come back together."""
LIFE_SECONDS = 86_400.0
"""Seconds from the first attempt; a pause that ends later is not begun."""
GONE = 410


def decide(delivery: Delivery, outcome: DeliveryOutcome, now: float, chance: float = 0.0) -> DeliveryChange:
    """chance: 0 to 1, chosen at random."""
    attempts = delivery.attempts + 1
    if not outcome.error:
        return DeliveryChange(DeliveryState.DELIVERED, outcome, attempts, now)
    pause = PAUSES[min(attempts, len(PAUSES)) - 1] * (1 + SPREAD * chance)
    if outcome.status == GONE or now + pause > delivery.since + LIFE_SECONDS:
        return DeliveryChange(DeliveryState.DEAD, outcome, attempts, now)
    return DeliveryChange(DeliveryState.PENDING, outcome, attempts, now + pause)
