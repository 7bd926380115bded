"""Views of placement and node choice, and manual placement."""

import asyncio
from math import ceil

from fleet.choose import FleetTarget, explain
from fleet.membership.desired import DesiredTable, HandPlacement
from fleet.place import GOAL, LEASE_SECONDS
from fleet.table import ReportTable
from registry.base.wording import nearest, quoted
from registry.catalog import ResolvedName
from registry.errors import BadRequest, NotFound, Unavailable
from runtime.gateway.files import UNKNOWN
from runtime.gateway.names import Names
from runtime.gateway.peers.names import PeerNames, find_remote
from runtime.gateway.peers.placing import Placer
from runtime.gateway.views.fleet import (
    FleetCandidateView,
    FleetChoiceView,
    FleetModelSignalView,
    FleetMoveView,
    FleetPlacementView,
    FleetPlanView,
    FleetSignalView,
)
from tenants.caller import Caller


class FleetPlanning:
    """own: names of this server. None on a front."""

    def __init__(self, placer: Placer, table: DesiredTable, own: Names | None, peers: PeerNames) -> None:
        self._placer, self._table, self._own, self._peers = placer, table, own, peers

    def plan(self) -> FleetPlanView:
        placer, now = self._placer, asyncio.get_running_loop().time()
        table = placer.table(now)
        plan, ready, demand = placer.plan(now), _ready(table, now), placer.demand(table, now)
        hand = {one.model: one for one in placer.by_hand}
        models = [
            FleetPlacementView(
                model=need.model,
                nodes=list(placer.row.replicas.get(need.model, ())),
                ready=sorted(ready.get(need.model, ())),
                bytes=need.bytes,
                demand=round(demand.get(need.model, 0.0), 3),
                replicas=hand[need.model].replicas if need.model in hand else None,
                on=list(need.on),
                unplaced=plan.unplaced.get(need.model),
                problems={
                    node: problem
                    for node, models in sorted(placer.models().items())
                    if need.model in models and (problem := models[need.model].problem) is not None
                },
            )
            for need in sorted(placer.needs(), key=lambda need: need.model)
        ]
        return FleetPlanView(
            epoch=placer.row.epoch,
            is_followed=not placer.is_old,
            is_leading=placer.is_leading,
            models=models,
            moves=[FleetMoveView(*move) for move in plan.moves],
        )

    async def place(self, model: str, replicas: int | None, nodes: tuple[str, ...]) -> FleetPlanView:
        """Set replicas and nodes of a model by hand. Raises BadRequest, NotFound, Unavailable."""
        self._check_database()
        self._check_model(model)
        if replicas is None and not nodes:
            raise BadRequest("Say how many replicas, or on which nodes.", param="replicas")
        if replicas is not None and replicas < len(nodes):
            raise BadRequest(f"{replicas} replicas are fewer than the {len(nodes)} nodes that are named.", param="on")
        present = [one.report.node for one in self._placer.table(asyncio.get_running_loop().time())]
        for node in nodes:
            if node not in present:
                listed = ", ".join(nearest(node, present)) or "none"
                raise NotFound(f"No node {quoted(node)} reports. There are: {listed}.", code="server_not_found")
        await asyncio.to_thread(self._table.place, HandPlacement(model, replicas, nodes))
        await self._placer.look()
        return self.plan()

    async def release(self, model: str) -> FleetPlanView:
        """Return a model to automatic placement. Raises NotFound, Unavailable."""
        self._check_database()
        if not await asyncio.to_thread(self._table.release, model):
            raise NotFound(f"Model {quoted(model)} is not placed by hand.", code="not_placed")
        await self._placer.look()
        return self.plan()

    def explain(self, name: str, caller: Caller) -> FleetChoiceView:
        """Explain which nodes a request for this name would get. Raises NotFound, Forbidden."""
        now = asyncio.get_running_loop().time()
        resolved, revision = self._resolve(name, caller)
        model, version = resolved.recipe.id, resolved.version
        digest = None if version is None else version.digest
        table = self._placer.table(now)
        choice = explain(FleetTarget(model, revision, digest), None, table, now)
        models = self._placer.models()
        have = sorted(node for node, own in models.items() if model in own and own[model].revision == revision)
        return FleetChoiceView(
            model=model,
            adapter=resolved.adapter_name,
            revision=revision,
            digest=digest,
            nodes=have,
            tries=[node for node in choice.tries if node in have],
            reason=choice.reason,
            candidates=[
                FleetCandidateView(node, round(candidate.start, 3), round(candidate.adapter, 3), candidate.work)
                for node, candidate in choice.candidates
            ],
        )

    def signal(self) -> FleetSignalView:
        """The number of nodes that the current load needs."""
        now = asyncio.get_running_loop().time()
        table = self._placer.table(now)
        demand, ready = self._placer.demand(table, now), _ready(table, now)
        nodes = [one.report for one in table if now - one.at <= LEASE_SECONDS]
        able = [node for node in nodes if not node.draining]
        models = [
            FleetModelSignalView(model, len(ready.get(model, ())), round(busy, 3), max(1, ceil(busy / GOAL)))
            for model, busy in sorted(demand.items())
            if busy > 0.001
        ]
        devices = sum(len(one.devices) for one in able) / max(1, len(able))
        return FleetSignalView(
            nodes=len(able),
            needed_nodes=max(1, ceil(sum(model.demand for model in models) / GOAL / max(1.0, devices))),
            models=models,
        )

    def _check_database(self) -> None:
        if self._placer.is_stopped:
            raise Unavailable("The fleet's database is in an older state and is not used.", code="database_unavailable")

    def _check_model(self, model: str) -> None:
        known = [need.model for need in self._placer.needs()]
        if model not in known:
            listed = ", ".join(nearest(model, known)) or "none"
            raise NotFound(f"No node has a model {quoted(model)}. There are: {listed}.", code="model_not_found")

    def _resolve(self, name: str, caller: Caller) -> tuple[ResolvedName, str]:
        """Resolve a name here or else on other nodes. Also returns the model's revision."""
        own, known = self._own, self._peers.models
        remote = find_remote(own, self._peers, name, caller)
        if remote is not None:
            return remote, known[remote.recipe.id].revision
        assert own is not None, "a front has no names of its own"
        resolved = own.find(name, caller)
        id_ = resolved.recipe.id
        here = self._placer.models().get(self._placer.node, {}).get(id_)
        model = known.get(id_, here) if here is None or here.revision == UNKNOWN else here
        return resolved, "" if model is None else model.revision


def _ready(table: ReportTable, now: float) -> dict[str, list[str]]:
    """Nodes by the models that are ready on them."""
    ready: dict[str, list[str]] = {}
    for report, at in table:
        if now - at <= LEASE_SECONDS:
            for replica in report.replicas:
                if replica.state == "ready":
                    ready.setdefault(replica.model, []).append(report.node)
    return ready
