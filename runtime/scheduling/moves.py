"""Which adapter moves into which place, and which one leaves for it: rules 5 to 7 of `runtime.scheduling.placement`."""

from collections.abc import Mapping

from runtime.scheduling.device_tier import DeviceTier
from runtime.scheduling.host_tier import HostTier
from runtime.scheduling.pins import Pins
from runtime.scheduling.rank import Rank
from runtime.scheduling.waiting import LaneHead, WaitingRequests

Move = tuple[str, str | None]
"""An adapter, and the one whose place it takes; None: a free place."""


class Moves:
    """Chooses, and tells the device tier; a move counts as begun when it is returned."""

    def __init__(self, device: DeviceTier, host: HostTier, waiting: WaitingRequests, pins: Pins) -> None:
        self._device, self._host, self._waiting, self._pins = device, host, waiting, pins

    def close_places(self, overdue: list[LaneHead], heads: Mapping[str, LaneHead]) -> list[Move]:
        """Rule 6. Idle places are taken at once; leased ones are closed until their leases end."""
        moves: list[Move] = []
        closing: set[str] = set()
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
                closing.add(victim)
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
        """Idle before leased, closing already before open, unwanted before wanted, few leases, long unused."""
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
