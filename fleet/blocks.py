"""Blocks that servers take from a limit; see the diagram in `fleet`. Pure."""

IDLE_SECONDS = 2.0
"""Seconds without use after which the rest of a block is given back."""
SHARES = 8
"""At most 1 / SHARES of a limit lies unused on other nodes."""


def block_size(capacity: int, granted: int, reservation: int, nodes: int) -> int:
    """Return how much to take from a limit: at most the rest, and less if little is left.

    Args:
        granted: to all servers in this window.
        reservation: what the request needs beyond the server's block.
        nodes: number of nodes that take blocks, at least 1.
    """
    left = max(0, capacity - granted)
    share = min(capacity // (SHARES * nodes), left // (2 * nodes))
    return min(left, max(reservation, share))


class LimitBlock:
    """One server's part of a limit. `now` is its own monotonic clock in seconds."""

    def __init__(self) -> None:
        self.window = 0
        """Window of the newest block; 0 if there was none yet."""
        self.left = 0
        """Negative if requests used more than they had reserved; the next block makes up for it."""
        self._ends = self._used = 0.0

    def add(self, amount: int, window: int, seconds: float, now: float) -> None:
        """Add a granted amount, in a window that lasts `seconds` from now."""
        if window != self.window:
            debt = min(0, self.left) if self.window == 0 else 0
            self.window, self.left = window, debt
        self.left += amount
        self._ends, self._used = now + seconds, now

    def missing(self, amount: int, now: float) -> int:
        """Return the part of `amount` that this block cannot cover."""
        self._turn(now)
        return max(0, amount - self.left)

    def charge(self, amount: int, now: float) -> None:
        """Use an amount, even if the block does not have it."""
        self._turn(now)
        self.left -= amount
        self._used = now

    def release(self, amount: int, window: int) -> None:
        """Return an unused reservation of a window. Negative amounts are used beyond the reservation."""
        if window == self.window:
            self.left += amount

    def idle(self, now: float) -> int:
        """Remove and return the amount to give back, if the block is idle."""
        self._turn(now)
        return self.surplus(0) if now - self._used >= IDLE_SECONDS else 0

    def surplus(self, most: int) -> int:
        """Remove and return everything beyond `most`."""
        amount = max(0, self.left - most)
        self.left -= amount
        return amount

    def _turn(self, now: float) -> None:
        if self.window and now >= self._ends:
            self.left = 0
