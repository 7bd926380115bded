"""Choose which models leave to make room for another. Pure.

No I/O, no clock, no log.

The same function serves traffic and `POST /v1/models/{id}/plan`, so that explanations match what happens.

Decision tree, with the same numbers in the code:
 1. If it is already on the device, do nothing.
 2. If it needs more than a budget (device, host) minus the pinned models, it can never start; explain the sum.
 3. If enough bytes are free, and a slot unless it sleeps in one, load or wake it. A slot that may be added counts as
    free here and below: nothing is evicted for it, and the load starts once it is there.
 4. Candidates are READY, not pinned and resident for at least their `min_resident`, or ASLEEP and not pinned. They are
    ordered least recently used first, where a model that takes s seconds to bring back counts as used COST_WEIGHT * s
    seconds later (so of two models idle for about as long, the one that is cheaper to bring back leaves first).
 5. Idle candidates leave first, as few as needed (`choose`). They sleep if they can and the host has room. For host
    memory or for a slot, sleeping ones are ended before any others.
 6. Busy ones leave only if the waiting model has waited longer than `patience`: admission to the victim closes, its
    running requests finish, nothing is dropped. Then it sleeps or ends as above.
 7. Otherwise wait. `retry_at` is the time when the situation can change by itself.

Each device has its own budget. The tree is evaluated for every device on which the model may be placed (a wake: on
which it sleeps). There a model on another device counts only with its host memory and its slot, so that none is evicted
for bytes on a device where it is not. The best plan wins: no victims, then no busy ones, then the fewest, then the most
free bytes. A model on several devices holds the same bytes on each. For it the tree is evaluated for each set of
adjacent devices (`budgets.groups`), and every device of the set must have room.

Bound: a model at the head of the line waits at most
    max(patience, the victims' min_resident) + the victims' drain_deadline + the victims' time to fall asleep or end
    + its own load time, or the time of its wake.
The line is served in order of the oldest waiting request, so k models ahead of it add at most k such terms. A failed
wake or sleep ends that process, and then its model's load time is added, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from registry.base.wording import size_words
from runtime.config.budgets import DeviceBudget, Group, groups
from runtime.residency.states import ModelState

Action = Literal["sleep", "evict"]
Verdict = Literal["resident", "load", "wake", "wait", "impossible"]
NO_LIMIT = 1 << 62
REPLICA_MARK = "#"
"""Separates a model's id from the number of a replica. No model's id contains it."""
MIN_SAVING = 2
"""A model sleeps only if this reduces its device bytes at least by this factor, unless its recipe says `always`."""


@dataclass(frozen=True, slots=True)
class Resident:
    """A model that holds memory. Times are seconds on one monotonic clock."""

    id: str
    state: ModelState
    bytes: int
    """Bytes on each of its devices."""
    leases: int
    last_used: float
    loaded_at: float
    min_resident: float
    drain_deadline: float
    load_seconds: float
    pinned: bool = False
    host: int = 0
    """Bytes in host memory in addition to the device; 0 on a CPU."""
    asleep_bytes: int | None = None
    """Bytes that it would hold asleep on each device; None if it cannot or must not sleep."""
    asleep_host: int = 0
    wake_seconds: float = 0.0
    sleep_seconds: float = 0.0
    """Expected seconds to fall asleep; if it is already falling asleep, the seconds left."""
    falling_asleep: bool = False
    """Whether it drains in order to sleep."""
    devices: tuple[str, ...] = ()
    """Devices that hold the bytes."""
    is_extra: bool = False
    """Whether it is a replica beyond the recipe's minimum, which leaves before all others."""

    def seen_from(self, group: Group) -> "Resident":
        """Return this resident from the view of these devices.

        If it is on none of them, it holds only host memory and a slot.
        """
        if any(budget.device in self.devices for budget in group):
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
        """Seconds to bring it back after its gentlest departure."""
        return self.wake_seconds if self.gentlest == "sleep" else self.load_seconds

    def fallen_asleep(self) -> "Resident":
        """Return the same resident once asleep."""
        device, host, _ = self._asleep()
        return replace(self, state=ModelState.ASLEEP, bytes=device, host=host, falling_asleep=False)

    def settled(self) -> tuple[int, int, int]:
        """Return its device bytes, host bytes and slots after its current transition."""
        if self.state is ModelState.DRAINING and self.falling_asleep:
            return self._asleep()
        if self.state in (ModelState.DRAINING, ModelState.UNLOADING):
            return 0, 0, 0
        return self.bytes, self.host, 1

    def freed(self, action: Action) -> tuple[int, int, int]:
        """Return the device bytes, host bytes (negative if it takes some) and slots that an action frees."""
        bytes_now, host_now, slots_now = self.settled()
        left = self._asleep() if action == "sleep" else (0, 0, 0)
        return bytes_now - left[0], host_now - left[1], slots_now - left[2]

    def _asleep(self) -> tuple[int, int, int]:
        return self.asleep_bytes or 0, self.asleep_host, 1


@dataclass(frozen=True, slots=True)
class Shortage:
    """The amounts to free; nothing for zero or less."""

    bytes: tuple[tuple[str, int], ...]
    """Missing bytes by device."""
    host: int = 0
    slots: int = 0

    def words(self, slots: int) -> str:
        """Describe the shortage, with the settings to raise. slots: total number of slots."""
        short = {
            "device memory (--device-memory)": max((short for _, short in self.bytes), default=0),
            "host memory (--host-memory)": self.host,
            f"a slot, since all {slots} are taken (--slots)": self.slots,
        }
        return " and ".join(what for what, amount in short.items() if amount > 0)

    def met_by(self, chosen: Mapping[str, tuple[Resident, Action]]) -> bool:
        freed = [(resident.devices, *resident.freed(action)) for resident, action in chosen.values()]
        return (
            all(sum(f[1] for f in freed if device in f[0]) >= short for device, short in self.bytes)
            and sum(f[2] for f in freed) >= self.host
            and sum(f[3] for f in freed) >= self.slots
        )


def choose(pool: Sequence[Resident], shortage: Shortage) -> tuple[tuple[Resident, Action], ...] | None:
    """Choose victims and actions in the order of `pool`; None if all together are not enough.

    (a) Add victims with their gentlest action until the shortage is met; (b) if it is not, evict instead of sleep;
    (c) undo whatever is not needed.
    """
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
    """Undo or soften one action if the rest still suffices. Returns False if none can be."""
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


COST_WEIGHT = 1.0
"""Seconds of recency per second of bringing a model back (step 4)."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The policy's input. `slots_free` counts unclaimed empty slots, `slots_addable` slots that may be added."""

    budgets: tuple[DeviceBudget, ...]
    residents: tuple[Resident, ...]
    slots_free: int
    now: float
    host_budget: int = NO_LIMIT
    """Bytes of host memory in addition to the device. A CPU has none."""
    slots_addable: int = 0


@dataclass(frozen=True, slots=True)
class Need:
    """The model to bring in. For a wake, `load_seconds` is the duration of the wake."""

    id: str
    bytes: int
    """Bytes on each of its devices."""
    load_seconds: float
    waiting_since: float
    patience: float = 1.0
    detail: str = ""
    host: int = 0
    """Bytes of host memory that it holds once loaded."""
    slot: bool = True
    """Whether it needs a slot of its own."""
    spread: int = 1
    """Number of devices that it is spread over."""
    devices: tuple[str, ...] | None = None
    """The devices it may use; None for any."""


@dataclass(frozen=True, slots=True)
class Victim:
    id: str
    bytes: int
    leases: int
    action: Literal["evict", "drain", "sleep"]
    """evict: end its process. drain: end it once its running requests have finished. sleep: move its weights to host
    memory once they have finished."""


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """The room on one device in a plan, in bytes."""

    device: str
    free: int
    budget: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The policy's decision. The `victims` leave before the load or wake starts."""

    model: str
    verdict: Verdict
    needed: int
    """Bytes on each of its devices. `free` and `budget` are those of the device with the least."""
    free: int
    budget: int
    victims: tuple[Victim, ...] = ()
    expected_seconds: float = 0.0
    retry_at: float | None = None
    why: str = ""
    host_needed: int = 0
    host_free: int = 0
    host_budget: int = NO_LIMIT
    room: tuple[DeviceRoom, ...] = ()
    """The room on each device chosen for it."""
    lacks: str = ""
    """The shortage, with the settings to raise."""
    adds_slot: bool = False
    """Whether a slot must be added first."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices chosen for the model."""
        return tuple(one.device for one in self.room)


def plan(snapshot: Snapshot, need: Need) -> Plan:
    """Decide for one model, by the tree above."""
    own = next((r for r in snapshot.residents if r.id == need.id), None)
    if own is not None and own.falling_asleep:  # it will be woken from there
        own = own.fallen_asleep()
        snapshot = replace(snapshot, residents=tuple(own if r.id == need.id else r for r in snapshot.residents))
    devices = own.devices if own is not None and own.devices else need.devices  # none while its files are fetched
    if devices is None:
        places = groups(snapshot.budgets, need.spread)
    else:
        present = tuple(budget for budget in snapshot.budgets if budget.device in devices)
        places = [present] if len(present) == len(devices) else []
    plans = [_plan_on(group, snapshot, need) for group in places]
    if not plans:
        return Plan(need.id, "impossible", need.bytes, 0, 0, why=_too_few(snapshot, need))
    best = min(plans, key=_rank)
    if best.verdict == "wait":
        times = [p.retry_at for p in plans if p.verdict == "wait" and p.retry_at is not None]
        best = replace(best, retry_at=min(times, default=None))
    return best


def _rank(plan: Plan) -> tuple[int, bool, int, int]:
    """Sort key: the best plan first; among impossible ones the one with the largest budget."""
    if plan.verdict == "impossible":
        return 2, False, 0, -plan.budget
    return int(plan.verdict == "wait"), any(v.leases for v in plan.victims), len(plan.victims), -plan.free


def _too_few(snapshot: Snapshot, need: Need) -> str:
    """Explain why no set of devices can hold the model."""
    if need.spread == 1:
        return "Its device is gone. See the server's log."
    names = ", ".join(budget.device for budget in snapshot.budgets) or "none"
    return (
        f"{need.id} is spread over {need.spread} adjacent devices (0-{need.spread - 1}, {need.spread}-"
        f"{2 * need.spread - 1}, ...), but the server has {names}. Add devices with --device, or lower the numbers "
        "under parallel in its recipe."
    )


def _plan_on(group: Group, snapshot: Snapshot, need: Need) -> Plan:
    """Decide for one device or one set of devices."""
    residents = [r.seen_from(group) for r in snapshot.residents]
    own = next((r for r in residents if r.id == need.id), None)
    others = [r for r in residents if r is not own or not r.is_asleep]  # a wake reuses its own bytes
    settled = [(r.devices, *r.settled()) for r in others]
    by_device = {b.device: b.bytes - sum(s[1] for s in settled if b.device in s[0]) for b in group}
    room = tuple(DeviceRoom(b.device, by_device[b.device], b.bytes) for b in group)
    free, budget = min(by_device.values()), min(b.bytes for b in group)
    host_free = snapshot.host_budget - sum(s[2] for s in settled)
    empty = snapshot.slots_free + sum(1 - s[3] for s in settled)
    slots = empty + snapshot.slots_addable

    def answer(verdict: Verdict, why: str, **more: object) -> Plan:
        return Plan(
            need.id, verdict, need.bytes, free, budget, why=why, host_needed=need.host, host_free=host_free,
            host_budget=snapshot.host_budget, room=room, **more,  # type: ignore[arg-type]
        )  # fmt: skip

    if own is not None and own.state in (ModelState.READY, ModelState.LOADING):  # 1
        return answer("resident", f"{need.id} is {own.state.value}")

    if why := _impossible(group, snapshot.host_budget, residents, need):  # 2
        return answer("impossible", why)

    wakes = own is not None and own.is_asleep
    verdict: Literal["load", "wake"] = "wake" if wakes else "load"
    short = tuple((device, need.bytes - available) for device, available in by_device.items())
    shortage = Shortage(short, need.host - host_free, 1 - slots if need.slot and not wakes else 0)
    crowded = any(need.bytes > b.bytes - sum(r.bytes for r in others if b.device in r.devices) for b in group)
    dozing = max((r.sleep_seconds for r in others if crowded and r.falling_asleep and r.bytes), default=0.0)
    needs_slot = need.slot and not wakes and empty < 1
    if shortage.met_by({}):  # 3
        why = "enough is free, and a slot is added" if needs_slot else "enough is free"
        return answer(verdict, why, expected_seconds=need.load_seconds + dozing, adds_slot=needs_slot)
    lacks = shortage.words(snapshot.slots_free + sum(r.settled()[2] for r in others))

    may_leave = [  # 4
        r
        for r in others
        if _model(r.id) != _model(need.id) and not r.pinned and r.state in (ModelState.READY, ModelState.ASLEEP)
    ]
    ripe = sorted((r for r in may_leave if _ripe_at(r) <= snapshot.now), key=_score)
    idle = [r for r in ripe if not r.leases]
    forced = snapshot.now - need.waiting_since >= need.patience
    for pool in (idle, ripe) if forced else (idle,):  # 5, 6
        chosen = choose(pool, shortage)
        if chosen is not None:
            victims = tuple(Victim(r.id, r.bytes, r.leases, _how(r, action)) for r, action in chosen)
            drain = max((r.drain_deadline for r, _ in chosen if r.leases), default=0.0)
            doze = max((r.sleep_seconds for r, action in chosen if action == "sleep"), default=0.0)
            doze = max(doze, dozing)
            freed = sum(r.freed(action)[2] for r, action in chosen)
            return answer(
                verdict,
                f"least recently used leave first, to free {lacks}",
                lacks=lacks,
                victims=victims,
                adds_slot=needs_slot and empty + freed < 1,
                expected_seconds=need.load_seconds + min(drain, 5.0) + doze,
            )

    times = [_ripe_at(r) for r in may_leave if _ripe_at(r) > snapshot.now]  # 7
    if not forced:
        times.append(need.waiting_since + need.patience)
    return answer(
        "wait",
        f"it lacks {lacks}, and all other models are busy, pinned, just loaded or still loading",
        lacks=lacks,
        retry_at=min(times, default=None),
        expected_seconds=need.load_seconds + max((t - snapshot.now for t in times), default=0.0),
    )


def is_overdrawn(snapshot: Snapshot, device: str) -> bool:
    """Whether models will hold more than the budget of a device or of the host after their current transitions."""
    used = host = 0
    for resident in snapshot.residents:
        on_device, on_host, _ = resident.settled()
        host += on_host
        if device in resident.devices:
            used += on_device
    budget = next((b.bytes for b in snapshot.budgets if b.device == device), used)
    return used > budget or host > snapshot.host_budget


def next_to_leave(snapshot: Snapshot) -> tuple[Victim, ...]:
    """Return the victims on each device if one byte more than is free were needed."""
    result: list[Victim] = []
    for budget in snapshot.budgets:
        used = sum(r.settled()[0] for r in snapshot.residents if budget.device in r.devices)
        need = Need("", budget.bytes - used + 1, 0.0, snapshot.now, slot=False, devices=(budget.device,))
        result += plan(snapshot, need).victims
    return tuple(result)


def to_sleep(snapshot: Snapshot, model: str) -> tuple[Victim, ...] | None:
    """Return the sleeping models, last used before `model`, to end so that it can sleep.

    None if it cannot sleep, or if host memory has no room for it even then. It must end in that case.
    """
    one = next(r for r in snapshot.residents if r.id == model)
    if one.gentlest != "sleep":
        return None
    host = sum(r.settled()[1] for r in snapshot.residents) - one.freed("sleep")[1]
    older = [r for r in snapshot.residents if r.is_asleep and not r.pinned and _score(r) < _score(one)]
    chosen = choose(sorted(older, key=_score), Shortage((), host - snapshot.host_budget))
    return None if chosen is None else tuple(Victim(r.id, r.bytes, 0, "evict") for r, _ in chosen)


def _how(r: Resident, action: Action) -> Literal["evict", "drain", "sleep"]:
    if action == "sleep":
        return "sleep"
    return "drain" if r.leases else "evict"


def _ripe_at(r: Resident) -> float:
    """Return the time from which it may leave; a sleeping model may leave at any time."""
    return float("-inf") if r.is_asleep else r.loaded_at + r.min_resident


def _score(r: Resident) -> tuple[bool, float]:
    return not r.is_extra, r.last_used + COST_WEIGHT * r.cost


def replica_id(model: str, number: int) -> str:
    return model if number == 1 else f"{model}{REPLICA_MARK}{number}"


def _model(resident: str) -> str:
    """Return the model of a resident's id. Replicas of one model make no room for each other."""
    return resident.partition(REPLICA_MARK)[0]


def _impossible(group: Group, host_budget: int, residents: Sequence[Resident], need: Need) -> str:
    """Explain, with the sum, why it can never start; '' if it can."""
    pinned = [r for r in residents if r.pinned and r.id != need.id]
    held_host = sum(r.host for r in pinned)
    names = ", ".join(r.id for r in pinned)
    for budget in group:
        held = sum(r.bytes for r in pinned if budget.device in r.devices)
        if need.bytes <= budget.bytes - held:
            continue
        parts = f"{need.id} needs {size_words(need.bytes)}"
        if len(group) > 1:
            parts += f" on each of {len(group)} devices"
        if need.detail:
            parts += f" ({need.detail})"
        parts += f", the budget is {size_words(budget.bytes)}"
        parts += f", of which pinned models hold {size_words(held)} ({names}): unpin one or" if held else ":"
        parts += " raise the budget (--device-memory), or"
        return f"{parts} lower kv_cache, context_length or adapter places in its recipe."
    if need.host > host_budget - held_host:
        parts = f"{need.id} needs {size_words(need.host)} of host memory, the budget is {size_words(host_budget)}"
        parts += f", of which pinned models hold {size_words(held_host)} ({names}): unpin one or" if held_host else ":"
        return parts + " raise --host-memory, or lower memory.adapters.host in its recipe."
    return ""
