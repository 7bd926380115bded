"""Nodes follow the fleet's list of replicas, which one server writes."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet.epochs import DesiredReplicas, successor
from fleet.membership.desired import HandPlacement
from fleet.table import ReportTable
from registry.errors import NotFound, Unavailable
from registry.recipes.definition import Recipe
from registry.records import Adapter
from runtime.gateway.names import Names
from runtime.gateway.peers import placing
from runtime.gateway.peers.names import PeerModel, PeerNames
from runtime.gateway.peers.placing import NodeReplicas, Placer
from runtime.gateway.peers.planning import FleetPlanning
from tenants.caller import EVERYBODY
from tests.unit.fleet.made import replica, report
from tests.unit.registry.makers import adapter

GIB = 1 << 30
NO_NAMES: Any = SimpleNamespace(
    adapters=SimpleNamespace(all=lambda: (), ever=lambda: ()),
    routers=SimpleNamespace(all=lambda: ()),
    models=SimpleNamespace(aliases=dict),
)


@dataclass
class Table:
    """The row in memory. leads: the server that gets the lock."""

    row: DesiredReplicas = DesiredReplicas(0, {})  # noqa: RUF009 - immutable
    by_hand: Sequence[HandPlacement] = ()
    leads: bool = True
    written: list[DesiredReplicas] = field(default_factory=list)

    def read(self) -> tuple[DesiredReplicas, Sequence[HandPlacement]]:
        return self.row, self.by_hand

    def write(self, known: int, replicas: Any) -> DesiredReplicas | None:
        row = successor(self.row, known, replicas)
        if row is not None:
            self.row = row
            self.written.append(row)
        return row

    def place(self, placement: HandPlacement) -> None:
        self.by_hand = [placement]

    def release(self, model: str) -> bool:
        self.by_hand = []
        return True

    def lead(self) -> bool:
        return self.leads

    def stop_leading(self) -> None:
        pass


@dataclass
class Node:
    """Records what a node is to do."""

    resident: set[str] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    room: bool = True

    def load(self, model: str) -> None:
        self.done.append(f"load {model}")
        self.resident.add(model)

    def unload(self, model: str) -> None:
        self.done.append(f"unload {model}")
        self.resident.remove(model)

    def replicas(self) -> NodeReplicas:
        return NodeReplicas(self.resident.__contains__, lambda _: self.room, self.load, self.unload)


def names_with(*adapters: Adapter) -> Any:
    return SimpleNamespace(
        adapters=SimpleNamespace(all=lambda: adapters, ever=lambda: ()),
        routers=NO_NAMES.routers,
        models=NO_NAMES.models,
    )


def model(
    id_: str = "chat", size: int = 10 * GIB, problem: str | None = None, version: int = 1, revision: str = "r1"
) -> PeerModel:
    recipe = Recipe.model_validate(
        {
            "id": id_,
            "version": version,
            "task": "chat",
            "source": {"path": "/m"},
            "engine": {"name": "vllm"},
            "dtype": "auto",
        }
    )
    view: Any = SimpleNamespace(expected_bytes=size, bytes=0, problem=problem)
    return PeerModel(recipe, revision, frozenset(), view)


def placer_of(table: Table, node: Node, nodes: Sequence[str] = ("a", "b"), others: Sequence[str] = ()) -> Placer:
    reports = ReportTable()

    def renew(seq: int) -> None:
        now = asyncio.get_running_loop().time()
        for name in nodes[1:]:
            reports.remove(name)
            held = [replica()] if name in others else []
            reports.add(report(name, held, seq=seq), now)

    numbers = iter(range(1, 1000))

    def own() -> Any:
        number = next(numbers)
        renew(number)
        return report("a", [replica(one) for one in sorted(node.resident)], seq=number)

    placeable = {name: {"chat": model()} for name in nodes}
    return Placer("a", table, reports, lambda: placeable, own, node.replicas())  # type: ignore[arg-type]


async def test_a_model_placed_by_hand_is_loaded_and_moves() -> None:
    table, node, others = Table(by_hand=[HandPlacement("chat", 1, ("a",))]), Node(), list[str]()
    placer = placer_of(table, node, others=others)
    await placer.look()
    assert placer.is_leading
    assert (table.row, node.done) == ((1, {"chat": ("a",)}), ["load chat"])
    table.by_hand = [HandPlacement("chat", 1, ("b",))]
    await placer.look()
    assert (table.row, node.done) == ((2, {"chat": ("a", "b")}), ["load chat"]), "it answers until b can"
    others.append("b")
    await placer.look()
    assert (table.row, node.done) == ((3, {"chat": ("b",)}), ["load chat", "unload chat"])
    await placer.look()
    assert table.row.epoch == 3, "only changes make an epoch"


async def test_a_follower_writes_nothing_and_follows_the_list() -> None:
    table, node = Table(leads=False), Node()
    placer = placer_of(table, node)
    table.row = DesiredReplicas(7, {"chat": ("a", "b")})
    await placer.look()
    assert (node.done, table.written) == (["load chat"], [])
    table.row = DesiredReplicas(8, {"chat": ("b",)})
    await placer.look()
    assert node.done == ["load chat", "unload chat"]


async def test_a_model_that_is_not_in_the_list_stays() -> None:
    table, node = Table(leads=False), Node({"chat"})
    placer = placer_of(table, node)
    table.row = DesiredReplicas(3, {"chat": ("b",)})
    await placer.look()
    assert node.done == [], "it was loaded by requests, not by the list"


async def test_an_evicted_model_is_loaded_again_only_if_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "RETRY_SECONDS", 0.0)
    table, node = Table(leads=False, row=DesiredReplicas(1, {"chat": ("a",)})), Node()
    placer = placer_of(table, node)
    await placer.look()
    node.resident.clear()  # evicted
    node.room = False
    await placer.look()
    assert node.done == ["load chat"]
    node.room = True
    await placer.look()
    assert node.done == ["load chat", "load chat"]


async def test_an_older_epoch_is_not_followed() -> None:
    table, node = Table(row=DesiredReplicas(5, {"chat": ("a",)})), Node()
    placer = placer_of(table, node)
    await placer.look()
    table.row = DesiredReplicas(4, {"chat": ()})
    await placer.look()
    assert placer.is_old
    assert not placer.is_leading
    assert (node.done, placer.row.epoch, table.written) == (["load chat"], 5, [])
    table.row = DesiredReplicas(6, {"chat": ()})
    await placer.look()
    assert not placer.is_old
    assert node.done == ["load chat", "unload chat"]


async def test_a_server_that_finds_anothers_epoch_stops_planning() -> None:
    table, node = Table(by_hand=[HandPlacement("chat", 1)]), Node()
    placer = placer_of(table, node)
    read = table.read

    def late() -> tuple[DesiredReplicas, Sequence[HandPlacement]]:
        found = read()
        table.row = DesiredReplicas(9, {"chat": ("b",)})  # another placer writes at the same time
        return found

    table.read = late  # type: ignore[method-assign]
    await placer.look()
    assert not placer.is_leading
    assert table.row == (9, {"chat": ("b",)})


async def test_a_placement_by_hand_and_the_regular_look_do_not_disturb_one_another() -> None:
    table, node = Table(), Node()
    placer = placer_of(table, node)
    planning = FleetPlanning(placer, cast(Any, table), None, PeerNames(NO_NAMES))
    await asyncio.gather(*(planning.place("chat", None, (name,)) for name in ("a", "b", "a", "b")), placer.look())
    assert placer.is_leading
    assert not placer.is_old
    assert placer.row == table.row


async def test_nothing_is_placed_by_hand_in_an_older_database() -> None:
    table, node = Table(), Node()
    placer = placer_of(table, node)
    planning = FleetPlanning(placer, cast(Any, table), None, PeerNames(NO_NAMES))
    placer.is_stopped = True
    for change in (planning.place("chat", 1, ()), planning.release("chat")):
        with pytest.raises(Unavailable):
            await change
    assert not table.by_hand


async def test_demand_on_one_node_places_the_model_on_the_other() -> None:
    table, node = Table(), Node()
    placer = placer_of(table, node, others=["b"])
    busy = placer.table

    def loaded(now: float) -> ReportTable:
        found = busy(now)
        stored = found.get("b")
        assert stored is not None
        found.remove("b")
        found.add(report("b", [replica(running=16, waiting=8, devices=("cuda:0",))], seq=stored.report.seq + 1), now)
        return found

    placer.table = loaded  # type: ignore[method-assign]
    await placer.look()
    assert (table.row.replicas, node.done) == ({"chat": ("a", "b")}, ["load chat"])


async def test_a_server_that_no_longer_uses_its_database_does_not_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "LOOK_SECONDS", 0.001)
    table, node = Table(by_hand=[HandPlacement("chat", 1, ("a",))]), Node()
    placer = placer_of(table, node)
    placer.start()
    while not placer.is_leading:
        await asyncio.sleep(0.001)
    placer.is_stopped = True
    while placer.is_leading:
        await asyncio.sleep(0.001)
    assert placer.is_old
    await placer.close()


async def test_a_node_without_the_weights_is_not_placeable_and_is_named() -> None:
    table, node = Table(by_hand=[HandPlacement("chat", 2)]), Node()
    placer = placer_of(table, node)
    broken = {"a": {"chat": model()}, "b": {"chat": model(problem="/m is not there")}}
    placer.models = lambda: broken
    await placer.look()
    assert table.row.replicas == {"chat": ("a",)}
    planning = FleetPlanning(placer, table, None, PeerNames(NO_NAMES))  # type: ignore[arg-type]
    [view] = planning.plan().models
    assert (view.unplaced, view.problems) == ("each node that can load it has it.", {"b": "/m is not there"})
    table.by_hand = [HandPlacement("chat", 1, ("b",))]
    await placer.look()
    assert planning.plan().models[0].unplaced == "b does not have its weights."


async def test_a_choice_is_explained_for_the_weights_that_a_request_gets() -> None:
    """The newest recipe's on a front, and this server's own elsewhere; also for names with their base or a tag."""
    placer, state = placer_of(Table(), Node()), names_with(adapter("chat", "sql", 1))
    newer = model(version=2, revision="r2")
    placer.models = lambda: {"a": {"chat": newer}, "b": {"chat": model()}}
    peers = PeerNames(state)
    peers.models = {"chat": newer}
    peers.names.serve([newer.recipe])
    front = FleetPlanning(placer, cast(Any, None), None, peers)
    for name in ("chat", "chat:sql", "chat:latest"):
        assert (front.explain(name, EVERYBODY).revision, front.explain(name, EVERYBODY).nodes) == ("r2", ["a"])
    alone = FleetPlanning(placer, cast(Any, None), Names([newer.recipe], state), PeerNames(state))
    for name in ("chat", "chat:sql", "sql", "chat@2", "chat:latest"):
        assert alone.explain(name, EVERYBODY).revision == "r2"
    with pytest.raises(NotFound, match="v9"):
        alone.explain("chat:sql@v9", EVERYBODY)
