"""Five minutes of a provider that fails at random, on a scripted clock. See also `tests.faults.providers.run`."""

import random

from routing.providers.breaker import Breaker, CallOutcome, Permit, Phase, admit, ended

RATE = 0.1
"""The seconds between two requests."""
ALLOWED = {
    (Phase.CLOSED, Phase.OPEN),
    (Phase.OPEN, Phase.HALF_OPEN),
    (Phase.HALF_OPEN, Phase.OPEN),
    (Phase.HALF_OPEN, Phase.CLOSED),
}


def run(share: float, seed: int = 7) -> tuple[list[tuple[float, Phase, Phase]], int, int]:
    """Return the changes of phase, and the numbers of requests that reached the provider and that failed there."""
    chance, state, changes, reached, failures = random.Random(seed), Breaker(), [], 0, 0
    for step in range(3000):
        now, before = step * RATE, state.phase
        state, found = admit(state, now)
        if before is not state.phase:
            changes.append((now, before, state.phase))
        if not isinstance(found, Permit):
            continue
        failed, before = chance.random() < share, state.phase
        reached, failures = reached + 1, failures + failed
        state = ended(state, found, CallOutcome.FAILURE if failed else CallOutcome.SUCCESS, now, chance.random())
        if before is not state.phase:
            changes.append((now, before, state.phase))
    return changes, reached, failures


def test_a_third_of_failures_opens_the_breaker_at_times() -> None:
    changes, reached, _ = run(0.3)
    pairs = [(before, after) for _, before, after in changes]
    assert set(pairs) <= ALLOWED
    assert (Phase.CLOSED, Phase.OPEN) in pairs
    assert (Phase.HALF_OPEN, Phase.CLOSED) in pairs
    assert reached > 1500, "the provider is used for most of the time"
    opened = [at for at, _, after in changes if after is Phase.OPEN]
    probed = [at for at, _, after in changes if after is Phase.HALF_OPEN]
    for at, next_probe in zip(opened, probed, strict=False):
        assert 5.0 <= next_probe - at <= 67.0


def test_few_requests_reach_a_provider_during_an_outage() -> None:
    changes, reached, failures = run(1.0)
    assert failures == reached <= 5 + len([1 for _, _, after in changes if after is Phase.HALF_OPEN])
    assert reached < 20, "of three thousand"


def test_a_healthy_provider_gets_all_requests() -> None:
    assert run(0.0) == ([], 3000, 0)
