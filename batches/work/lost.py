"""Work of lines that was lost to requests which took their turns. Pure: the caller has the clock.

| part of an hour's work that was lost | lines                                                                |
|--------------------------------------|----------------------------------------------------------------------|
| below `FILL_BELOW`                   | fill what people leave, and give their turns up                      |
| below `REVOKE_BELOW`                 | leave `policy.RESERVED` places more while people come                |
| more                                 | also run to their ends: people beyond these places wait for one      |
"""

from collections import deque
from dataclasses import dataclass

MOST_LOST = 0.05
"""Part of an hour's work of lines that may be lost. The others are less: one burst takes many turns at once."""
REVOKE_BELOW, FILL_BELOW = 0.04, 0.03
HOUR, MINUTE = 3600.0, 60.0


@dataclass(slots=True)
class _Minute:
    since: float
    ran: float = 0.0
    lost: float = 0.0


class LostWork:
    """Seconds for which lines of one model ran in the last hour, and what was lost of them."""

    def __init__(self) -> None:
        self._minutes: deque[_Minute] = deque()

    def add(self, seconds: float, now: float, *, is_lost: bool) -> None:
        """A line ran for so long, until now."""
        if not self._minutes or now - self._minutes[-1].since >= MINUTE:
            self._minutes.append(_Minute(now))
        newest = self._minutes[-1]
        newest.ran += seconds
        newest.lost += seconds if is_lost else 0.0

    def part(self, now: float) -> float:
        """Part of the last hour's work that was lost; 0 where there was none."""
        while self._minutes and now - self._minutes[0].since > HOUR:
            self._minutes.popleft()
        ran = sum(minute.ran for minute in self._minutes)
        return sum(minute.lost for minute in self._minutes) / ran if ran else 0.0
