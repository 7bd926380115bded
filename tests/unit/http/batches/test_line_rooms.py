"""Places of models for batch lines: when a load may begin, and which model runs first."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batches.work.policy import Level, LostWork, room_for
from models.messages import Progress
from registry.catalog import Catalog, ResolvedName
from registry.recipes.definition import Recipe
from runtime.gateway.local import rooms
from runtime.residency.policy import Plan, Victim
from runtime.residency.states import ModelState
from runtime.scheduling.admission import REVOKED
from tenants.ledger.rows import BATCH
from tests.unit.http.batches.bench import CALLER
from tests.unit.http.fakes import FakeGateway, recipe
from tests.unit.registry import makers
from tests.unit.registry.makers import adapter


@pytest.fixture
def gateway(tmp_path: Path) -> FakeGateway:
    """A gateway in which 'other' is not loaded and would need the memory of 'chat', whose load took a second."""
    gateway = FakeGateway(tmp_path, [recipe("chat", "chat"), recipe("other", "chat")])
    gateway.entries["other"].state = ModelState.ABSENT
    plan = Plan("other", "load", 1, 0, 1, (Victim("chat", 1, 0, "evict"),))
    gateway.residency.plan = lambda _: plan
    return gateway


def limit(gateway: FakeGateway, level: Level) -> int:
    return room_for(gateway.line_rooms.room("other", CALLER).traffic, level)


def test_a_model_in_use_stays_until_a_batch_has_little_time(gateway: FakeGateway) -> None:
    chat = gateway.entries["chat"]
    chat.loaded_at = chat.clock() - 1000.0
    assert limit(gateway, Level.IDLE) > 0, "chat is not in use"
    gateway.line_rooms._used["chat"] = chat.clock()
    assert limit(gateway, Level.IDLE) == 0
    assert "memory from models in use" in gateway.line_rooms.room("other", CALLER).words
    assert limit(gateway, Level.SOON) > 0


@pytest.mark.parametrize(
    ("verdict", "progress", "may_load"),
    [("load", None, True), ("impossible", None, True), ("wait", None, False), ("wait", Progress("weights", 0.5), True)],
)
def test_lines_load_a_model_unless_it_has_to_wait_for_room(
    gateway: FakeGateway, verdict: Any, progress: Progress | None, may_load: bool
) -> None:
    """If it can never be loaded, the lines end with the reason."""
    gateway.residency.plan = lambda _: Plan("other", verdict, 1, 0, 1)
    gateway.entries["other"].progress = progress
    traffic = gateway.line_rooms.room("other", CALLER).traffic
    assert (traffic.may_load, traffic.is_held_off, traffic.is_resident) == (may_load, False, False)


def test_ended_requests_say_when_a_model_was_used_and_how_long_lines_ran(gateway: FakeGateway) -> None:
    observed: list[tuple[str, float, bool]] = []
    own = rooms.LineRooms(
        gateway.names, gateway.residency, lambda: 100.0, observe=lambda *ended: observed.append(ended)
    )

    def take(model: str | None, source: str, code: str = "", **seconds: float) -> None:
        target = None if model is None else SimpleNamespace(model=model)
        record: Any = SimpleNamespace(target=target, context=SimpleNamespace(source=source), seconds=seconds, code=code)
        own.take(record)

    take(None, "api")
    take("away", "api")
    assert (own._used, own._worked) == ({}, {})
    take("chat", "api", total=9.0, queue=1.0)
    assert (own._used, own._worked, observed) == ({"chat": 100.0}, {}, [])
    take("chat", BATCH, total=9.0)
    assert (own._worked, observed) == ({"chat": 100.0}, []), "it never ran"
    take("chat", BATCH, total=9.0, before=2.0, queue=3.0)
    take("chat", BATCH, REVOKED, total=12.0, queue=0.0)
    take("chat", BATCH, total=1.0, queue=3.0)
    assert observed == [("chat", 4.0, False), ("chat", 12.0, True), ("chat", 0.0, False)]
    assert own._lost["chat"].part(100.0) == 0.75
    assert not gateway.queues["chat"].policy.can_revoke


def test_after_much_lost_work_lines_leave_places_free(gateway: FakeGateway) -> None:
    rooms_, lost = gateway.line_rooms, LostWork()
    rooms_._lost["chat"], policy = lost, gateway.queues["chat"].policy
    found = []
    for _ in range(6):
        found.append((rooms_.room("chat", CALLER).traffic.can_fill, policy.can_revoke))
        lost.add(1.0, rooms_._clock(), is_lost=True)
        lost.add(99.0 if len(found) == 1 else 0.0, rooms_._clock(), is_lost=False)
    assert found == [(True, True)] * 4 + [(False, True), (False, False)]


def test_a_model_with_lines_stays_for_ten_times_its_load(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    chat: Any = gateway.entries["chat"]
    now = chat.clock()
    chat.clock = lambda: now
    chat.loaded_at = now - 9.0
    assert limit(gateway, Level.IDLE) > 0, "it runs no lines"
    gateway.line_rooms._worked["chat"] = gateway.line_rooms._clock()
    assert [limit(gateway, level) > 0 for level in Level] == [True, False, False, False]
    assert "works on lines first" in gateway.line_rooms.room("other", CALLER).words
    chat.loaded_at = now - 11.0
    assert limit(gateway, Level.IDLE) > 0, "its time is over"
    chat.loaded_at = now - 9.0
    monkeypatch.setattr(rooms, "IDLE_SECONDS", -1.0)
    assert limit(gateway, Level.IDLE) > 0, "its last lines ended a while ago"


def test_lines_for_other_nodes_models_are_left_to_those_nodes(gateway: FakeGateway) -> None:
    own, remote = gateway.line_rooms, recipe("far", "chat")
    away = rooms.LineRooms(gateway.names, gateway.residency, find_remote=lambda name, _: _resolved(name, remote))
    for name in ("far", "far@1"):
        room = away.room(name, CALLER)
        assert room.is_remote
        assert [room_for(room.traffic, level) for level in Level] == [0] * len(Level)
        assert room.words == "", "the node with the model says why it waits"
    assert not away.room("chat", CALLER).is_remote
    assert away.pin(["far", "chat", "none"], CALLER) == {"far": "far@1", "chat": "chat@1"}
    assert own.pin(["far", "chat", "none"], CALLER) == {"chat": "chat@1"}


def test_an_adapter_that_a_line_names_apart_keeps_its_version(gateway: FakeGateway) -> None:
    recipes = [makers.recipe("gpt"), makers.recipe("gpt:120b"), makers.recipe("llama", aliases=("main",))]
    adapters = [adapter("llama", "sql", 1, 2, aliases={"prod": 1}), adapter("gpt:120b", "tone", 3)]
    catalog = Catalog(recipes, adapters, {})
    names: Any = SimpleNamespace(find=lambda name, _: catalog.resolve(name))
    pin = rooms.LineRooms(names, gateway.residency).pin
    found = pin([f"{name} adapter_id=sql" for name in ("llama", "main", "llama@1", "sql", "none")], CALLER)
    assert found == {
        "llama adapter_id=sql": "llama:sql@v2",
        "main adapter_id=sql": "llama:sql@v2",
        "llama@1 adapter_id=sql": "llama:sql@v2",
        "sql adapter_id=sql": "llama:sql@v2 adapter_id=sql",  # it names an adapter as the model: the line's own error
    }
    assert pin(["llama adapter_id=sql@prod"], CALLER) == {"llama adapter_id=sql@prod": "llama:sql@v1"}
    for name in ("120b", "120b:tone", "org/new"):  # of another model, or registered when the line runs
        both = f"gpt adapter_id={name}"
        assert pin([both], CALLER) == {both: f"gpt@1 adapter_id={name}"}


def test_a_room_is_the_models_also_for_an_adapter_that_is_unknown(gateway: FakeGateway) -> None:
    assert gateway.line_rooms.room("chat@1 adapter_id=org/new", CALLER).key == "chat"


def test_lines_wait_for_a_node_that_has_left_but_wrong_names_are_answered(gateway: FakeGateway) -> None:
    away = rooms.LineRooms(gateway.names, gateway.residency, find_remote=lambda _name, _caller: None)
    gone = away.room("far@1", CALLER)
    assert gone.words == "No server of the fleet has far@1 now."
    assert room_for(gone.traffic, Level.LATE) == 0
    for name in ("none", "auto"):
        assert room_for(away.room(name, CALLER).traffic, Level.IDLE) > 0
    assert room_for(gateway.line_rooms.room("far@1", CALLER).traffic, Level.IDLE) > 0, "without a fleet"


def test_lines_for_a_model_that_the_fleet_removed_are_answered(gateway: FakeGateway) -> None:
    away = rooms.LineRooms(
        gateway.names, gateway.residency, find_remote=lambda _name, _caller: None, was_removed={"far"}.__contains__
    )
    for name in ("far@1", "far:adapter@v1"):
        assert away.room(name, CALLER).words == ""
        assert room_for(away.room(name, CALLER).traffic, Level.IDLE) > 0, "so that the lines get the error"
    assert away.room("farther@1", CALLER).words != ""
    assert away.room("far:7b@1", CALLER).words != "", "another model, whose name begins with this one's"


def _resolved(name: str, one: Recipe) -> ResolvedName | None:
    return ResolvedName(one) if name.partition("@")[0] == one.id else None
