"""Which models leave the device, and how: the choice behind `policy.plan`. Pure.

Each model that may leave can be put to sleep (if its engine can: its weights go into host memory, its slot stays) or
ended. What is asked for are bytes on the device, bytes in host memory and, for a load, a slot. The order of choice:

 a. From the front of the pool, the gentlest action each: a model that is awake and can sleep sleeps, any other one,
    sleeping ones included, is ended; until there is enough.
 b. Then, from the front again, those that were to sleep are ended instead.
 c. Whatever is not needed after all is taken back, from the back: an end becomes a sleep, a sleep or an end nothing.

Ending all of the pool frees the most of everything, so if any choice is enough, one is found.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from runtime.residency.states import ModelState

Action = Literal["sleep", "evict"]
NO_LIMIT = 1 << 62
MIN_SAVING = 2
"""A model sleeps only if it holds at most one part in so many of its device bytes then (unless told `always`)."""


@dataclass(frozen=True, slots=True)
class Resident:
    """One model that holds memory. Times are seconds on one monotonic clock."""

    id: str
    state: ModelState
    bytes: int
    leases: int
    last_used: float
    loaded_at: float
    min_resident: float
    drain_deadline: float
    load_seconds: float
    pinned: bool = False
    host: int = 0
    """Bytes in host memory, beside those on the device; 0 on a CPU."""
    asleep_bytes: int | None = None
    """Device bytes that it would hold asleep; None: it cannot sleep, or shall not."""
    asleep_host: int = 0
    wake_seconds: float = 0.0
    sleep_seconds: float = 0.0
    """Expected seconds to fall asleep; of one that does so already those that are left."""
    falling_asleep: bool = False
    """It drains in order to sleep."""
    device: str = ""
    """Where its bytes are."""

    def seen_from(self, device: str) -> "Resident":
        """The same for who wants to come to `device`: elsewhere it holds no bytes, but host memory and a slot."""
        if self.device == device:
            return self
        return replace(self, bytes=0, asleep_bytes=None if self.asleep_bytes is None else 0)

    @property
    def is_asleep(self) -> bool:
        return self.state is ModelState.ASLEEP

    @property
    def gentlest(self) -> Action:
        return "sleep" if self.asleep_bytes is not None and not self.is_asleep else "evict"

    @property
    def cost(self) -> float:
        """Seconds to bring it back after its gentlest way to leave."""
        return self.wake_seconds if self.gentlest == "sleep" else self.load_seconds

    def fallen_asleep(self) -> "Resident":
        """The same once it has."""
        device, host, _ = self._asleep()
        return replace(self, state=ModelState.ASLEEP, bytes=device, host=host, falling_asleep=False)

    def settled(self) -> tuple[int, int, int]:
        """Device bytes, host bytes and slots that it holds once what it is doing now has ended."""
        if self.state is ModelState.DRAINING and self.falling_asleep:
            return self._asleep()
        if self.state in (ModelState.DRAINING, ModelState.UNLOADING):
            return 0, 0, 0
        return self.bytes, self.host, 1

    def freed(self, action: Action) -> tuple[int, int, int]:
        """What an action gives back: device bytes, host bytes (negative: takes), slots."""
        bytes_now, host_now, slots_now = self.settled()
        left = self._asleep() if action == "sleep" else (0, 0, 0)
        return bytes_now - left[0], host_now - left[1], slots_now - left[2]

    def _asleep(self) -> tuple[int, int, int]:
        return self.asleep_bytes or 0, self.asleep_host, 1


@dataclass(frozen=True, slots=True)
class Shortage:
    """What is to be freed; zero or less: nothing."""

    bytes: int
    host: int = 0
    slots: int = 0

    def met_by(self, chosen: Mapping[str, tuple[Resident, Action]]) -> bool:
        freed = [resident.freed(action) for resident, action in chosen.values()]
        return (
            sum(f[0] for f in freed) >= self.bytes
            and sum(f[1] for f in freed) >= self.host
            and sum(f[2] for f in freed) >= self.slots
        )


def choose(pool: Sequence[Resident], shortage: Shortage) -> tuple[tuple[Resident, Action], ...] | None:
    """Who leaves and how, in the order of `pool`; None: all of them together are not enough."""
    chosen: dict[str, tuple[Resident, Action]] = {}
    for resident in pool:  # a
        if shortage.met_by(chosen):
            break
        chosen[resident.id] = (resident, resident.gentlest)
    for resident, action in list(chosen.values()):  # b
        if shortage.met_by(chosen):
            break
        if action == "sleep":
            chosen[resident.id] = (resident, "evict")
    if not shortage.met_by(chosen):
        return None
    while _take_one_back(chosen, shortage):  # c
        pass
    return tuple(chosen.values())


def _take_one_back(chosen: dict[str, tuple[Resident, Action]], shortage: Shortage) -> bool:
    """Make one action gentler if it is still enough; False when each is needed as it is."""
    for name, (resident, action) in reversed(list(chosen.items())):
        without = {other: pair for other, pair in chosen.items() if other != name}
        if shortage.met_by(without):
            del chosen[name]
            return True
        if action == "evict" and resident.gentlest == "sleep":
            gentler = {**chosen, name: (resident, "sleep")}
            if shortage.met_by(gentler):
                chosen[name] = (resident, "sleep")
                return True
    return False
