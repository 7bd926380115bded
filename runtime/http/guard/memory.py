"""Choose which bodies stay in memory. No I/O, no clock.

A body counts for everybody together, for its team, its key and its address; each has a bound. Where one more piece
would break a bound:

1. Bodies that count there and make no progress give way, the longest stalled first, until the piece fits.
2. If it would not fit without all of those, none gives way and the piece is refused.

A whole body never gives way: its request waits for its turn, or is being answered.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from registry.base.wording import size_words
from registry.errors import QueueFull
from tenants.caller import ANONYMOUS, Caller

RETRY_AFTER = 5.0


class Group(StrEnum):
    """Bodies with a bound in common."""

    ALL = "of all requests"
    TEAM = "of your team"
    KEY = "of your key"
    ADDRESS = "from your address"
    NO_KEY = "without a key"


SHARES: Mapping[Group, float] = {
    Group.ALL: 1.0,
    Group.TEAM: 0.75,
    Group.KEY: 0.5,
    Group.ADDRESS: 0.75,
    Group.NO_KEY: 1 / 16,
}
"""Parts of the bound. No team, key or address can fill it alone; most servers have one team and one proxy."""
Owner = tuple[Group, str]


def owners_of(caller: Caller, address: str) -> tuple[Owner, ...]:
    """The owners that a body counts for. A server that needs no keys has one team, `default`."""
    found: list[Owner] = [(Group.ALL, ""), (Group.ADDRESS, address)]
    if caller is ANONYMOUS:
        return (*found, (Group.NO_KEY, ""))
    found.append((Group.TEAM, caller.team))
    if caller.metered is not None:
        found.append((Group.KEY, caller.metered))
    return tuple(found)


@dataclass(slots=True, eq=False)
class Body:
    """A body that is being received."""

    owners: tuple[Owner, ...]
    slack: float
    """Seconds that its client may still be silent."""
    size: int = 0
    stalls_at: float = math.inf
    """Time on the loop's clock at which it counts as stalled; infinity while nothing is awaited from its client."""

    def await_piece(self, now: float) -> None:
        self.stalls_at = now + self.slack

    def take_piece(self, size: int, now: float, rate: float, most_slack: float) -> None:
        """Count a piece. Only bytes at `rate` or faster make up for their time."""
        self.slack = min(most_slack, max(0.0, self.stalls_at - now) + size / rate)
        self.stalls_at = math.inf


def choose_victims(excess: Mapping[Owner, int], stalled: Iterable[Body]) -> list[Body] | None:
    """Bodies that give way, the longest stalled first; None: not enough.

    Args:
        excess: bytes that each owner holds over its bound.
    """
    left = dict(excess)
    victims = []
    for body in sorted(stalled, key=lambda one: one.stalls_at):
        if not left:
            break
        if body.size and any(owner in left for owner in body.owners):
            victims.append(body)
            left = {owner: n - (body.size if owner in body.owners else 0) for owner, n in left.items()}
            left = {owner: n for owner, n in left.items() if n > 0}
    return None if left else victims


class BodyMemory:
    """Bytes of all bodies in memory: thousands may come at once, or wait.

    Args:
        most: bytes that all may hold together.
        largest: bytes of a usual body: no share is smaller.
    """

    def __init__(self, most: int, largest: int) -> None:
        self._bounds = {group: max(int(most * share), min(most, largest)) for group, share in SHARES.items()}
        self._bodies: set[Body] = set()
        self._held: dict[Owner, int] = {}

    @property
    def held(self) -> int:
        return sum(body.size for body in self._bodies)

    def add(self, body: Body, size: int, now: float) -> list[Body]:
        """Count `size` more bytes. Returns bodies that have to go, and count no longer.

        Raises QueueFull.
        """
        excess = {
            owner: over
            for owner in body.owners
            if (over := self._held.get(owner, 0) + size - self._bounds[owner[0]]) > 0
        }
        victims: list[Body] | None = []
        if excess:
            stalled = [one for one in self._bodies if one.stalls_at <= now and one is not body]
            victims = choose_victims(excess, stalled)
        if victims is None:
            group, _ = max(excess, key=lambda one: excess[one])
            raise QueueFull(
                f"The bodies {group} hold all of the {size_words(self._bounds[group])} that they may have together "
                "(--max-bodies): try again.",
                code="bodies_full",
                retry_after=RETRY_AFTER,
            )
        for victim in victims:
            self.remove(victim)
        self._bodies.add(body)
        body.size += size
        for owner in body.owners:
            self._held[owner] = self._held.get(owner, 0) + size
        return victims

    def remove(self, body: Body) -> None:
        """Forget a body; nothing happens if it is unknown."""
        if body not in self._bodies:
            return
        self._bodies.remove(body)
        for owner in body.owners:
            self._held[owner] -= body.size
            if not self._held[owner]:
                del self._held[owner]
        body.size = 0
