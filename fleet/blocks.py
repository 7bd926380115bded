"""How much of a limit a server takes at once; see the table of a block in `fleet`. Pure."""

SHARES = 8
"""At most one part in so many of a limit lies unused on other nodes."""


def block_size(capacity: int, granted: int, reservation: int, nodes: int) -> int:
    """What to take of a limit, at most what is left; less once little is left.

    Args:
        granted: to all servers in this window.
        reservation: of the request that needs it, beside what its server has.
        nodes: that take blocks; at least 1.
    """
    left = max(0, capacity - granted)
    share = min(capacity // (SHARES * nodes), left // (2 * nodes))
    return min(left, max(reservation, share))
