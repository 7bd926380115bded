"""Models are added and removed while another one finishes its last requests."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch.recipe_store import RecipeFiles, StoredRecipes
from registry.errors import RoundhouseError
from registry.recipes.definition import Recipe, RecipeAdapter
from runtime.gateway.launch.model_set import ModelSet
from runtime.gateway.metrics import Metrics
from runtime.gateway.names import Names
from runtime.residency.updates import RecipeExchange
from tests.eventually import PATIENCE
from tests.unit.http.fakes import recipe
from tests.unit.residency import scripted
from tests.unit.residency.scripted import World


class Leaving:
    """Residency whose models leave when the test lets them."""

    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}
        self.may_go: dict[str, asyncio.Event] = {}
        self.exchanges: list[RecipeExchange] = []
        self.exchanger = SimpleNamespace(
            waiting=lambda _model: None,
            forget=lambda _model: None,
            start=lambda _entry, exchange: self.exchanges.append(exchange),
        )
        self.table = SimpleNamespace(spawn=self.spawn)
        self.tasks: list[asyncio.Task[None]] = []
        """That end with it."""
        self.registered: list[Recipe] = []
        self.may_register = asyncio.Event()
        self.may_register.set()

    def add(self, entry: Any) -> None:
        self.entries[entry.id] = entry

    def spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        self.tasks.append(asyncio.create_task(work, name=name))

    def pin(self, entry: Any, pinned: bool) -> None:
        entry.pinned = pinned

    async def register(self, recipe: Recipe) -> None:
        await self.may_register.wait()
        self.registered.append(recipe)

    async def remove(self, entry: Any, error: RoundhouseError) -> None:
        await self.may_go.setdefault(entry.id, asyncio.Event()).wait()
        del self.entries[entry.id]


@pytest.fixture
def made(tmp_path: Path) -> tuple[ModelSet, Leaving]:
    residency: Any = Leaving()
    state: Any = SimpleNamespace(
        adapters=SimpleNamespace(all=lambda: (), ever=lambda: ()), models=SimpleNamespace(aliases=lambda: {}, pins=dict)
    )

    def entry(recipe: Recipe, _queue: object) -> Any:
        path = tmp_path if recipe.adapters else None
        result = SimpleNamespace(id=recipe.id, recipe=recipe, path=path, pinned=False, number=1)
        result.replicas = [result]
        return result

    files: Any = SimpleNamespace(entry=entry, read_files=lambda _recipe: lambda _entry: None)
    make_queue: Callable[[Recipe], Any] = lambda _recipe: object()  # noqa: E731
    model_set = ModelSet(
        (), RecipeFiles(tmp_path), StoredRecipes((), ()), Names((), state), residency,
        make_queue, files, state, Metrics(),
        residency.register,
    )  # fmt: skip
    return model_set, residency


async def test_a_draining_model_delays_no_other(made: tuple[ModelSet, Leaving]) -> None:
    model_set, residency = made
    old, new = recipe("old", "chat"), recipe("new", "embed")
    await model_set.reload([old])
    removing = asyncio.create_task(model_set.reload([]))
    while not model_set.is_leaving("old"):
        await asyncio.sleep(0)
    await asyncio.wait_for(model_set.reload([new]), 200)
    assert set(residency.entries) == {"old", "new"}
    assert model_set.recipe("old") is None
    assert not removing.done()
    residency.may_go["old"].set()
    await asyncio.wait_for(removing, 200)
    assert set(residency.entries) == {"new"}


async def test_a_removal_by_a_request_is_remembered_until_the_model_is_added_again(
    made: tuple[ModelSet, Leaving],
) -> None:
    model_set, residency = made
    model_set.store = store = SimpleNamespace(read=lambda: StoredRecipes((), ()))  # type: ignore[assignment]
    of_file, added = recipe("of-file", "chat"), recipe("added", "embed")
    for id_ in (of_file.id, added.id):
        residency.may_go[id_] = gone = asyncio.Event()
        gone.set()
    store.read = lambda: StoredRecipes((added,), ())
    await model_set.reload([of_file])
    store.read = lambda: StoredRecipes((), ())
    await model_set.reload()
    assert [model_set.was_removed(id_) for id_ in ("of-file", "added")] == [False, True]
    await model_set.reload([])
    assert not model_set.was_removed("of-file"), "it may still be in other nodes' files"
    store.read = lambda: StoredRecipes((added,), ())
    await model_set.reload()
    assert not model_set.was_removed("added")


async def test_a_model_added_while_it_leaves_is_added_once_it_has_left(made: tuple[ModelSet, Leaving]) -> None:
    model_set, residency = made
    old = recipe("old", "chat")
    await model_set.reload([old])
    before = residency.entries["old"]
    removing = asyncio.create_task(model_set.reload([]))
    while not model_set.is_leaving("old"):
        await asyncio.sleep(0)
    await asyncio.wait_for(model_set.reload([old]), 200)
    assert residency.entries["old"] is before
    residency.may_go["old"].set()
    await asyncio.wait_for(removing, 200)
    assert residency.entries["old"] is not before
    assert model_set.recipe("old") == old


async def test_the_adapters_of_a_changed_recipe_are_registered_once_it_applies(
    made: tuple[ModelSet, Leaving], tmp_path: Path
) -> None:
    model_set, residency = made
    old, new = recipe("old", "chat"), recipe("old", "chat").model_copy(update={"version": 2})
    await model_set.reload([old])
    await model_set.reload([new])
    [exchange] = residency.exchanges
    entry = residency.entries["old"]
    entry.recipe, entry.path = new, tmp_path  # as the exchange does
    assert residency.registered == []
    exchange.done()
    await asyncio.gather(*residency.tasks)
    assert residency.registered == [new]


@pytest.mark.parametrize("by_hand", [None, False, True])
async def test_a_changed_recipe_pins_its_model_unless_that_was_done_by_hand(
    made: tuple[ModelSet, Leaving], by_hand: bool | None
) -> None:
    model_set, residency = made
    pins = {} if by_hand is None else {"old": by_hand}
    model_set._state.models.pins = lambda: pins  # type: ignore[method-assign]
    old = recipe("old", "chat")
    await model_set.reload([old])
    await asyncio.gather(*residency.tasks)
    entry = residency.entries["old"]
    entry.pinned = bool(by_hand)
    for version, pin in ((2, True), (3, False)):
        staying = old.residency.model_copy(update={"pin": pin})
        await model_set.reload([old.model_copy(update={"version": version, "residency": staying})])
        entry.recipe = residency.exchanges[-1].recipe
        residency.exchanges[-1].done()
        assert entry.pinned is (pin if by_hand is None else by_hand)
    await asyncio.gather(*residency.tasks)


async def test_downloads_of_adapters_delay_no_other_change(made: tuple[ModelSet, Leaving]) -> None:
    model_set, residency = made
    residency.may_register.clear()
    expected = RecipeAdapter.model_validate({"name": "legal", "source": {"path": "x"}})
    with_adapters = recipe("one", "chat").model_copy(update={"adapters": (expected,)})
    await asyncio.wait_for(model_set.reload([with_adapters]), PATIENCE)
    await asyncio.wait_for(model_set.reload([with_adapters, recipe("two", "embed")]), PATIENCE)
    assert (set(residency.entries), residency.registered) == ({"one", "two"}, [])
    residency.may_register.set()
    await asyncio.gather(*residency.tasks)
    assert residency.registered == [with_adapters]


async def test_a_recipe_that_waited_for_a_leaving_model_no_longer_names_it(tmp_path: Path) -> None:
    """Even if its last request ends at that moment."""
    world = World(tmp_path)
    one, other = scripted.recipe("a"), scripted.recipe("b")
    state: Any = SimpleNamespace(
        adapters=SimpleNamespace(all=lambda: (), ever=lambda: ()), models=SimpleNamespace(aliases=lambda: {}, pins=dict)
    )
    files: Any = SimpleNamespace(read_files=lambda _recipe: lambda _entry: None)
    names = Names([one, other], state)
    queue = world.queues["a"]
    model_set = ModelSet(
        (), RecipeFiles(tmp_path), StoredRecipes((), ()), names, world.manager, lambda _: queue, files, state,
        Metrics(), Leaving().register,
    )  # fmt: skip
    world.manager.entries["a"].recipe = one
    async with await queue.acquire(None) as turn:
        await model_set.reload([one.model_copy(update={"version": 2, "dtype": "float32"}), other])
        assert world.manager.exchanger.waiting("a") is not None
        drop = model_set._drop

        def drop_as_it_ends(model: str) -> asyncio.Task[None]:
            if model == "a":
                queue.release(turn.ticket)
            return drop(model)

        model_set._drop = drop_as_it_ends  # type: ignore[method-assign]
        await asyncio.wait_for(model_set.reload([other]), PATIENCE)
    assert [recipe.id for recipe in names.recipes] == ["b"]
    await world.manager.close()
    await world.pool.close()
