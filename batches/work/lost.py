"""Work that lines lost because people's requests took their turns. Pure: the caller provides the clock.

| fraction of the last hour's work lost | lines                                                               |
|---------------------------------------|---------------------------------------------------------------------|
| below `FILL_BELOW`                    | use all idle capacity, and give up their turns                      |
| below `REVOKE_BELOW`                  | leave `policy.RESERVED` more places free while people send requests |
| more                                  | also keep their turns to the end, so further people have to wait    |
"""

from collections import deque
from dataclasses import dataclass

MOST_LOST = 0.05
"""Largest fraction of an hour's line work that may be lost. The bounds below are lower: one burst takes many turns."""
REVOKE_BELOW, FILL_BELOW = 0.04, 0.03
HOUR, MINUTE = 3600.0, 60.0


@dataclass(slots=True)
class _Minute:
    since: float
    ran: float = 0.0
    lost: float = 0.0


class LostWork:
    """Seconds that lines of one model ran in the last hour, and how much of that was lost."""

    def __init__(self) -> None:
        self._minutes: deque[_Minute] = deque()

    def add(self, seconds: float, now: float, *, is_lost: bool) -> None:
        """Record that a line ran for `seconds` until now."""
        if not self._minutes or now - self._minutes[-1].since >= MINUTE:
            self._minutes.append(_Minute(now))
        newest = self._minutes[-1]
        newest.ran += seconds
        newest.lost += seconds if is_lost else 0.0

    def part(self, now: float) -> float:
        """Return the fraction of the last hour's work that was lost, 0 if there was no work."""
        while self._minutes and now - self._minutes[0].since > HOUR:
            self._minutes.popleft()
        ran = sum(minute.ran for minute in self._minutes)
        return sum(minute.lost for minute in self._minutes) / ran if ran else 0.0
