"""The maximum wait of a request for its adapter, as derived in `runtime.scheduling.placement`."""

from math import ceil


def wait_bound(
    *,
    places: int,
    host: int,
    max_requests: int,
    max_overtake: float,
    staging_at_once: int,
    ahead: int,
    adapters_ahead: int,
    longest_run: float,
    longest_stage: float,
    longest_place: float,
) -> float:
    """Return the seconds within which a request starts, if ranked by arrival: W + (⌈A/m⌉ + 1)·(S + 2P + 2D) +
    ⌈(Q+1)/R⌉·D.

    W is max_overtake, R max_requests. S and P are the longest staging and placing (with its probe), D the longest
    run, including the engine's wait for the adapter's place. Q (`ahead`) requests were waiting when it arrived, for A
    (`adapters_ahead`) adapters, including its own.
    m = min(places, staging_at_once, max(host, places + 1) - places) adapters can be staged and placed at the same time.
    `places` are the unpinned ones.
    """
    lanes = min(places, staging_at_once, max(host, places + 1) - places)
    rounds = ceil(adapters_ahead / lanes) + 1
    swap = longest_stage + 2 * longest_place + 2 * longest_run
    return max_overtake + rounds * swap + ceil((ahead + 1) / max_requests) * longest_run
