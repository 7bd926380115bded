"""The room that each model has for batch lines, and its current use."""

import time
from collections.abc import Callable, Sequence

from batches.records import ADAPTER
from batches.work.policy import FILL_BELOW, RESERVED, REVOKE_BELOW, LostWork, NamedRoom, Traffic
from registry.catalog import ResolvedName
from registry.errors import RoundhouseError
from registry.names import model_of
from registry.recipes.provider import Provider
from runtime.gateway.names import Names
from runtime.gateway.record import RequestRecord
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import ResidencyManager
from runtime.scheduling.admission import REVOKED
from tenants.caller import Caller, ServiceClass
from tenants.ledger.rows import BATCH

QUIET_SECONDS = 10.0
"""Seconds without a request of a higher class after which batch lines may use all turns of a model."""
IDLE_SECONDS = 60.0
"""Seconds without such a request after which a model may be evicted for one that batch lines need."""
WORKING_LOADS = 10
"""A model loaded for batch lines works for this many load times before it is evicted for other lines."""
AWAY_LINES = 4
"""Lines at a time for names of neither a local nor a provider's model."""
REMOTE = "remote/"
"""Prefix of a room's key if other nodes of the fleet have the model."""


class LineRooms:
    """`batches.work.policy.Rooms`, and a sink of records, from which it knows when interactive requests use a model.

    provider_of: returns the provider of a name, or None if it is no provider's model. Raises Forbidden, NotFound.
    observe: called with the model of a line that ran, its seconds, and whether they were lost.
    find_remote: resolves a name whose requests go to other nodes. None without a fleet. Each node claims the lines
        for its own models from the shared database, so no node claims one for another.
    was_removed: whether a request removed the model with this id.
    """

    def __init__(
        self,
        names: Names,
        residency: ResidencyManager,
        clock: Callable[[], float] = time.monotonic,
        provider_of: Callable[[str, Caller], Provider | None] = lambda _name, _caller: None,
        observe: Callable[[str, float, bool], None] = lambda _model, _seconds, _is_lost: None,
        find_remote: Callable[[str, Caller], ResolvedName | None] | None = None,
        was_removed: Callable[[str], bool] = lambda _model: False,
    ) -> None:
        self._was_removed = was_removed
        self._names, self._residency, self._clock, self._provider_of = names, residency, clock, provider_of
        self._observe, self._find_remote = observe, find_remote
        self._lost: dict[str, LostWork] = {}
        """Lost work, by model."""
        self._used: dict[str, float] = {}
        """Time when the last request other than a batch line ended, by model."""
        self._worked: dict[str, float] = {}
        """Time when the last batch line ended, by model."""

    def take(self, record: RequestRecord) -> None:
        target = record.target
        if target is None or target.model not in self._residency.entries:
            return
        if record.context.source != BATCH:
            self._used[target.model] = self._clock()
            return
        self._worked[target.model] = self._clock()
        seconds = record.seconds
        if "queue" in seconds:
            ran = max(0.0, seconds["total"] - seconds.get("before", 0.0) - seconds["queue"])
            is_lost = record.code == REVOKED
            self._lost.setdefault(target.model, LostWork()).add(ran, self._clock(), is_lost=is_lost)
            self._observe(target.model, ran, is_lost)
            self._lost_part(self._residency.entries[target.model])

    def room(self, name: str, caller: Caller) -> NamedRoom:
        """See `Rooms`."""
        name = name.partition(ADAPTER)[0]
        if self._find_remote is not None and self._find_remote(name, caller) is not None:
            return NamedRoom(f"{REMOTE}{name}", Traffic(0, most=0), is_remote=True)
        try:
            resolved = self._names.find(name, caller)
            entry = self._residency.get(resolved.recipe.id)
        except (RoundhouseError, KeyError):
            return self._room_away(name, caller)
        traffic = self._traffic(entry)
        lead = entry.lead
        return NamedRoom(
            entry.model,
            traffic,
            self._is_placed(entry, resolved),
            self._words(entry, traffic),
            rate=lead.queue.rate * max(1, sum(replica.is_ready for replica in entry.replicas)),
            load_seconds=0.0 if traffic.is_resident or not traffic.may_load else lead.remaining_load_seconds,
        )

    def _room_away(self, name: str, caller: Caller) -> NamedRoom:
        """The room of a provider, of all routers together, or of unknown names, whose lines end with the error."""
        try:
            provider = self._provider_of(name, caller)
        except RoundhouseError:
            provider = None
        if provider is None and self._was_known(name):
            words = f"No server of the fleet has {name} now."
            return NamedRoom(f"{REMOTE}{name}", Traffic(0, most=0), words=words, is_remote=True)
        if provider is None:
            return NamedRoom("", Traffic(AWAY_LINES, most=AWAY_LINES))
        most = provider.batch_connections
        return NamedRoom(f"{provider.id}/", Traffic(most, most=most))

    def _was_known(self, name: str) -> bool:
        """Whether `pin` wrote the name. Then its node may come back, unless the model was removed."""
        spelled = name.partition("@")[0]
        if self._find_remote is None or "@" not in name or self._names.is_router(spelled):
            return False
        return not self._was_removed(model_of(name).partition("@")[0])

    def pin(self, names: Sequence[str], caller: Caller) -> dict[str, str]:
        """Return each name with its current version spelled out, for models of this server or fleet only."""
        pinned: dict[str, str] = {}
        for name in names:
            model, _, adapter = name.partition(ADAPTER)
            resolved = self._find(model, caller)
            if resolved is None:  # a router, a provider's model, or unknown: its lines get the error
                continue
            if adapter and resolved.version is None:
                both = self._find(f"{resolved.recipe.id}:{adapter}", caller)
                if both is not None and both.version is not None and both.recipe.id == resolved.recipe.id:
                    resolved, adapter = both, ""
            spelled = _spell(resolved)
            if self._find(spelled, caller) == resolved:
                pinned[name] = f"{spelled}{ADAPTER}{adapter}" if adapter else spelled
        return pinned

    def _find(self, name: str, caller: Caller) -> ResolvedName | None:
        if self._find_remote is not None and (resolved := self._find_remote(name, caller)) is not None:
            return resolved
        try:
            return self._names.find(name, caller)
        except RoundhouseError:
            return None

    def _traffic(self, entry: ModelEntry) -> Traffic:
        policy = entry.queue.policy
        others = policy.people_waiting + sum(replica.queue.policy.people_running for replica in entry.replicas)
        lost, is_resident = self._lost_part(entry), entry.lead.is_ready
        may_load, is_held_off = (True, False) if is_resident else self._may_load(entry)
        return Traffic(
            policy.turns,
            others,
            is_quiet=not others and self._idle(entry.model) >= QUIET_SECONDS,
            is_resident=is_resident,
            may_load=may_load,
            is_held_off=is_held_off,
            can_fill=lost < FILL_BELOW,
        )

    def _lost_part(self, entry: ModelEntry) -> float:
        """Share of the last hour's batch work that was lost. It bounds how much more may be."""
        lost = self._lost.get(entry.model)
        part = 0.0 if lost is None else lost.part(self._clock())
        for replica in entry.replicas:
            replica.queue.policy.can_revoke = part < REVOKE_BELOW
        return part

    def _idle(self, model: str) -> float:
        """Seconds since the last interactive use of a model."""
        return self._clock() - self._used.get(model, float("-inf"))

    def _may_load(self, entry: ModelEntry) -> tuple[bool, bool]:
        """Whether batch lines may load the model, and whether they only wait for another one to do its lines first."""
        if entry.progress is not None:
            return True, False
        plan = self._residency.plan(entry)
        if plan.verdict == "impossible":  # the line ends with the reason
            return True, False
        if plan.verdict == "wait":
            return False, False
        entries = self._residency.entries
        victims = [entries[victim.id] for victim in plan.victims if victim.id in entries]
        may_load = all(self._idle(victim.model) >= IDLE_SECONDS for victim in victims)
        return may_load, any(self._has_just_begun(victim) for victim in victims)

    def _has_just_begun(self, entry: ModelEntry) -> bool:
        """Whether a model does batch lines and has worked for less than WORKING_LOADS load times."""
        does_lines = self._clock() - self._worked.get(entry.model, float("-inf")) < IDLE_SECONDS or any(
            replica.queue.policy.running_by_class()[ServiceClass.BATCH] for replica in entry.replicas
        )
        return does_lines and entry.clock() - entry.loaded_at < WORKING_LOADS * entry.load_seconds

    def _is_placed(self, entry: ModelEntry, resolved: ResolvedName) -> bool:
        version = resolved.version
        return version is None or any(replica.queue.policy.has_place(version.digest) for replica in entry.replicas)

    def _words(self, entry: ModelEntry, traffic: Traffic) -> str:
        if traffic.is_held_off:
            return f"{entry.model} is not loaded, and a model that was loaded a short while ago works on lines first."
        if not traffic.is_resident and not traffic.may_load:
            return f"{entry.model} is not loaded, and a load would take memory from models in use."
        reserved = 0 if traffic.can_fill else RESERVED
        if not traffic.is_quiet and traffic.capacity - reserved - traffic.others <= 0:
            return f"Interactive requests fill {entry.model}."
        return ""


def _spell(resolved: ResolvedName) -> str:
    recipe, version = resolved.recipe, resolved.version
    if version is None:
        return recipe.id if recipe.is_former else f"{recipe.id}@{recipe.version}"
    return f"{recipe.id}:{resolved.adapter_name}@{version.tag}"
