"""One row of the model table: a recipe and the state of its model."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from models.messages import LoadResult, MemoryFootprint, Progress
from registry.errors import RoundhouseError
from registry.files.context import context_of
from registry.recipes.definition import Recipe, Tier
from runtime.residency.policy import MIN_SAVING, Resident, replica_id
from runtime.residency.states import HOLDS_MEMORY, ModelState, check_transition
from runtime.scheduling.queue import ModelQueue
from runtime.slots.link import SlotLink

CRASH_LOOP = 3
"""Deaths within ten minutes after which a model is only brought back for a request."""
BACKOFF_SECONDS = (1.0, 2.0, 5.0, 15.0, 60.0)
WAKE_SECONDS, WAKE_BYTES = 0.3, 30 * 2**30
"""Estimate of a wake until one was measured: fixed seconds, and bytes per second (PCIe; 28 GB took 0.7 s)."""
SLEEP_BYTES = 1.7 * 2**30
"""Bytes per second of a process's first sleep, which pins host memory for its copy."""

_OF_FILES = (
    "path", "revision", "broken", "needed", "needed_detail", "load_seconds", "host_needed", "host_adapters",
    "after_load", "margin", "slept", "measured_first_sleep", "measured_sleep", "measured_wake",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """Why and when a load failed or an engine died, and when the next attempt may start."""

    cause: RoundhouseError
    at: float
    until: float


@dataclass(slots=True)
class ModelEntry:
    """The state of one replica. Mutable; written only by the residency manager, its parts and `measurements`."""

    recipe: Recipe
    path: Path | None
    revision: str
    needed: int
    """Bytes that a load claims: measured at an earlier load, or estimated."""
    needed_detail: str
    load_seconds: float
    """Expected seconds of a load."""
    queue: ModelQueue
    number: int = 1
    """Number among the model's replicas, from 1."""
    replicas: "list[ModelEntry]" = field(default_factory=list, repr=False)
    """All replicas of the model by number, including this one; they share the list."""
    is_leaving: bool = False
    """Whether it is being removed for good."""
    clock: Callable[[], float] = time.monotonic
    state: ModelState = ModelState.ABSENT
    link: SlotLink | None = None
    loaded: LoadResult | None = None
    loaded_revision: str = ""
    """Revision of the weights in its engine. `revision` is the next engine's once a changed recipe applies."""
    devices: tuple[str, ...] = ()
    """The devices that hold it, or last held it."""
    bytes: int = 0
    """Bytes on all of its devices together."""
    claim: int = 0
    """Device bytes that its wake will need, while the wake waits for others to leave."""
    host_bytes: int = 0
    """Bytes in host memory in addition to the device; 0 on a CPU, where the device is host memory."""
    host_needed: int = 0
    """Bytes of host memory that a load claims."""
    host_adapters: int = 0
    """The part of `host_needed` for staged adapters. A sleeping model has none."""
    after_load: int = 0
    """Bytes measured after a load; 0 if no load was measured. See `registry.records`."""
    margin: int = 0
    """Bytes beyond `after_load` measured while it served. On a GPU, the estimate for one engine step."""
    slept: MemoryFootprint | None = None
    """Memory held during its last sleep, possibly before a restart of the server."""
    falling_asleep: bool = False
    """Whether it is DRAINING in order to sleep."""
    room_at: float = 0.0
    """Expected time at which the models that leave for it are gone."""
    sleepless: bool = False
    """Whether sleep is disabled until the server restarts, because a wake or two sleeps in a row failed."""
    failed_sleeps: int = 0
    """Failed sleeps in a row. After one, sleep is tried again after the next load."""
    asleep_since: float = 0.0
    """Time at which it fell asleep, or began to."""
    measured_wake: float | None = None
    """Seconds of its last wake; after a restart, the mean of earlier wakes."""
    measured_first_sleep: float | None = None
    """Seconds of a process's first sleep, which pins host memory."""
    measured_sleep: float | None = None
    """Seconds of later sleeps."""
    naps: int = 0
    """Number of sleeps in its current process."""
    wakes: int = 0
    pinned: bool = False
    requested_since: float | None = None
    last_used: float = 0.0
    loaded_at: float = 0.0
    created: float = field(default_factory=time.time)
    progress: Progress | None = None
    fetched: tuple[int, int | None] | None = None
    """While its files are fetched, the bytes received and the total if known."""
    failures: list[LoadFailure] = field(default_factory=list)
    loads: int = 0
    deaths: int = 0
    broken: RoundhouseError | None = None
    """The error of every request, if the model's files cannot be found or read at all."""

    def __post_init__(self) -> None:
        self.replicas.append(self)

    @property
    def id(self) -> str:
        """The model's id for its first replica; for others the id followed by the number."""
        return replica_id(self.recipe.id, self.number)

    @property
    def model(self) -> str:
        return self.recipe.id

    @property
    def is_extra(self) -> bool:
        """Whether it is loaded only while the other replicas cannot keep up."""
        return self.number > self.recipe.replicas.least

    @property
    def lead(self) -> "ModelEntry":
        """The replica that represents the model: the first ready one, or the first of all."""
        if len(self.replicas) == 1:
            return self
        return next((replica for replica in self.replicas if replica.state is ModelState.READY), self.replicas[0])

    @property
    def context_length(self) -> int | None:
        """The context length that the engine reports or, before it is loaded, that of the recipe's files."""
        return (self.loaded.context_length if self.loaded else 0) or context_of(self.recipe, self.path)

    @property
    def has_others(self) -> bool:
        """Whether another replica serves the model or is loading."""
        return len(self.replicas) > 1 and any(
            replica is not self and replica.state in (ModelState.READY, ModelState.LOADING) for replica in self.replicas
        )

    def take_files(self, other: "ModelEntry") -> None:
        """Copy the facts about the model's files and loads from another replica."""
        for name in _OF_FILES:
            setattr(self, name, getattr(other, name))

    def on_each(self, count: int) -> int:
        """Return the share of `count` bytes on each of the devices that its recipe needs; all hold the same amount."""
        return -(-count // self.recipe.parallel.devices)

    def held_on_each(self, count: int) -> int:
        """Return the same for the devices that hold it, which differ while it leaves them for a changed recipe."""
        return -(-count // max(1, len(self.devices)))

    @property
    def tier(self) -> Tier:
        if self.state in (ModelState.READY, ModelState.DRAINING):
            return Tier.DEVICE
        return Tier.HOST if self.state is ModelState.ASLEEP else Tier.DISK

    @property
    def is_ready(self) -> bool:
        return self.state is ModelState.READY

    @property
    def asleep(self) -> MemoryFootprint | None:
        """Memory it would hold asleep; None if it cannot sleep, if its recipe forbids it, or if it gains little.

        It gains little if too few bytes are freed, or if nothing is kept in host memory, because then a wake reads the
        weights from disk just as a load does.
        """
        footprint = self.slept or (self.loaded.asleep if self.loaded is not None else None)
        mode = self.recipe.residency.sleep
        if footprint is None or self.loaded is None or self.loaded.asleep is None or self.sleepless or mode == "never":
            return None
        is_worthwhile = bool(footprint.host_bytes) and footprint.device_bytes * MIN_SAVING <= self.needed
        return footprint if mode == "always" or is_worthwhile else None

    @property
    def seen(self) -> int:
        """Measured bytes of its process. The rest of `bytes` is reserved for engine steps."""
        return self.bytes if self.loaded is None else min(self.bytes, self.loaded.resident_bytes)

    @property
    def wake_seconds(self) -> float:
        """Expected seconds of a wake."""
        if self.measured_wake is not None:
            return self.measured_wake
        return WAKE_SECONDS + self.needed / WAKE_BYTES

    @property
    def sleep_seconds(self) -> float:
        """Expected seconds to fall asleep once its requests have ended; 0 if it cannot sleep."""
        if self.naps:  # the same copy as a wake, in the other direction
            expected = self.wake_seconds if self.measured_sleep is None else self.measured_sleep
        elif self.measured_first_sleep is not None:
            expected = self.measured_first_sleep
        else:
            expected = WAKE_SECONDS + self.asleep.host_bytes / SLEEP_BYTES if self.asleep is not None else 0.0
        return max(0.0, expected - (self.clock() - self.asleep_since)) if self.falling_asleep else expected

    @property
    def sleeps(self) -> bool:
        """Whether it is asleep or falling asleep, so that a wake brings it back."""
        return self.state is ModelState.ASLEEP or self.falling_asleep

    @property
    def return_seconds(self) -> float:
        """Expected seconds of a wake if it sleeps, otherwise of a load."""
        if not self.sleeps:
            return self.load_seconds
        return self.wake_seconds + (self.sleep_seconds if self.falling_asleep else 0.0)

    @property
    def remaining_load_seconds(self) -> float:
        """Expected seconds until it is ready.

        Assumes the load or wake in progress or, if there is none, one that starts now without evictions.
        """
        if self.state is not ModelState.LOADING or self.progress is None:
            return self.return_seconds
        if self.progress.phase == "waking":
            return self.wake_seconds
        if self.progress.phase in ("fetching", "converting"):  # their duration is unknown
            return self.load_seconds
        waits = max(0.0, self.room_at - self.clock()) if self.progress.phase in ("queued", "evicting") else 0.0
        return waits + (self.wake_seconds if self.claim else self.load_seconds * (1.0 - self.progress.fraction))

    @property
    def leases(self) -> int:
        """Number of requests that run on it, or wait in its queue while it is ready."""
        return self.queue.running + (self.queue.waiting if self.is_ready else 0)

    @property
    def failure(self) -> LoadFailure | None:
        return self.failures[-1] if self.failures else None

    @property
    def host_claim(self) -> int:
        """Bytes of host memory that it holds, or will hold once awake."""
        return self.host_bytes + (self.host_adapters if self.claim else 0)

    def to(self, state: ModelState) -> None:
        check_transition(self.state, state)
        self.state = state

    def fail(self, cause: RoundhouseError) -> LoadFailure:
        """Record a failure. The back-off grows with the number of failures in the last ten minutes."""
        now = self.clock()
        self.failures = [f for f in self.failures if now - f.at < 600]
        wait = BACKOFF_SECONDS[min(len(self.failures), len(BACKOFF_SECONDS) - 1)]
        failure = LoadFailure(cause, now, now + wait)
        self.failures.append(failure)
        return failure

    def resident(self) -> Resident | None:
        """Return the policy's view of it; None if it holds no memory."""
        if self.state not in HOLDS_MEMORY:
            return None
        asleep = self.asleep
        return Resident(
            id=self.id,
            state=self.state,
            bytes=self.held_on_each(max(self.bytes, self.claim)),
            leases=self.leases,
            last_used=self.clock() if self.requested_since is not None else self.last_used,
            loaded_at=self.loaded_at,
            min_resident=self.recipe.residency.min_resident,
            drain_deadline=self.recipe.residency.drain_deadline,
            load_seconds=self.load_seconds,
            pinned=self.pinned,
            host=self.host_claim,
            asleep_bytes=None if asleep is None else self.held_on_each(asleep.device_bytes),
            asleep_host=0 if asleep is None else asleep.host_bytes,
            wake_seconds=self.wake_seconds,
            sleep_seconds=self.sleep_seconds,
            falling_asleep=self.falling_asleep,
            devices=self.devices,
            is_extra=self.is_extra,
        )
