"""Track adapters in host memory and device places, with pins and moves."""

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
    """Rules 3 and 4 of `runtime.scheduling.placement`.

    The cache only orders adapters by last use. Eviction is decided here, since some may not leave, so the cache never
    evicts by itself.
    """

    def __init__(self, capacity: int, staging_at_once: int) -> None:
        self.capacity, self.staging_at_once = capacity, staging_at_once
        self._staged = LRUCache[str, None](capacity)
        self._staging: set[str] = set()

    def __len__(self) -> int:
        return len(self._staged)

    def __contains__(self, digest: object) -> bool:
        """Staged already."""
        return digest in self._staged

    def staging(self, digest: str) -> bool:
        return digest in self._staging

    def finish(self, digest: str) -> bool:
        """A staging ended well. False: none was begun."""
        if digest not in self._staging:
            return False
        self._staging.remove(digest)
        self._staged[digest] = None
        return True

    def remove(self, digest: str) -> None:
        self._staging.discard(digest)
        self._staged.pop(digest, None)

    def used(self, digest: str) -> None:
        self._staged[digest]  # looked up, and so the one used last

    def clear(self) -> None:
        self._staged.clear()
        self._staging.clear()

    def begin(
        self, needed: dict[str, Rank], pinned: Collection[str], in_place: Collection[str]
    ) -> tuple[list[str], list[str]]:
        """The adapters to stage now, and those to drop for them.

        Args:
            wanted: digest to the rank of its first blocked request, in order of rank.
            pinned: staged as well when there is room or something idle.
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
        """The adapter to evict. For a pinned one that no request wants (`rank` None) only idle ones leave."""
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
        """The staged adapters, the least recently used first."""
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
    """Whether its move has ended. Before, requests may run behind it, and nobody may take the place."""


class DeviceTier:
    """The places that rules 5 to 7 of `runtime.scheduling.placement` give and take.

    | a place      | `admit`          | `arrived` | `failed`                  | the last lease ends |
    |--------------|------------------|-----------|---------------------------|---------------------|
    | on the way   | open, unsettled  | settled   | free                      | -                   |
    | unsettled    | -                | settled   | free; with leases: failed | -                   |
    | settled      | -                | -         | -                         | -                   |
    | failed       | -                | -         | -                         | free                |
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self.closing: dict[str, ServiceClass] = {}
        """Places that take no new request, with the class of the one that they close for."""
        self._placed: dict[str, _Place] = {}
        self._placing: dict[str, str | None] = {}  # digest -> the one whose place it takes
        self._failed: dict[str, int] = {}  # digest -> leases

    def __contains__(self, digest: object) -> bool:
        """Whether it is in a place, or so far on its way that requests may start."""
        return digest in self._placed

    def __iter__(self) -> Iterator[str]:
        """Adapters that are in their places for certain."""
        return (digest for digest, place in self._placed.items() if place.settled)

    def settled(self, digest: str) -> bool:
        """Whether it is certainly in its place."""
        place = self._placed.get(digest)
        return place is not None and place.settled

    def open(self) -> list[str]:
        """Adapters in places that take new requests."""
        return [digest for digest in self._placed if digest not in self.closing]

    @property
    def free(self) -> int:
        """Places without an adapter in them or on the way."""
        return self.places - len(self._placed) - len(self._placing) - len(self._failed)

    def touched(self) -> set[str]:
        """Whether the engine may still touch its host copy: it is in a place or moves."""
        incoming = self.incoming()
        leaving = (digest for digest in incoming.values() if digest is not None)
        return {*self._placed, *incoming, *leaving, *self._failed}

    def incoming(self) -> dict[str, str | None]:
        """Adapters on the way into a place, with those whose places they take."""
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
        """Let requests start behind a move that goes on. False: none was begun."""
        if digest not in self._placing:
            return False
        self._placed[digest] = _Place(0, now, self._placing.pop(digest))
        return True

    def arrived(self, digest: str, now: float) -> bool:
        """A move ended well. False: none was begun."""
        self.admit(digest, now)
        place = self._placed.get(digest)
        if place is None or place.settled:
            return False
        place.settled = True
        return True

    def failed(self, digest: str) -> bool:
        """A move ended badly: the victim is out, and the place is free unless requests still hold it (False)."""
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
        self.closing.clear()

    def lease(self, digest: str) -> None:
        self._placed[digest].leases += 1

    def release(self, digest: str) -> bool:
        """A request with it has ended. False: the last one that held a failed place."""
        if digest not in self._failed:
            self._placed[digest].leases -= 1
            return True
        self._failed[digest] -= 1
        if self._failed[digest]:
            return True
        del self._failed[digest]
        return False

    def leases(self, digest: str) -> int:
        """Running requests with it; 0 when it is in no place."""
        place = self._placed.get(digest)
        return place.leases if place is not None else self._failed.get(digest, 0)

    def used(self, digest: str, now: float) -> None:
        if digest in self._placed:
            self._placed[digest].last_use = now

    def last_use(self, digest: str) -> float:
        return self._placed[digest].last_use


class Pins:
    """The pinned adapters, and which of them are placed without a request for them."""

    def __init__(self) -> None:
        self._needed: dict[str, bool] = {}  # False: it failed, and the pin alone brings it in no more
        self._most = sys.maxsize

    def __bool__(self) -> bool:
        return bool(self._needed)

    def __contains__(self, digest: object) -> bool:
        if len(self._needed) <= self._most:
            return digest in self._needed
        return digest in list(islice(self._needed, self._most))

    def fit(self, places: int) -> None:
        """Set the number of places.

        Of more pins than fit, the first ones hold until there is room again.
        """
        self._most = max(0, places - 1)

    def add(self, digest: str, places: int) -> None:
        """Pin an adapter of an engine with `places` places.

        Raises Conflict when none would stay open.
        """
        if digest not in self._needed and len(self._needed) + 1 >= places:
            raise Conflict(
                f"{len(self._needed)} of {places} adapter places are pinned, and one must stay open for others. "
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
        """Try those that failed again; None: all."""
        for digest in list(self._needed) if digests is None else digests:
            if digest in self._needed:
                self._needed[digest] = True

    def needed(self) -> list[str]:
        """Adapters to bring in where no request needs the place, the most needed first."""
        return [digest for digest, needed in islice(self._needed.items(), self._most) if needed]


Move = tuple[str, str | None]
"""An adapter, and the one whose place it takes; None: a free place."""


class Moves:
    """Chooses, and tells the device tier; a move counts as begun when it is returned."""

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
                break  # one of a later rank may take even fewer places
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
        if not wanting:
            return []
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
        """Idle first, then closing, unwanted, few leases, long unused."""
        leases, needed = self._device.leases(digest), self._waiting.count(digest) > 0
        return leases > 0, digest not in self._device.closing, needed, leases, self._device.last_use(digest)

    def _can_be_placed(self, digest: str) -> bool:
        """Staged, in no place, and not on its way into one or out of one."""
        return digest in self._host and digest not in self._device.touched()

    def _needed(self, digest: str) -> bool:
        return self._waiting.count(digest) > 0 or self._device.leases(digest) > 0

    def _begin(self, digest: str, victim: str | None) -> Move:
        self._device.move(digest, victim)
        return digest, victim
