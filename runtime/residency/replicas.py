"""Decide when to load additional replicas of a model.

A model's first engine waits in the line of all models (`ResidencyManager.decide`). Additional ones never do, so that
none delays a model that nothing serves. They are loaded when the line is empty:

| replica                          | is loaded                                | models evicted for it                  |
|----------------------------------|------------------------------------------|----------------------------------------|
| up to `least`, with its model    | once its model is ready or loading       | idle models, as for any model          |
| the same, after it died          | like any model                           | the same                               |
| the same, after it was evicted   | as soon as there is room                 | extra replicas of other models         |
| for another model                |                                          |                                        |
| beyond `least`                   | if a class waits too long (GOALS) for    | none                                   |
|                                  | PRESSURE_SECONDS, one after another      |                                        |
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runtime.residency import policy
from runtime.residency.entry import CRASH_LOOP, ModelEntry
from runtime.residency.loader import Loader
from runtime.residency.table import S, Table, log
from tenants.caller import ServiceClass

GOALS = {ServiceClass.CRITICAL: 1.0, ServiceClass.INTERACTIVE: 2.0, ServiceClass.BATCH: 60.0}
"""Seconds that a request may wait for its turn. The goal of the recipe's pool (`ttft`) takes precedence."""
PRESSURE_SECONDS = 10.0
AWAY = frozenset({S.ABSENT, S.FAILED, S.ASLEEP})


def goal_of(entry: ModelEntry, service_class: ServiceClass) -> float:
    pools = (pool for pool in entry.recipe.pools.values() if service_class.label in pool.classes)
    return next((pool.ttft for pool in pools if pool.ttft is not None), GOALS[service_class])


def predicted_wait(entry: ModelEntry, service_class: ServiceClass) -> float:
    """Return the seconds until a request behind all of its class would start.

    0 if at once, or if nothing was measured yet.
    """
    return entry.lead.queue.admission.start_of_class(service_class)


class ReplicaScaler:
    """Requests and loads additional replicas. `look` is called at each heartbeat, the rest by decisions."""

    def __init__(self, table: Table, loader: Loader, decide: Callable[[], None]) -> None:
        self._table, self._loader, self._decide = table, loader, decide
        self._over_since: dict[str, float] = {}
        """Model to the time at which its predicted wait rose above its goal."""
        self._paused = Counter[str]()

    @contextmanager
    def pause(self, model: str) -> Iterator[None]:
        """Load no additional replica of a model while it is being unloaded on request."""
        self._paused[model] += 1
        try:
            yield
        finally:
            self._paused[model] -= 1

    def look(self) -> None:
        """Request one more replica for each model whose requests have waited too long."""
        for entry in self._table.models.values():
            if len(entry.replicas) == 1:
                continue
            now = entry.clock()
            if not _is_slow(entry) or any(replica.state is S.LOADING for replica in entry.replicas):
                self._over_since.pop(entry.id, None)
                for replica in entry.replicas:  # found no room while it was needed
                    if replica.is_extra and replica.state in AWAY and replica.has_others:
                        replica.requested_since = None
            elif now - self._over_since.setdefault(entry.id, now) >= PRESSURE_SECONDS:
                more = next(
                    (
                        replica
                        for replica in entry.replicas
                        if replica.state in AWAY and replica.requested_since is None
                    ),
                    None,
                )
                if more is not None:
                    log.info("requests wait too long; adding a replica", extra={"model": more.id})
                    more.requested_since = now
        if any(len(entry.replicas) > 1 for entry in self._table.models.values()):
            self._decide()  # there may be room by now

    def forget(self) -> None:
        """Withdraw the requests for additional replicas of models that are away and no longer requested."""
        for entry in self._table.entries.values():
            if entry.number > 1 and entry.requested_since is not None and entry.state in AWAY:
                is_requested = entry.replicas[0].requested_since is not None
                if not (is_requested or entry.has_others or entry.queue.waiting):
                    entry.requested_since = None

    def claim_waiting(self) -> bool:
        """Request replicas that have waiting requests while nothing serves their model; return whether there were any.

        Their requests were waiting for another replica to take them over, which has left since.
        """
        forgotten = [
            entry
            for entry in self._table.entries.values()
            if len(entry.replicas) > 1 and entry.requested_since is None and entry.state in (S.ABSENT, S.ASLEEP)
            and not entry.is_leaving and not entry.has_others and entry.queue.oldest is not None
        ]  # fmt: skip
        for entry in forgotten:
            entry.requested_since = entry.queue.oldest
        return bool(forgotten)

    def start(self) -> None:
        """Start the loads for which there is room."""
        for entry in self._table.entries.values():
            if entry.state not in AWAY or entry.is_leaving or not entry.has_others or self._paused[entry.model]:
                continue
            is_requested = entry.requested_since is not None
            if not is_requested and (entry.is_extra or len(entry.failures) > CRASH_LOOP):
                continue
            if entry.state is S.FAILED and entry.failure is not None and entry.clock() < entry.failure.until:
                continue
            if entry.path is None:
                entry.take_files(entry.lead)
            plan = policy.plan(self._table.snapshot(), need_of(entry, entry.clock(), math.inf))
            if plan.verdict in ("load", "wake") and self._may_leave(entry, plan, is_requested):
                if plan.adds_slot:
                    self._table.pool.add_slot()
                    return
                self._loader.start(entry, plan)

    def _may_leave(self, entry: ModelEntry, plan: policy.Plan, is_requested: bool) -> bool:
        if entry.is_extra:
            return not plan.victims
        return is_requested or all(self._table.entries[victim.id].is_extra for victim in plan.victims)


def need_of(entry: ModelEntry, since: float, patience: float) -> policy.Need:
    return policy.Need(
        entry.id,
        entry.on_each(entry.needed),
        entry.return_seconds,
        since,
        patience,
        detail=entry.needed_detail,
        spread=entry.recipe.parallel.devices,
        host=entry.host_bytes + entry.host_adapters if entry.sleeps else entry.host_needed,
    )


def _is_slow(entry: ModelEntry) -> bool:
    waiting = entry.queue.policy.waiting_by_class()
    return any(count and predicted_wait(entry, one) > goal_of(entry, one) for one, count in waiting.items())
