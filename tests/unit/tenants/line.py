"""A simple model of a rate's bucket in integers: a line of parts that drain in order."""

from tenants.limits.meters import SECOND

MINUTE = 60 * SECOND


class Line:
    """Parts belong to a request, or to none (0). At a rate of one per minute, a unit drains in a nanosecond."""

    def __init__(self, limit: int, now: int) -> None:
        self.limit, self.now = limit, now
        self.parts: list[list[int]] = []

    def pass_to(self, now: int) -> None:
        drained, self.now = (now - self.now) * self.limit, now
        while drained > 0 and self.parts:
            whose, units = self.parts.pop(0)
            if units > drained:
                self.parts.insert(0, [whose, units - drained])
            drained -= units

    def room(self) -> int:
        """Return the room in units, which is negative if the bucket is overfull."""
        return self.limit * MINUTE - sum(units for _, units in self.parts)

    def fits(self, amount: int) -> bool:
        return amount * MINUTE <= self.room()

    def take(self, whose: int, amount: int) -> None:
        self.parts.append([whose, amount * MINUTE])

    def end(self, whose: int, reserved: int, used: int) -> None:
        """Remove what a request did not use, unless it has drained, or append what it used beyond its reservation."""
        if used > reserved:
            self.take(0, used - reserved)
        for part in self.parts:
            if part[0] == whose:
                part[1] -= min(part[1], max(0, reserved - used) * MINUTE)
