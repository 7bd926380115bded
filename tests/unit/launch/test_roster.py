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
from tests.unit.http.fakes import recipe


class Leaving:
    """Residency whose models leave when the test says so."""

    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}
        self.may_go: dict[str, asyncio.Event] = {}
        self.exchanger = SimpleNamespace(waiting=lambda _model: None)

    def add(self, entry: Any) -> None:
        self.entries[entry.id] = entry

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

    files: Any = SimpleNamespace(entry=entry)
    make_queue: Callable[[Recipe], Any] = lambda _recipe: object()  # noqa: E731
    register: Any = None
    roster = Roster(
        (), Shelf(tmp_path), Shelved((), ()), Names((), state), residency, {}, make_queue, files, state, Metrics(),
        register,
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
