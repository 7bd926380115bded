"""Starting and ending replicas as in the table of `runtime.residency.replicas`, on a virtual clock."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from launch.recipe_store import StoredRecipes
from registry.errors import NotFound, RoundhouseError
from registry.recipes.definition import PoolSpec
from runtime.gateway.files import add_replicas
from runtime.gateway.launch.model_set import ModelSet
from runtime.residency.replicas import goal_of
from runtime.residency.states import ModelState as S
from runtime.slots.link import Cause
from tenants.caller import ServiceClass as C
from tests.fakes.virtual import run
from tests.unit.residency.storm import Storm

Scene = Callable[[Storm], Awaitable[None]]


def play(scene: Scene, budget: int = 250, slots: int = 4, **replicas: dict[str, int]) -> None:
    """Run a scene with models of 100 bytes, whose replicas run two requests at once."""

    async def work() -> None:
        models = dict.fromkeys("abc", 100)
        world = Storm(
            bytes=models, seconds=dict.fromkeys(models, 1.0), budget=budget, slots=slots, at_once=2,
            residency={"min_resident": 0, "drain_deadline": 5.0}, replicas=replicas,
        )  # fmt: skip
        watching = asyncio.create_task(world.manager.watcher.watch(heartbeat=1.0, hung_after=1e9))
        await scene(world)
        world.check()
        watching.cancel()
        await world.manager.close()

    run(work())


def ready(world: Storm) -> set[str]:
    return {id_ for id_, entry in world.manager.table.entries.items() if entry.state is S.READY}


async def ask(world: Storm, model: str, seconds: float = 1.0, count: int = 1) -> None:
    await asyncio.gather(*(world.ask(model, seconds) for _ in range(count)))


def test_a_model_is_loaded_with_its_least_number_of_replicas() -> None:
    async def scene(world: Storm) -> None:
        await ask(world, "a")
        await asyncio.sleep(5)
        assert ready(world) == {"a", "a#2"}
        assert list(world.manager.entries) == ["a", "b", "c"]

    play(scene, a={"least": 2, "most": 4})


def test_no_request_waits_while_a_replica_is_idle() -> None:
    async def scene(world: Storm) -> None:
        await world.manager.load(world.manager.get("a"))
        await asyncio.sleep(5)
        began = world.clock()
        await ask(world, "a", 10.0, count=4)  # all of them to the first one, which runs two at once
        assert world.clock() - began < 11

    play(scene, a={"least": 2})


def test_a_replica_without_room_delays_no_other_model() -> None:
    async def scene(world: Storm) -> None:
        await ask(world, "a")
        await asyncio.sleep(5)
        assert ready(world) == {"a"}
        await ask(world, "b")
        assert ready(world) == {"b"}  # the second replica of a has evicted nothing
        await asyncio.sleep(60)
        assert ready(world) == {"b"}

    play(scene, budget=150, a={"least": 2})


def test_a_replica_is_added_under_pressure_and_evicted_before_any_model() -> None:
    async def scene(world: Storm) -> None:
        await ask(world, "b")
        for _ in range(3):  # until the duration of requests is known
            await ask(world, "a", 4.0)
        began = asyncio.create_task(ask(world, "a", 4.0, count=40))
        await asyncio.sleep(9)
        assert ready(world) == {"a", "b"}
        await asyncio.sleep(6)
        assert ready(world) == {"a", "b", "a#2"}
        await began
        await asyncio.sleep(30)
        assert world.evictions == []
        await ask(world, "a", count=4)  # so that b is the least recently used model
        await ask(world, "c")
        assert ready(world) == {"a", "b", "c"}

    play(scene, budget=300, a={"least": 1, "most": 2})


def test_a_further_replica_uses_the_files_that_the_first_one_fetched() -> None:
    async def scene(world: Storm) -> None:
        first, second = world.manager.get("a").replicas[:2]
        first.path, second.path, second.needed = Path("fetched"), None, 0
        await ask(world, "a")
        await asyncio.sleep(5)
        assert (second.path, second.needed) == (first.path, first.needed)
        assert ready(world) == {"a"}, "there is no room for both"

    play(scene, budget=150, a={"least": 2})


def test_no_replica_is_added_while_requests_wait_less_than_their_goal() -> None:
    async def scene(world: Storm) -> None:
        async def keep_asking() -> None:
            for _ in range(60):
                await world.ask("a", 0.5)

        await ask(world, "a")
        await asyncio.gather(*(keep_asking() for _ in range(3)))  # two run, one waits
        assert world.answered == 181
        assert ready(world) == {"a"}

    play(scene, budget=300, a={"least": 1, "most": 2})


def test_a_replica_without_room_under_pressure_is_not_added_afterwards() -> None:
    async def scene(world: Storm) -> None:
        await ask(world, "b")
        await ask(world, "a", 4.0)
        await ask(world, "a", 4.0, count=40)
        await asyncio.sleep(5)
        await world.manager.unload(world.manager.get("b"))
        await asyncio.sleep(30)
        assert ready(world) == {"a"}

    play(scene, budget=250, a={"least": 1, "most": 2})


def test_a_further_replica_evicts_nothing() -> None:
    async def scene(world: Storm) -> None:
        await ask(world, "b")
        await ask(world, "a", 4.0)
        await ask(world, "a", 4.0, count=40)
        assert ready(world) == {"a", "b"}

    play(scene, budget=250, a={"least": 1, "most": 2})


@pytest.mark.parametrize("number", [1, 2])
def test_other_replicas_serve_after_the_death_of_one(number: int) -> None:
    async def scene(world: Storm) -> None:
        await ask(world, "a")
        await asyncio.sleep(5)
        asking = [asyncio.create_task(world.ask("a", 10.0)) for _ in range(6)]
        await asyncio.sleep(0.1)
        link = world.manager.get("a").replicas[number - 1].link
        await link.die()  # type: ignore[union-attr]
        await asyncio.sleep(0.01)
        assert world.manager.get("a").lead.state is S.READY
        await asyncio.gather(*asking)
        assert world.refused == ["engine_died", "engine_died"]
        await asyncio.sleep(30)
        assert ready(world) == {"a", "a#2"}

    play(scene, a={"least": 2})


def test_an_explicit_unload_ends_all_replicas() -> None:
    async def scene(world: Storm) -> None:
        entry = world.manager.get("a")
        await world.manager.load(entry)
        await asyncio.sleep(5)
        await world.manager.unload(entry)
        assert ready(world) == set()
        await asyncio.sleep(30)
        assert ready(world) == set()
        assert world.free == 4
        await ask(world, "a")
        await asyncio.sleep(5)
        assert ready(world) == {"a", "a#2"}

    play(scene, a={"least": 2, "most": 3})


def test_no_replica_comes_back_while_an_explicit_unload_stops_the_load_of_another() -> None:
    async def scene(world: Storm) -> None:
        entry = world.manager.get("a")
        await world.manager.load(entry)
        await asyncio.sleep(5)
        await entry.replicas[1].link.die()  # type: ignore[union-attr]
        while entry.replicas[1].state is not S.LOADING:
            await world.manager.table.change()
        await asyncio.sleep(0.5)
        assert [replica.state for replica in entry.replicas] == [S.READY, S.LOADING]
        link = entry.replicas[1].link
        end = link.end  # type: ignore[union-attr]

        async def end_slowly(cause: Cause | None = None) -> None:
            await asyncio.sleep(3)
            await end(cause)

        link.end = end_slowly  # type: ignore[union-attr,method-assign]
        await asyncio.wait_for(world.manager.unload(entry), 60)
        await asyncio.sleep(30)
        assert ready(world) == set()

    play(scene, a={"least": 2})


def test_an_explicit_unload_ends_while_new_requests_load_the_model_again() -> None:
    """A replica loaded again while another one drains is not ended again, and the drained one follows it."""

    async def scene(world: Storm) -> None:
        await ask(world, "a")
        await asyncio.sleep(5)
        running = asyncio.create_task(world.ask("a", 30.0))
        await asyncio.sleep(0.1)
        began = world.clock()
        unload = asyncio.create_task(world.manager.unload(world.manager.get("a")))
        await asyncio.sleep(1.0)
        await ask(world, "a", 2.0)
        await unload
        assert world.clock() - began < 7.0, "its drain takes 5 s"
        await running
        assert (world.answered, world.refused) == (2, ["drained"])
        await asyncio.sleep(5)
        assert ready(world) == {"a", "a#2"}

    play(scene, a={"least": 2})


def test_a_removed_model_ends_all_replicas_after_running_requests() -> None:
    async def scene(world: Storm) -> None:
        entry = world.manager.get("a")
        await world.manager.load(entry)
        await asyncio.sleep(5)
        asking = [asyncio.create_task(world.ask("a", 3.0)) for _ in range(5)]
        await asyncio.sleep(0.1)
        reasons = Mock()
        world.manager.table.observer.evicted = reasons  # type: ignore[method-assign]
        await world.manager.remove(entry, NotFound("gone"))
        await asyncio.gather(*asking)
        assert [call.args[1] for call in reasons.call_args_list] == ["removed", "removed"]
        assert set(world.manager.table.entries) == {"b", "c"}
        assert (world.answered, world.refused) == (4, ["model_not_found"])

    play(scene, a={"least": 2})


def test_a_model_with_waiting_requests_and_no_replica_is_requested() -> None:
    async def scene(world: Storm) -> None:
        one, claim_waiting = world.manager.get("a").replicas[0], world.manager.scaler.claim_waiting
        busy = [asyncio.create_task(world.ask(model, 3.0)) for model in "bc"]
        await asyncio.sleep(2)
        assert not claim_waiting(), "nothing waits"
        waiting = asyncio.create_task(world.ask("a", 1.0))
        await asyncio.sleep(0.1)
        assert one.state is S.ABSENT
        assert not claim_waiting(), "it is requested already"
        one.requested_since = None
        assert claim_waiting()
        assert one.requested_since == one.queue.oldest
        await asyncio.gather(waiting, *busy)
        assert (world.answered, world.refused) == (3, [])

    play(scene, a={"least": 2, "most": 2})


def test_the_goal_of_a_class_comes_from_its_pool() -> None:
    async def scene(world: Storm) -> None:
        entry = world.manager.get("a")
        pools = {"people": PoolSpec(classes=("critical",), ttft=0.5), "rest": PoolSpec(classes=("batch",))}
        entry.recipe = entry.recipe.model_copy(update={"pools": pools})
        assert [goal_of(entry, one) for one in (C.CRITICAL, C.INTERACTIVE, C.BATCH)] == [0.5, 2.0, 60.0]

    play(scene)


def test_a_pin_applies_to_the_least_number_of_replicas() -> None:
    async def scene(world: Storm) -> None:
        entry = world.manager.get("a")
        world.manager.pin(entry, True)
        assert [one.pinned for one in entry.replicas] == [True, True, False]
        with suppress(RoundhouseError):
            await world.manager.unload(entry)
        world.manager.pin(entry, False)
        assert not any(one.pinned for one in entry.replicas)

    play(scene, a={"least": 2, "most": 3})


def test_a_changed_recipe_adds_and_removes_replicas() -> None:
    async def scene(world: Storm) -> None:
        entry = world.manager.get("a")
        await ask(world, "a")
        recipe = entry.recipe
        entry.recipe = recipe.model_copy(
            update={"replicas": recipe.replicas.model_copy(update={"least": 2, "most": 2})}
        )
        assert add_replicas(entry, world.make_queue) == entry.replicas[1:]
        world.manager.add(entry.replicas[1])
        await asyncio.sleep(5)
        assert ready(world) == {"a", "a#2"}
        entry.recipe = recipe
        await world.manager.remove_replica(entry.replicas[1], NotFound("gone"))
        assert ready(world) == {"a"}
        assert (len(entry.replicas), len(entry.queue.replicas)) == (1, 1)
        await ask(world, "a", count=5)
        assert world.refused == []

    play(scene)


def test_a_replica_that_leaves_when_it_is_needed_again_comes_back() -> None:
    async def scene(world: Storm) -> None:
        entry, state = world.manager.get("a"), Mock()
        state.models.pins.return_value = {}
        models = ModelSet(
            (), Mock(), StoredRecipes((), ()), Mock(recipes=[]), world.manager, world.make_queue, Mock(), state,
            Mock(), AsyncMock(),
        )  # fmt: skip

        def change(most: int) -> None:
            replicas = entry.recipe.replicas.model_copy(update={"least": most, "most": most})
            entry.recipe = entry.recipe.model_copy(update={"replicas": replicas})
            models._apply(entry)

        await ask(world, "a")
        await asyncio.sleep(5)
        assert ready(world) == {"a", "a#2"}
        busy = asyncio.create_task(ask(world, "a", 4.0, count=4))
        await asyncio.sleep(1)
        for most in (1, 2, 1, 2, 3):
            change(most)
            await asyncio.sleep(0.1)
        assert [one.number for one in entry.replicas] == [1, 2, 3]
        await busy
        await asyncio.sleep(5)
        assert [(one.number, one.is_leaving) for one in entry.replicas] == [(1, False), (2, False), (3, False)]
        assert {one.id for one in entry.replicas} <= world.manager.table.entries.keys()
        assert world.manager.table.entries["a#2"] is entry.replicas[1]
        assert ready(world) == {"a", "a#2", "a#3"}
        assert world.refused == []

    play(scene, budget=350, a={"least": 2})
