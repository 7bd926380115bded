"""Whether a failed attempt is made again at the same model, and after how long. No clock and no chance of its own."""

LONGEST_WAIT = 20.0
"""Longest Retry-After in seconds that is waited for; a longer one goes to the client."""
FIRST_SECONDS, MAX_SECONDS = 0.25, 8.0
"""Seconds: the back-off before the first further attempt, doubled for each one after it, up to so many."""
SHARE, SAVED = 0.1, 10.0
"""Further attempts per request, and how many may be saved up while all is well."""


class RetryBudget:
    """A budget that keeps retries at a provider to a tenth of the traffic, so that they do not worsen an outage."""

    def __init__(self) -> None:
        self._tokens = 1.0

    def record_request(self) -> None:
        """A request comes, with its first attempt here."""
        self._tokens = min(SAVED, self._tokens + SHARE)

    def take(self) -> bool:
        """Is there one further attempt?"""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


def wait(attempt: int, retry_after: float | None, seconds_left: float | None, chance: float) -> float | None:
    """Seconds until the next attempt; None: it makes no sense.

    Args:
        attempt: the one that failed, from 1.
        left: seconds of the whole request; None: as long as it takes.
        chance: 0 to 1. Half of the back-off is jitter; a Retry-After is a bound from below.
    """
    back_off = min(MAX_SECONDS, FIRST_SECONDS * 2.0 ** (attempt - 1)) * (0.5 + chance / 2)
    if retry_after is not None:
        if retry_after > LONGEST_WAIT:
            return None
        back_off = max(back_off, retry_after)
    return None if seconds_left is not None and back_off >= seconds_left else back_off
