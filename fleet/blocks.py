"""Sizes of the blocks that servers take of a limit; see the table in `fleet`. Pure."""

IDLE_SECONDS = 2.0
"""Seconds without use after which the rest of a block goes back."""
SHARES = 8
"""At most one part in so many of a limit lies unused on other nodes."""


def block_size(capacity: int, granted: int, reservation: int, nodes: int) -> int:
    """The amount to take of a limit: at most the rest, and less when little is left.

    Args:
        granted: to all servers in this window.
        reservation: of the request that needs it, beside what its server has.
        nodes: that take blocks; at least 1.
    """
    left = max(0, capacity - granted)
    share = min(capacity // (SHARES * nodes), left // (2 * nodes))
    return min(left, max(reservation, share))


class LimitBlock:
    """One server's part of a limit. `now` is its own monotonic clock in seconds."""

    def __init__(self) -> None:
        self.window = 0
        """The newest block's window; 0: there was none yet."""
        self.left = 0
        """Below 0: requests used more than they had reserved, and the next block makes up for it."""
        self._ends = self._used = 0.0

    def add(self, amount: int, window: int, seconds: float, now: float) -> None:
        """Take in what was granted, in a window that lasts for so many seconds from now on."""
        if window != self.window:
            debt = min(0, self.left) if self.window == 0 else 0
            self.window, self.left = window, debt
        self.left += amount
        self._ends, self._used = now + seconds, now

    def seconds_left(self, now: float) -> float:
        """Seconds until the window ends."""
        return max(0.0, self._ends - now)

    def missing(self, amount: int, now: float) -> int:
        """The part of a request's need that this block cannot cover."""
        self._turn(now)
        return max(0, amount - self.left)

    def charge(self, amount: int, now: float) -> None:
        """Use so much, whether or not it is here."""
        self._turn(now)
        self.left -= amount
        self._used = now

    def reserve(self, amount: int, now: float) -> bool:
        """Use a part of it; False: it has not so much, or its window is over."""
        if self.missing(amount, now):
            return False
        self.charge(amount, now)
        return True

    def release(self, amount: int, window: int) -> None:
        """Take back what a request reserved in a window and did not use; below 0: what it used beyond that."""
        if window == self.window:
            self.left += amount

    def idle(self, now: float) -> int:
        """Take out the amount that has to be given back."""
        self._turn(now)
        return self.surplus(0) if now - self._used >= IDLE_SECONDS else 0

    def surplus(self, most: int) -> int:
        """Take out everything beyond an amount."""
        amount = max(0, self.left - most)
        self.left -= amount
        return amount

    def _turn(self, now: float) -> None:
        if self.window and now >= self._ends:
            self.left = 0
