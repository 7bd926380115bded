"""Placement of models on the nodes of a fleet: one server plans, and each node follows the plan.

| in a newer epoch, a node finds           | then it                                                                   |
|------------------------------------------|---------------------------------------------------------------------------|
| a model planned here that is not loaded  | loads it, and retries every RETRY_SECONDS if no other model has to leave  |
| a model no longer planned here           | unloads it once its requests have ended                                   |
| nothing about a model                    | lets requests decide, as without a fleet                                  |
| an older epoch than it has seen          | stops following: the database was restored to an older state              |

`fleet.place` computes the plan. A model gets a replica by hand, by demand, or because a node that had it is back. The
first request for a model that is loaded nowhere loads it on one node, as without a fleet.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from fleet.demand import DemandMean, demand_of
from fleet.epochs import DesiredReplicas, may_follow
from fleet.membership.desired import DesiredTable, HandPlacement
from fleet.place import FleetPlan, ModelNeed, place
from fleet.reports import NodeReport
from fleet.table import ReportTable
from registry.errors import RoundhouseError
from runtime.gateway.peers.names import PeerModel

log = logging.getLogger("roundhouse.fleet")
LOOK_SECONDS = 1.0
RETRY_SECONDS = 30.0
Placeable = Mapping[str, Mapping[str, PeerModel]]
"""The models of each node, by node."""


@dataclass(frozen=True, slots=True)
class NodeReplicas:
    """A node's actions on its own models, built from the server's use cases."""

    is_resident: Callable[[str], bool]
    has_room: Callable[[str], bool]
    """Whether it fits without evicting another model."""
    load: Callable[[str], object]
    """Only starts the work, as does `unload`."""
    unload: Callable[[str], object]


class Placer:
    """Plans for the fleet, on one event loop. Queries the database in a thread.

    Args:
        node: this server's name.
        models: of all nodes, including this one.
        own_report: None on a front.
        replicas: None on a front.
    """

    def __init__(
        self,
        node: str,
        table: DesiredTable,
        reports: ReportTable,
        models: Callable[[], Placeable],
        own_report: Callable[[], NodeReport] | None,
        replicas: NodeReplicas | None,
    ) -> None:
        self.node, self._table, self._reports, self.models = node, table, reports, models
        self._own_report, self._replicas = own_report, replicas
        self.is_leading = self.is_old = False
        """is_old: whether the database has an older epoch than this server has seen."""
        self.is_stopped = False
        """Whether planning and following have stopped because the database is in an older state."""
        self.row, self.by_hand = DesiredReplicas(0, {}), tuple[HandPlacement, ...]()
        self._mean, self._before = DemandMean(), FleetPlan({})
        self._tried: dict[str, float] = {}
        """Time when the last load of each model started."""
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="placer")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await asyncio.to_thread(self._table.stop_leading)

    async def _run(self) -> None:
        was_away = False
        while not self.is_stopped:
            try:
                await self.look()
                was_away = False
            except RoundhouseError as error:
                if not was_away:
                    log.error(
                        "models are not placed: the fleet's database does not answer", extra={"cause": str(error)}
                    )
                was_away, self.is_leading = True, False
            except Exception:  # no error may end the loop; the next round may succeed
                log.exception("models are not placed")
            await asyncio.sleep(LOOK_SECONDS)
        self.is_leading, self.is_old = False, True
        await asyncio.to_thread(self._table.stop_leading)

    async def look(self) -> None:
        """Follow the newest epoch, and write the next one where this server plans. Raises Unavailable."""
        async with self._turn:  # a placement by hand looks at once, too
            await self._look()

    async def _look(self) -> None:
        row, by_hand = await asyncio.to_thread(self._table.read)
        self.by_hand = tuple(by_hand)
        if not may_follow(self.row.epoch, row):
            if not self.is_old:
                log.error(
                    "the fleet's database is in an older state: its list of models is not followed",
                    extra={"seen": self.row.epoch, "epoch": row.epoch},
                )
            self.is_old, self.is_leading = True, False
            await asyncio.to_thread(self._table.stop_leading)
            return
        self.is_old = False
        self._follow(row)
        was_leading, self.is_leading = self.is_leading, await asyncio.to_thread(self._table.lead)
        if not self.is_leading:
            return
        if not was_leading:
            log.info("this server plans which node holds which model")
            self._before, self._mean = FleetPlan(row.replicas), DemandMean()
        now = asyncio.get_running_loop().time()
        table = self.table(now)
        self._mean.take(demand_of(table, now), now)
        plan = self._before = place(self.needs(), table, self._mean.by_model, now, self._before)
        if plan.replicas != row.replicas:
            written = await asyncio.to_thread(self._table.write, row.epoch, plan.replicas)
            if written is None:  # another server is planning too
                self.is_leading = False
                await asyncio.to_thread(self._table.stop_leading)
                return
            for move in plan.moves:
                log.info("a model is placed", extra=move._asdict() | {"epoch": written.epoch})
            self._follow(written)

    # --- plan -------------------------------------------------------------------------------------------------------
    def plan(self, now: float) -> FleetPlan:
        """Compute a plan for the current state. Changes nothing."""
        before = self._before if self.is_leading else FleetPlan(self.row.replicas)
        table = self.table(now)
        return place(self.needs(), table, self.demand(table, now), now, before)

    def demand(self, table: ReportTable, now: float) -> Mapping[str, float]:
        """Return the demand for each model, in fully busy replicas. Peaks are smoothed on the server that plans."""
        return self._mean.by_model if self.is_leading else demand_of(table, now)

    def needs(self) -> Sequence[ModelNeed]:
        """Return the needs of each model of the fleet."""
        placeable, by_hand = self.models(), {one.model: one for one in self.by_hand}
        needs: dict[str, ModelNeed] = {}
        for models in placeable.values():
            for id_, model in models.items():
                devices = model.recipe.parallel.devices
                size = max(model.view.expected_bytes, model.view.bytes) // devices
                known = needs.get(id_)
                if known is None or known.bytes < size:
                    least = 1 if model.recipe.residency.pin else 0
                    needs[id_] = ModelNeed(id_, size, devices, least)
        for id_, need in needs.items():
            lacking = frozenset(
                node for node, models in placeable.items() if id_ not in models or models[id_].problem is not None
            )
            hand = by_hand.get(id_, HandPlacement(id_))
            count = len(hand.nodes) if hand.nodes and hand.replicas is None else hand.replicas
            needs[id_] = replace(need, not_on=lacking, on=hand.nodes, replicas=count)
        return list(needs.values())

    def table(self, now: float) -> ReportTable:
        """The latest reports, including this node's."""
        if self._own_report is None:
            return self._reports
        own, table = self._own_report(), self._reports.copy()
        table.add(own, now)
        return table

    # --- follow -----------------------------------------------------------------------------------------------------
    def _follow(self, row: DesiredReplicas) -> None:
        before, self.row = self.row, row
        replicas = self._replicas
        if replicas is None:
            return
        now = asyncio.get_running_loop().time()
        for model, nodes in row.replicas.items():
            is_new, was_here = row.epoch > before.epoch, self.node in before.replicas.get(model, ())
            if self.node in nodes:
                is_due = is_new and not was_here
                if now - self._tried.get(model, -RETRY_SECONDS) >= RETRY_SECONDS:
                    is_due = is_due or replicas.has_room(model)
                if is_due and not replicas.is_resident(model):
                    self._tried[model] = now
                    with suppress(RoundhouseError):  # it was removed here or does not fit; the load has logged that
                        replicas.load(model)
            elif is_new and was_here and replicas.is_resident(model):
                with suppress(RoundhouseError):
                    replicas.unload(model)
