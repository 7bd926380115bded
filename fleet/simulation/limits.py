"""Limits in blocks: the database's row for each limit, and the nodes' blocks."""

from math import inf

from fleet.blocks import LimitBlock, block_size

WINDOW = 60.0
"""Length of a limit's window in seconds, by the database's clock."""


class SimLimits:
    """Limits on requests per window, by team.

    Args:
        capacities: requests of a team in WINDOW. Other teams have no limit.
    """

    def __init__(self, capacities: dict[str, int], nodes: int) -> None:
        self._capacities, self._nodes = capacities, nodes
        self._window = -1
        self._granted: dict[str, int] = {}
        self._blocks: dict[tuple[str, str], LimitBlock] = {}
        """Block by node and team."""
        self.is_away = False
        """Whether the database is away."""
        self.admitted: dict[tuple[str, int], int] = {}
        """Requests admitted, by team and window."""

    def admit(self, node: str, team: str, now: float) -> bool:
        capacity = self._capacities.get(team)
        if capacity is None:
            return True
        window = int(now / WINDOW)
        if window != self._window:
            self._window = window
            self._granted.clear()
            self._blocks.clear()
        block = self._blocks.setdefault((node, team), LimitBlock())
        if block.missing(1, now) and not self.is_away:
            idle = sum(block.idle(now) for (_, owner), block in self._blocks.items() if owner == team)
            granted = self._granted.get(team, 0) - idle
            taken = block_size(capacity, granted, 1, self._nodes)
            self._granted[team] = granted + taken
            block.add(taken, window + 1, inf, now)  # it is removed with its window
        if block.missing(1, now):
            return False
        block.charge(1, now)
        self.admitted[team, window] = self.admitted.get((team, window), 0) + 1
        return True

    @property
    def capacity(self) -> int:
        return max(self._capacities.values(), default=0)

    def over_admitted(self) -> int:
        """Return the requests admitted beyond capacities, in all windows."""
        return sum(max(0, count - self._capacities[team]) for (team, _), count in self.admitted.items())
