"""Decide when further replicas of a model come.

A model's first engine stands in the line of all models (`ResidencyManager.decide`). Further ones never do, so that none
holds up a model that nothing serves; they come when the line is empty:

| replica                          | comes                                    | who leaves for it                      |
|----------------------------------|------------------------------------------|----------------------------------------|
| up to `least`, with its model    | once its model is there, or loads        | idle models, as for any model          |
| the same, after it died          | as any model does                        | the same                               |
| the same, after it left for      | as soon as there is room                 | extra replicas of other models         |
| another model                    |                                          |                                        |
| beyond `least`                   | when a class has waited too long (GOALS) | nobody                                 |
|                                  | for PRESSURE_SECONDS, one after another  |                                        |
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
"""Seconds that a request may wait for its turn. The goal of the recipe's pool (`ttft`) comes before it."""
PRESSURE_SECONDS = 10.0
AWAY = frozenset({S.ABSENT, S.FAILED, S.ASLEEP})


def goal_of(entry: ModelEntry, service_class: ServiceClass) -> float:
    pools = (pool for pool in entry.recipe.pools.values() if service_class.label in pool.classes)
    return next((pool.ttft for pool in pools if pool.ttft is not None), GOALS[service_class])


def predicted_wait(entry: ModelEntry, service_class: ServiceClass) -> float:
    """Seconds until a request behind all of its class would start; 0: at once, or nothing was measured yet."""
    return entry.lead.queue.admission.start_of_class(service_class)


class ReplicaScaler:
    """See the module's table. `look` is called with each heartbeat, all else with decisions."""

    def __init__(self, table: Table, loader: Loader, decide: Callable[[], None]) -> None:
        self._table, self._loader, self._decide = table, loader, decide
        self._over_since: dict[str, float] = {}
        """Time at which a model's predicted wait rose over its goal."""
        self._paused = Counter[str]()

    @contextmanager
    def pause(self, model: str) -> Iterator[None]:
        """Bring no replica of a model beside another one while it is unloaded by hand."""
        self._paused[model] += 1
        try:
            yield
        finally:
            self._paused[model] -= 1

    def look(self) -> None:
        """Request one replica more for each model whose requests have waited too long."""
        for entry in self._table.models.values():
            if len(entry.replicas) == 1:
                continue
            now = entry.clock()
            if not _is_slow(entry) or any(replica.state is S.LOADING for replica in entry.replicas):
                self._over_since.pop(entry.id, None)
                for replica in entry.replicas:  # there was no room for it while it was needed
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
                    log.info("requests wait too long: one replica more", extra={"model": more.id})
                    more.requested_since = now
        if any(len(entry.replicas) > 1 for entry in self._table.models.values()):
            self._decide()  # there may be room by now

    def forget(self) -> None:
        """Replicas that are requested, and whose model has left, or does not come."""
        for entry in self._table.entries.values():
            if entry.number > 1 and entry.requested_since is not None and entry.state in AWAY:
                is_requested = entry.replicas[0].requested_since is not None
                if not (is_requested or entry.has_others or entry.queue.waiting):
                    entry.requested_since = None

    def claim_waiting(self) -> bool:
        """Request replicas in whose line somebody waits, while nothing serves their model. True: there were some.

        They waited for a replica that was about to take them, and has left since.
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
        """Begin the loads for which there is room."""
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
