"""Models come and go beside one that finishes its last requests."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch.shelf import Shelf, Shelved
from registry.errors import RoundhouseError
from registry.recipes.definition import Recipe
from runtime.gateway.launch.roster import Roster
from runtime.gateway.metrics import Metrics
from runtime.gateway.names import Names
from runtime.residency.exchanger import RecipeExchange
from tests.unit.http.fakes import recipe


class Leaving:
    """Residency whose models leave when the test says so."""

    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}
        self.may_go: dict[str, asyncio.Event] = {}
        self.exchanger = SimpleNamespace(waiting=lambda _model: None)
        self.exchanges: list[RecipeExchange] = []
        self.registered: list[Recipe] = []

    def add(self, entry: Any) -> None:
        self.entries[entry.id] = entry

    def exchange(self, _: Any, exchange: RecipeExchange) -> None:
        self.exchanges.append(exchange)

    async def register(self, recipe: Recipe) -> None:
        self.registered.append(recipe)

    async def remove(self, entry: Any, error: RoundhouseError) -> None:
        await self.may_go.setdefault(entry.id, asyncio.Event()).wait()
        del self.entries[entry.id]


@pytest.fixture
def made(tmp_path: Path) -> tuple[Roster, Leaving]:
    residency: Any = Leaving()
    state: Any = SimpleNamespace(
        adapters=SimpleNamespace(all=lambda: (), ever=lambda: ()), models=SimpleNamespace(aliases=lambda: {})
    )

    def entry(recipe: Recipe, _queue: object) -> Any:
        return SimpleNamespace(id=recipe.id, recipe=recipe, path=None, pinned=False)

    files: Any = SimpleNamespace(entry=entry, look=lambda _recipe: lambda _entry: None)
    make_queue: Callable[[Recipe], Any] = lambda _recipe: object()  # noqa: E731
    roster = Roster(
        (), Shelf(tmp_path), Shelved((), ()), Names((), state), residency, {}, make_queue, files, state, Metrics(),
        residency.register,
    )  # fmt: skip
    return roster, residency


async def test_a_model_that_drains_holds_no_other_back(made: tuple[Roster, Leaving]) -> None:
    roster, residency = made
    old, new = recipe("old", "chat"), recipe("new", "embed")
    await roster.read_again([old])
    removing = asyncio.create_task(roster.read_again([]))
    while not roster.leaves("old"):
        await asyncio.sleep(0)
    await asyncio.wait_for(roster.read_again([new]), 200)
    assert set(residency.entries) == {"old", "new"}
    assert roster.recipe("old") is None
    assert not removing.done()
    residency.may_go["old"].set()
    await asyncio.wait_for(removing, 200)
    assert set(residency.entries) == {"new"}


async def test_one_that_is_wanted_again_comes_once_it_has_left(made: tuple[Roster, Leaving]) -> None:
    roster, residency = made
    old = recipe("old", "chat")
    await roster.read_again([old])
    before = residency.entries["old"]
    removing = asyncio.create_task(roster.read_again([]))
    while not roster.leaves("old"):
        await asyncio.sleep(0)
    await asyncio.wait_for(roster.read_again([old]), 200)
    assert residency.entries["old"] is before
    residency.may_go["old"].set()
    await asyncio.wait_for(removing, 200)
    assert residency.entries["old"] is not before
    assert roster.recipe("old") == old


async def test_the_adapters_of_a_changed_recipe_are_registered_once_it_counts(
    made: tuple[Roster, Leaving], tmp_path: Path
) -> None:
    roster, residency = made
    old, new = recipe("old", "chat"), recipe("old", "chat").model_copy(update={"version": 2})
    await roster.read_again([old])
    await roster.read_again([new])
    [exchange] = residency.exchanges
    entry = residency.entries["old"]
    entry.recipe, entry.path = new, tmp_path  # as the exchange does
    assert residency.registered == []
    exchange.done()
    while not residency.registered:
        await asyncio.sleep(0)
    assert residency.registered == [new]
