"""Changing a model's recipe, adding and removing models, without losing running or waiting requests."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from launch.checks.checker import FileChecker
from models.messages import MemoryFootprint
from models.sources.resolve import digest
from registry.errors import EngineFailed, NotFound, RoundhouseError, Unavailable
from registry.recipes.definition import Prices, Recipe
from registry.state.database import State
from registry.storage.reserve import DiskReserve
from runtime.config.device import NO_DEVICE
from runtime.gateway.files import ModelFiles
from runtime.gateway.local.lease import LocalLease
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import removed_error
from runtime.residency.states import ModelState
from runtime.residency.updates import RecipeExchange, RecipeExchanger
from runtime.scheduling.admission import WaitingBound
from runtime.scheduling.queue import ModelQueue
from tests.eventually import PATIENCE
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import NoAdapters
from tests.unit.residency.scripted import World, in_use, recipe

S = ModelState


def newer(name: str, version: int = 2, requests: int = 1) -> Recipe:
    batching = recipe(name).batching.model_copy(update={"max_requests": requests})
    return recipe(name).model_copy(update={"version": version, "batching": batching})


def exchange(world: World, name: str, version: int = 2) -> list[str]:
    """Start an exchange, and return a list that gets the model's name once the new recipe is active."""
    counted: list[str] = []
    entry = world.manager.get(name)

    def fill(entry: ModelEntry) -> None:
        entry.path, entry.needed = Path("new"), 100

    world.manager.exchanger.start(entry, RecipeExchange(newer(name, version), fill, lambda: counted.append(name)))
    return counted


async def settled(world: World, name: str, state: ModelState) -> None:
    while world.state(name) is not state:
        await world.manager.table.change()


async def test_an_absent_model_gets_its_new_recipe_at_once(world: World) -> None:
    assert exchange(world, "a") == ["a"]
    entry = world.manager.get("a")
    assert (entry.recipe.version, entry.path, world.queues["a"].recipe.version) == (2, Path("new"), 2)


async def test_a_new_recipe_without_files_never_runs_on_the_old_ones(world: World) -> None:
    entry = world.manager.get("a")
    world.manager.exchanger.start(entry, RecipeExchange(newer("a"), lambda _: None))
    assert (entry.recipe.version, entry.path) == (2, None)


async def test_a_new_recipe_does_not_keep_what_was_measured_of_the_old_one(world: World) -> None:
    entry = world.manager.get("a")
    entry.after_load, entry.margin, entry.slept = 5, 3, MemoryFootprint(device_bytes=1, host_bytes=2)
    entry.measured_first_sleep = entry.measured_sleep = entry.measured_wake = 1.0
    entry.broken = EngineFailed("no files")
    entry.fail(entry.broken)
    assert exchange(world, "a") == ["a"]
    assert (entry.after_load, entry.margin, entry.slept, entry.broken, entry.failures) == (0, 0, None, None, [])
    assert (entry.measured_first_sleep, entry.measured_sleep, entry.measured_wake) == (None, None, None)


async def test_an_unused_model_is_unloaded_and_loaded_with_its_new_recipe(world: World) -> None:
    await world.ask("a")
    assert exchange(world, "a") == ["a"]
    assert await world.ask("a")
    assert world.witness.events == ["loaded a", "evicted a", "loaded a"]
    assert world.queues["a"].policy.max_requests == 1


async def test_a_change_of_only_the_price_keeps_the_engine(world: World) -> None:
    price = Prices(input=2.5)
    dearer = recipe("a").model_copy(update={"version": 2, "price": price, "aliases": ("other",)})
    counted: list[str] = []
    async with in_use(world, "a"):
        entry = world.manager.get("a")
        path = entry.path
        exchange(world, "a", 3)  # waits, and is replaced below
        given = RecipeExchange(dearer, lambda _: counted.append("filled"), lambda: counted.append("a"))
        world.manager.exchanger.start(entry, given)
        assert (counted, entry.recipe.price, entry.path) == (["a"], price, path)
        assert world.queues["a"].recipe.version == 2
        assert world.manager.exchanger.waiting("a") is None
    assert await world.ask("a")
    assert world.witness.events == ["loaded a"]


async def test_a_model_in_use_keeps_its_recipe_until_it_is_unused(world: World) -> None:
    async with in_use(world, "a"):
        counted = exchange(world, "a")
        assert (counted, world.manager.get("a").recipe.version) == ([], 1)
        assert world.manager.exchanger.waiting("a") == newer("a")
    while not counted:
        await world.manager.table.change()
    assert world.manager.get("a").recipe.version == 2
    assert world.manager.exchanger.waiting("a") is None
    await settled(world, "a", S.ABSENT)


async def test_a_further_change_replaces_a_waiting_one(world: World) -> None:
    async with in_use(world, "a"):
        first = exchange(world, "a", 2)
        last = exchange(world, "a", 3)
    while not last:
        await world.manager.table.change()
    assert first == []
    assert world.manager.get("a").recipe.version == 3


async def test_a_model_always_in_use_drains_after_a_while_without_losing_requests(world: World) -> None:
    world.manager.exchanger = RecipeExchanger(world.manager.table, world.manager.drainer, patience=0.0)
    async with in_use(world, "a"):
        counted = exchange(world, "a")
        while not counted:
            await world.manager.table.change()
        assert world.state("a") is S.DRAINING
        waits = asyncio.create_task(world.ask("a"))
        await asyncio.sleep(0)
        assert not waits.done()
    assert await waits, "answered with the new recipe"
    assert world.witness.events.count("loaded a") == 2


async def test_an_engine_that_drains_for_a_new_recipe_keeps_its_allowance(world: World) -> None:
    """Its memory is compared with its own load, not with the new recipe's, which was never measured."""
    world.manager.exchanger = RecipeExchanger(world.manager.table, world.manager.drainer, patience=0.0)
    async with in_use(world, "a"):
        entry = world.manager.get("a")
        exchange(world, "a")
        await settled(world, "a", S.DRAINING)
        assert entry.link is not None
        await world.manager.watcher.holds(entry, entry.link, 150)
        assert (entry.state, world.pool.links[0].ended) == (S.DRAINING, 0)


async def test_an_engine_that_drains_for_a_new_recipe_answers_with_its_own_revision(world: World) -> None:
    world.manager.exchanger = RecipeExchanger(world.manager.table, world.manager.drainer, patience=0.0)
    entry = world.manager.get("a")

    def fill(entry: ModelEntry) -> None:
        entry.path, entry.revision = Path("new"), "new"

    async with await entry.queue.acquire(None) as turn:
        lease = LocalLease(cast(Any, None), cast(Any, None), entry, None, turn, AsyncExitStack(), "only")
        world.manager.exchanger.start(entry, RecipeExchange(newer("a"), fill))
        await settled(world, "a", S.DRAINING)
        assert (lease.revision, entry.revision) == ("r", "new")
    await world.ask("a")
    assert lease.revision == "new"


async def test_a_load_by_hand_that_fails_as_the_recipe_changes_loads_the_new_one(world: World) -> None:
    entry, broken = world.manager.get("a"), FakeEngine(load_error=EngineFailed("no"))
    broken.load_gate.clear()
    made = iter([broken, FakeEngine()])
    world.pool.make = lambda: next(made)
    world.manager.request_load(entry)
    await settled(world, "a", S.LOADING)
    counted = exchange(world, "a")
    await asyncio.sleep(0)  # the change waits first
    loads = asyncio.create_task(world.manager.load(entry))
    await asyncio.sleep(0)
    broken.load_gate.set()
    async with asyncio.timeout(200):
        while not counted:
            await asyncio.sleep(0.001)
        for _ in range(100):
            await asyncio.sleep(0)
        assert entry.state is not S.FAILED
        await loads
    assert (entry.state, entry.recipe.version) == (S.READY, 2)


async def test_files_that_changed_while_a_model_was_away_are_another_revision(world: World, tmp_path: Path) -> None:
    entry, folder = world.manager.get("a"), tmp_path / "model"
    folder.mkdir()
    entry.path, seen = folder, list[str]()
    with State(tmp_path / "state") as state:
        files = ModelFiles(state, NO_DEVICE, tmp_path / "converted", DiskReserve(tmp_path, 0), FileChecker())
        world.manager.loader._revise = files.revise
        for weights in (b"old", b"old", b"new"):
            (folder / "model.safetensors").write_bytes(weights)
            await world.ask("a")
            seen.append(entry.loaded_revision)
            await world.manager.unload(entry)
    assert seen == [seen[0], seen[0], digest(folder)[:12]]
    assert seen[0] != seen[2]


async def test_files_that_change_during_a_load_are_not_served(world: World, tmp_path: Path) -> None:
    """The engine may have read parts of both revisions."""
    entry, weights, engine = world.manager.get("a"), tmp_path / "model.safetensors", FakeEngine()
    weights.write_bytes(b"old")
    entry.path = tmp_path
    engine.load_gate.clear()
    world.pool.make = lambda: engine
    with State(tmp_path / "state") as state:
        files = ModelFiles(state, NO_DEVICE, tmp_path / "converted", DiskReserve(tmp_path, 0), FileChecker())
        world.manager.loader._revise = files.revise
        waiting = asyncio.create_task(world.ask("a"))
        while not world.pool.links or not world.pool.links[0].server._loading:
            await asyncio.sleep(0.001)
        weights.write_bytes(b"new")
        engine.load_gate.set()
        with pytest.raises(Unavailable, match="its files changed while it loaded"):
            await waiting
        world.pool.make = FakeEngine
        await world.manager.load(entry)
        assert entry.loaded_revision == digest(tmp_path)[:12]


@pytest.mark.parametrize("how", ["in place", "by another file", "by a link"])
async def test_files_that_change_and_are_put_back_during_a_load_are_not_served(
    world: World, how: str, tmp_path: Path
) -> None:
    entry, folder, link, engine = world.manager.get("a"), tmp_path / "v1", tmp_path / "current", FakeEngine()
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "model.safetensors").write_bytes(version.encode())
    link.symlink_to(folder)
    entry.path = link
    engine.load_gate.clear()
    world.pool.make = lambda: engine
    with State(tmp_path / "state") as state:
        files = ModelFiles(state, NO_DEVICE, tmp_path / "converted", DiskReserve(tmp_path, 0), FileChecker())
        world.manager.loader._revise = files.revise
        waiting = asyncio.create_task(world.ask("a"))
        while not world.pool.links or not world.pool.links[0].server._loading:
            await asyncio.sleep(0.001)
        for version in ("v2", "v1"):
            if how == "in place":
                (folder / "model.safetensors").write_bytes(version.encode())
            elif how == "by another file":
                (folder / "new").write_bytes(version.encode())
                (folder / "new").rename(folder / "model.safetensors")
            else:
                link.unlink()
                link.symlink_to(tmp_path / version)
        engine.load_gate.set()
        with pytest.raises(Unavailable, match="its files changed while it loaded"):
            await waiting


async def test_files_that_were_converted_are_converted_again_when_they_change(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entry, source = world.manager.get("a"), tmp_path / "source"
    source.mkdir()
    made, seen = list[Path](), list[bytes]()
    with State(tmp_path / "state") as state:
        files = ModelFiles(state, NO_DEVICE, tmp_path / "converted", DiskReserve(tmp_path, 0), FileChecker())

        async def convert(folder: Path, _: object) -> Path:
            target = files._conversions._target(folder)
            target.mkdir(parents=True)
            (target / "model.bin").write_bytes((source / "model.safetensors").read_bytes())
            made.append(target)
            return target

        monkeypatch.setattr("launch.conversion.whisper.gguf_of", lambda folder: folder if folder == source else None)
        monkeypatch.setattr(files._conversions, "_convert", convert)
        monkeypatch.setattr(files._checker, "check", checked := AsyncMock())
        monkeypatch.setattr("runtime.gateway.files.sources.resolve", lambda *_: source)
        world.manager.loader._revise = files.revise
        (source / "model.safetensors").write_bytes(b"old")
        entry.path = await files._converted(entry, source)
        for weights in (b"old", b"new", b"old"):
            (source / "model.safetensors").write_bytes(weights)
            await world.ask("a")
            seen.append((entry.path / "model.bin").read_bytes())
            assert entry.loaded_revision == digest(entry.path)[:12]
            await world.manager.unload(entry)
    assert seen == [b"old", b"new", b"old"]
    assert len(made) == 2
    assert checked.await_count == 3


async def test_an_added_model_is_served(world: World, tmp_path: Path) -> None:
    queue = ModelQueue(
        recipe("d"), WaitingBound(10), lambda: world.manager.request_load(world.manager.get("d")),
        lambda: world.manager.released(world.manager.get("d")), NoAdapters(),
    )  # fmt: skip
    world.queues["d"] = queue
    world.manager.add(
        ModelEntry(recipe=recipe("d"), path=tmp_path, revision="r", needed=100, needed_detail="", load_seconds=0.1,
                   queue=queue)
    )  # fmt: skip
    assert await world.ask("d")


async def test_a_removed_model_finishes_running_requests_and_refuses_waiting_ones(world: World) -> None:
    entry = world.manager.get("a")
    gone = NotFound("Model 'a' was removed.")
    async with in_use(world, "a"), in_use(world, "a"):  # as many as may run at once
        waits = asyncio.create_task(world.ask("a"))
        while not entry.queue.waiting:
            await asyncio.sleep(0)
        leaves = asyncio.create_task(world.manager.remove(entry, gone))
        with pytest.raises(NotFound):
            await waits
        assert not leaves.done()
        assert "a" in world.manager.entries
    await leaves
    assert "a" not in world.manager.entries
    assert await world.ask("b")


async def test_a_model_removed_before_its_change_does_not_get_it(world: World) -> None:
    """Otherwise the name of a removed model would be served again."""
    async with in_use(world, "a"):
        counted = exchange(world, "a")
        leaves = asyncio.create_task(world.manager.remove(world.manager.get("a"), NotFound("Model 'a' was removed.")))
        await asyncio.sleep(0.01)
    await leaves
    while world.manager.table.running("exchange-a"):
        await asyncio.sleep(0.001)
    assert (counted, world.manager.exchanger.waiting("a")) == ([], None)


async def test_a_model_removed_while_it_waits_for_room_is_not_loaded(world: World) -> None:
    """There is room for two models, and both are busy."""
    entry = world.manager.get("c")
    world.manager.patience = 1000.0
    async with in_use(world, "a"), in_use(world, "b"):
        waits = asyncio.create_task(world.ask("c"))
        while entry.requested_since is None:
            await asyncio.sleep(0)
        assert entry.state is S.ABSENT
        await world.manager.remove(entry, NotFound("Model 'c' was removed."))
        with pytest.raises(NotFound):
            await waits
    world.manager.decide()
    assert "loaded c" not in world.witness.events
    assert "c" not in world.manager.entries


async def test_a_failed_model_can_be_removed_during_its_back_off(world: World) -> None:
    """Requests from before the death wait for the model's return."""
    entry = world.manager.get("a")
    async with in_use(world, "a"), in_use(world, "a"):
        waits = asyncio.create_task(world.ask("a"))
        while not entry.queue.waiting:
            await asyncio.sleep(0)
        entry.fail(EngineFailed("an earlier death"))
        await world.pool.links[0].crash()
        await settled(world, "a", S.FAILED)
        assert entry.queue.waiting == 1
        await world.manager.remove(entry, NotFound("Model 'a' was removed."))
        with pytest.raises(NotFound):
            await waits
    assert "a" not in world.manager.entries


@pytest.mark.parametrize("has_failed", [False, True])
async def test_a_load_by_hand_ends_when_its_model_is_removed(world: World, has_failed: bool) -> None:
    """It used to request the model that was gone, and to wait for ever."""
    world.manager.patience = 1000.0
    entry = world.manager.get("c")
    if has_failed:
        entry.state = S.FAILED
    async with in_use(world, "a"), in_use(world, "b"):
        loads = asyncio.create_task(world.manager.load(entry))
        await asyncio.sleep(0)
        assert entry.requested_since is not None
        await world.manager.remove(entry, removed_error("c"))
        with pytest.raises(NotFound, match="was removed"):
            await asyncio.wait_for(loads, PATIENCE)


async def test_a_request_may_outlast_its_removed_model(world: World) -> None:
    """Its client reads slowly. An error at its end would replace the one that the client must get."""
    entry = world.manager.get("a")
    entry.recipe = recipe("a", drain_deadline=0)
    async with in_use(world, "a"):
        await world.manager.remove(entry, removed_error("a"))
        assert "a" not in world.manager.entries
    assert entry.queue.running == 0


async def test_a_cancelled_fetch_is_reported_and_can_be_repeated(world: World) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def fetch(entry: ModelEntry, reported: object) -> None:
        begun.set()
        await go_on.wait()
        entry.path = Path("here")

    world.manager.fetcher.fetch = fetch
    entry = world.manager.get("a")
    entry.path = None
    bringing = asyncio.create_task(world.manager.fetch(entry))
    await begun.wait()
    assert world.state("a") is S.LOADING
    assert world.manager.plan(entry).verdict == "resident", "a plan can be made during the fetch"
    assert world.manager.fetcher.cancel(entry)
    with pytest.raises(RoundhouseError) as refused:
        await bringing
    assert refused.value.code == "download_cancelled"
    assert world.state("a") is S.FAILED
    assert not world.manager.fetcher.cancel(entry)
    go_on.set()
    await world.manager.fetch(entry)
    assert (world.state("a"), entry.progress) == (S.ABSENT, None)
    await world.manager.load(entry)
    assert world.state("a") is S.READY


async def test_a_model_removed_at_the_moment_its_download_starts_does_not_wait_for_it(world: World) -> None:
    async def fetch(entry: ModelEntry, reported: object) -> None:
        await asyncio.Event().wait()

    world.manager.fetcher.fetch = fetch
    entry = world.manager.get("a")
    entry.path = None
    removing = asyncio.create_task(world.manager.remove_replica(entry, NotFound("removed")))
    world.manager.begin_fetch(entry)
    async with asyncio.timeout(PATIENCE):
        await removing
    assert "a" not in world.manager.entries
