"""Adapters in host memory and in device places, with pins and moves."""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from cachetools import LRUCache

from registry.errors import Conflict
from runtime.scheduling.fair import Rank
from runtime.scheduling.requests import LaneHead, WaitingRequests
from tenants.caller import ServiceClass


class HostTier:
    """Host memory, by rules 3 and 4 of `runtime.scheduling.placement`.

    The cache only orders adapters by last use. It never evicts by itself: eviction is decided here, because some
    adapters must stay.
    """

    def __init__(self, capacity: int, staging_at_once: int) -> None:
        self.capacity, self.staging_at_once = capacity, staging_at_once
        self._staged = LRUCache[str, None](capacity)
        self._staging: set[str] = set()

    def __len__(self) -> int:
        return len(self._staged)

    def __contains__(self, digest: object) -> bool:
        """Whether the adapter is staged."""
        return digest in self._staged

    def staging(self, digest: str) -> bool:
        return digest in self._staging

    def finish(self, digest: str) -> None:
        """Note a successful staging. Ignores one that was not started."""
        if digest in self._staging:
            self._staging.remove(digest)
            self._staged[digest] = None

    def remove(self, digest: str) -> None:
        self._staging.discard(digest)
        self._staged.pop(digest, None)

    def used(self, digest: str) -> None:
        self._staged[digest]  # a lookup makes it the most recently used

    def clear(self) -> None:
        self._staged.clear()
        self._staging.clear()

    def begin(
        self, needed: dict[str, Rank], pinned: Collection[str], in_place: Collection[str]
    ) -> tuple[list[str], list[str]]:
        """Return the adapters to stage now, and those to drop for them.

        Args:
            needed: digest to the rank of its first blocked request, in order of rank.
            pinned: staged as well if there is room or an idle adapter to evict.
            in_place: digests whose host copy must stay.
        """
        stage: list[str] = []
        drop: list[str] = []
        for digest in [*needed, *(d for d in pinned if d not in needed)]:
            if digest in self._staged or digest in self._staging:
                continue
            if len(self._staging) >= self.staging_at_once:
                break
            if len(self._staged) + len(self._staging) >= self.capacity:
                victim = self._victim(needed, pinned, in_place, needed.get(digest))
                if victim is None:
                    break
                del self._staged[victim]
                drop.append(victim)
            self._staging.add(digest)
            stage.append(digest)
        return stage, drop

    def _victim(
        self, needed: dict[str, Rank], pinned: Collection[str], in_place: Collection[str], rank: Rank | None
    ) -> str | None:
        """Return the adapter to evict. For a pinned one that no request needs (`rank` None), only idle ones leave."""
        movable = [digest for digest in self._by_use() if digest not in in_place]
        idle = next((d for d in movable if d not in needed and d not in pinned), None)
        if idle is not None or rank is None:
            return idle
        pinned_one = next((d for d in movable if d not in needed), None)
        if pinned_one is not None:
            return pinned_one
        later = [d for d in movable if needed[d] > rank]
        return max(later, key=lambda d: needed[d], default=None)

    def _by_use(self) -> list[str]:
        """Return the staged adapters, least recently used first."""
        order = [self._staged.popitem() for _ in range(len(self._staged))]
        self._staged.update(order)
        return [digest for digest, _ in order]


@dataclass(slots=True)
class _Place:
    leases: int
    last_use: float
    victim: str | None
    """The adapter whose place it takes."""
    settled: bool = False
    """Whether its move has ended. Until then requests may run behind it, and no other adapter may take the place."""


class DeviceTier:
    """The device places, which rules 5 to 7 of `runtime.scheduling.placement` assign.

    | a place      | `admit`          | `arrived` | `failed`                  | the last lease ends |
    |--------------|------------------|-----------|---------------------------|---------------------|
    | in transit   | open, unsettled  | settled   | free                      | -                   |
    | unsettled    | -                | settled   | free; with leases: failed | -                   |
    | settled      | -                | -         | -                         | -                   |
    | failed       | -                | -         | -                         | free                |
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self.closing: dict[str, ServiceClass] = {}
        """Adapters whose places take no new requests, with the class of the request that closed them."""
        self._placed: dict[str, _Place] = {}
        self._placing: dict[str, str | None] = {}  # digest -> the one whose place it takes
        self._failed: dict[str, int] = {}  # digest -> leases

    def __contains__(self, digest: object) -> bool:
        """Whether it is in a place, or far enough in transit that requests may start."""
        return digest in self._placed

    def __iter__(self) -> Iterator[str]:
        """Iterate over the adapters whose placement has ended."""
        return (digest for digest, place in self._placed.items() if place.settled)

    def settled(self, digest: str) -> bool:
        """Whether its placement has ended."""
        place = self._placed.get(digest)
        return place is not None and place.settled

    def open(self) -> list[str]:
        """Return the adapters in places that take new requests."""
        return [digest for digest in self._placed if digest not in self.closing]

    @property
    def free(self) -> int:
        """Places without an adapter in them or in transit to them."""
        return self.places - len(self._placed) - len(self._placing) - len(self._failed)

    def touched(self) -> set[str]:
        """Return the adapters whose host copy the engine may still read: in a place or moving."""
        incoming = self.incoming()
        leaving = (digest for digest in incoming.values() if digest is not None)
        return {*self._placed, *incoming, *leaving, *self._failed}

    def incoming(self) -> dict[str, str | None]:
        """Return the adapters on their way into a place, with those whose places they take."""
        unsettled = {digest: place.victim for digest, place in self._placed.items() if not place.settled}
        return self._placing | unsettled

    def moving(self, digest: str) -> bool:
        """Whether it is on its way into a place or out of one."""
        incoming = self.incoming()
        return digest in incoming or digest in incoming.values()

    def move(self, digest: str, victim: str | None) -> None:
        """Note that `digest` moves into a free place, or into that of `victim`."""
        if victim is not None:
            del self._placed[victim]
        self._placing[digest] = victim

    def admit(self, digest: str, now: float) -> bool:
        """Let requests start behind a move in progress. Returns False if none was started."""
        if digest not in self._placing:
            return False
        self._placed[digest] = _Place(0, now, self._placing.pop(digest))
        return True

    def arrived(self, digest: str, now: float) -> bool:
        """Note the success of a move. Returns False if none was started."""
        self.admit(digest, now)
        place = self._placed.get(digest)
        if place is None or place.settled:
            return False
        place.settled = True
        return True

    def failed(self, digest: str) -> bool:
        """Note the failure of a move, which removed the victim. Returns False if requests still hold the place."""
        self._placing.pop(digest, None)
        place = self._placed.get(digest)
        if place is None or place.settled:
            return True
        del self._placed[digest]
        if place.leases:
            self._failed[digest] = place.leases
        return not place.leases

    def remove(self, digest: str) -> None:
        self._placed.pop(digest, None)

    def clear(self) -> None:
        self._placed.clear()
        self._placing.clear()
        self._failed.clear()

    def lease(self, digest: str) -> None:
        self._placed[digest].leases += 1

    def release(self, digest: str) -> bool:
        """Note the end of a request. Returns False if it was the last one to hold a failed place."""
        if digest not in self._failed:
            self._placed[digest].leases -= 1
            return True
        self._failed[digest] -= 1
        if self._failed[digest]:
            return True
        del self._failed[digest]
        return False

    def leases(self, digest: str) -> int:
        """Return the number of running requests with it; 0 if it is in no place."""
        place = self._placed.get(digest)
        return place.leases if place is not None else self._failed.get(digest, 0)

    def leased(self) -> set[str]:
        """Return the digests of running requests."""
        return {digest for digest, place in self._placed.items() if place.leases}.union(self._failed)

    def used(self, digest: str, now: float) -> None:
        if digest in self._placed:
            self._placed[digest].last_use = now

    def last_use(self, digest: str) -> float:
        return self._placed[digest].last_use


class Pins:
    """The pinned adapters, and which of them are placed even if no request needs them."""

    def __init__(self) -> None:
        self._needed: dict[str, bool] = {}  # False if it failed, so that the pin alone no longer brings it in
        self._most = sys.maxsize

    def __bool__(self) -> bool:
        return bool(self._needed)

    def __contains__(self, digest: object) -> bool:
        if len(self._needed) <= self._most:
            return digest in self._needed
        return digest in list(islice(self._needed, self._most))

    def fit(self, places: int) -> None:
        """Set the number of places.

        If there are more pins than fit, only the first ones apply until there is room again.
        """
        self._most = max(0, places - 1)

    def add(self, digest: str, places: int) -> None:
        """Pin an adapter of an engine with `places` places.

        Raises Conflict if no place would stay unpinned.
        """
        if digest not in self._needed and len(self._needed) + 1 >= places:
            raise Conflict(
                f"{len(self._needed)} of {places} adapter places are pinned, and one must stay unpinned for others. "
                "Unpin an adapter, or raise memory.adapters.device in the recipe.",
                code="no_place_to_pin",
            )
        self._needed[digest] = True

    def remove(self, digest: str) -> None:
        self._needed.pop(digest, None)

    def failed(self, digest: str) -> None:
        if digest in self._needed:
            self._needed[digest] = False

    def renew(self, digests: Iterable[str] | None = None) -> None:
        """Allow retrying those that failed; None for all."""
        for digest in list(self._needed) if digests is None else digests:
            if digest in self._needed:
                self._needed[digest] = True

    def needed(self) -> list[str]:
        """Return the pinned adapters to bring in if no request needs the place, in order of pinning."""
        return [digest for digest, needed in islice(self._needed.items(), self._most) if needed]


Move = tuple[str, str | None]
"""An adapter, and the one whose place it takes; None for a free place."""


class Moves:
    """Chooses moves and notes them in the device tier. A move counts as started when it is returned."""

    def __init__(self, device: DeviceTier, host: HostTier, waiting: WaitingRequests, pins: Pins) -> None:
        self._device, self._host, self._waiting, self._pins = device, host, waiting, pins

    def close_places(self, overdue: list[LaneHead], heads: Mapping[str, LaneHead]) -> list[Move]:
        """Rule 6. Take idle places at once; close leased ones until their leases end."""
        moves: list[Move] = []
        closing: dict[str, ServiceClass] = {}
        for head in overdue:
            digest = str(head.request.digest)
            if not self._can_be_placed(digest):
                continue
            if self._device.free:
                moves.append(self._begin(digest, None))
                continue
            victims = [v for v in self._device if v not in closing and self._may_lose(v, head.rank, heads)]
            if not victims:
                break  # requests of later ranks may take even fewer places
            victim = min(victims, key=self._cost_of_taking)
            if self._device.leases(victim):
                closing[victim] = head.request.claim.service_class
            else:
                moves.append(self._begin(digest, victim))
        self._device.closing = closing
        return moves

    def fill_places(self, blocked: list[LaneHead]) -> list[Move]:
        """Rules 5 and 7."""
        wanting = [str(head.request.digest) for head in blocked] + self._pins.needed()
        wanting = [digest for digest in dict.fromkeys(wanting) if self._can_be_placed(digest)]
        moves: list[Move] = []
        idle = [v for v in self._device if not (self._needed(v) or v in self._pins)]
        idle.sort(key=self._device.last_use, reverse=True)
        for digest in wanting:
            if self._device.free:
                moves.append(self._begin(digest, None))
            elif idle:
                moves.append(self._begin(digest, idle.pop()))
            else:
                break
        return moves

    def _may_lose(self, digest: str, rank: Rank, heads: Mapping[str, LaneHead]) -> bool:
        head = heads.get(digest)
        return digest not in self._pins and (head is None or head.rank > rank)

    def _cost_of_taking(self, digest: str) -> tuple[bool, bool, bool, int, float]:
        """Sort key: idle first, then closing, not needed, few leases, least recently used."""
        leases, needed = self._device.leases(digest), self._waiting.count(digest) > 0
        return leases > 0, digest not in self._device.closing, needed, leases, self._device.last_use(digest)

    def _can_be_placed(self, digest: str) -> bool:
        """Whether it is staged, in no place, and not moving."""
        return digest in self._host and digest not in self._device.touched()

    def _needed(self, digest: str) -> bool:
        return self._waiting.count(digest) > 0 or self._device.leases(digest) > 0

    def _begin(self, digest: str, victim: str | None) -> Move:
        self._device.move(digest, victim)
        return digest, victim
