"""Chooses which bodies stay in memory. No I/O, no clock.

A body counts towards bounds for all bodies, for its team, its key and its address. If one more piece would exceed a
bound:

1. Stalled bodies under that bound give way, the longest stalled first, until the piece fits.
2. If it would not fit even without them, none gives way and the piece is refused.

A complete body never gives way: its request is waiting for its turn or being answered.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from registry.base.counting import count_down
from registry.base.wording import size_words
from registry.errors import QueueFull
from tenants.caller import ANONYMOUS, Caller

RETRY_AFTER = 5.0


class Group(StrEnum):
    """Bodies with a common bound."""

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
"""Shares of the bound, so that no team, key or address can fill it alone. Most servers have one team and one proxy."""
Owner = tuple[Group, str]


def owners_of(caller: Caller, address: str) -> tuple[Owner, ...]:
    """The owners whose bounds a body counts towards. Without keys there is one team, `default`."""
    owners: list[Owner] = [(Group.ALL, ""), (Group.ADDRESS, address)]
    if caller is ANONYMOUS:
        return (*owners, (Group.NO_KEY, ""))
    owners.append((Group.TEAM, caller.team))
    if caller.metered is not None:
        owners.append((Group.KEY, caller.metered))
    return tuple(owners)


@dataclass(slots=True, eq=False)
class Body:
    """A body that is still arriving."""

    owners: tuple[Owner, ...]
    slack: float
    """Remaining seconds that its client may be silent."""
    size: int = 0
    stalls_at: float = math.inf
    """Time on the loop's clock from which it counts as stalled. Infinite while we do not wait for its client."""

    def await_piece(self, now: float) -> None:
        self.stalls_at = now + self.slack

    def take_piece(self, size: int, now: float, rate: float, most_slack: float) -> None:
        """Count a piece. Bytes at `rate` or faster regain the time that they took."""
        self.slack = min(most_slack, max(0.0, self.stalls_at - now) + size / rate)
        self.stalls_at = math.inf


def choose_victims(excess: Mapping[Owner, int], stalled: Iterable[Body]) -> list[Body] | None:
    """Choose the bodies that give way, the longest stalled first. None if they would not suffice.

    Args:
        excess: bytes by which each owner exceeds its bound.
    """
    left = dict(excess)
    victims = []
    for body in sorted(stalled, key=lambda one: one.stalls_at):
        if not left:
            break
        if any(owner in left for owner in body.owners):
            victims.append(body)
            left = {owner: n - (body.size if owner in body.owners else 0) for owner, n in left.items()}
            left = {owner: n for owner, n in left.items() if n > 0}
    return None if left else victims


class BodyMemory:
    """Bytes of all bodies in memory. Thousands may arrive or wait at once.

    Args:
        most: bytes of all bodies together.
        largest: bytes of a usual body. No share is smaller.
    """

    def __init__(self, most: int, largest: int) -> None:
        self._bounds = {group: max(int(most * share), min(most, largest)) for group, share in SHARES.items()}
        self._bodies: set[Body] = set()
        self._held = Counter[Owner]()

    @property
    def held(self) -> int:
        return sum(body.size for body in self._bodies)

    def add(self, body: Body, size: int, now: float) -> list[Body]:
        """Count `size` more bytes. Returns the bodies that give way, which no longer count.

        Raises QueueFull.
        """
        if not size:  # an empty body holds nothing and need not give way
            return []
        excess = {
            owner: over for owner in body.owners if (over := self._held[owner] + size - self._bounds[owner[0]]) > 0
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
            self._held[owner] += size
        return victims

    def remove(self, body: Body) -> None:
        """Forget a body. Does nothing if it is unknown."""
        if body not in self._bodies:
            return
        self._bodies.remove(body)
        for owner in body.owners:
            count_down(self._held, owner, body.size)
        body.size = 0
