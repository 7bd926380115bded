"""Recipe files that change while the server watches them."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from registry.recipes.definition import Recipe
from runtime.gateway.launch import reloader
from runtime.gateway.launch.reloader import RecipeReloader
from runtime.gateway.launch.views import ReloadedView
from tests.eventually import PATIENCE

RECIPE = "id: {}\nversion: 1\ntask: embed\nsource: {{path: x}}\nengine: {{name: sentence-transformers}}\n"


class Follower:
    """A roster that keeps which models it was to follow."""

    def __init__(self) -> None:
        self.faults: tuple[str, ...] = ()
        self.came: asyncio.Queue[list[str]] = asyncio.Queue()
        self.fails = False
        self.leaving: list[asyncio.Task[None]] = []

    async def follow(self, models: tuple[Recipe, ...]) -> Any:
        self.came.put_nowait([recipe.id for recipe in models])
        if self.fails:
            raise OverflowError("what nobody has thought of")
        return SimpleNamespace(recipes=models), self.leaving


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "recipes").mkdir()
    return tmp_path / "recipes" / "r.yaml"


@pytest.fixture(params=["its file", "its folder"])
async def follower(
    request: pytest.FixtureRequest, file: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Follower]:
    monkeypatch.setattr(reloader, "POLL_SECONDS", 0.01)
    file.write_text(RECIPE.format("first"))
    follower: Any = Follower()

    async def route(_: object) -> None: ...

    watched = file if request.param == "its file" else file.parent
    watcher = RecipeReloader(follower, [watched], route, lambda _: None)
    looked = asyncio.Event()
    marks = watcher._marks
    loop = asyncio.get_running_loop()

    def look() -> Any:
        found = marks()
        loop.call_soon_threadsafe(looked.set)
        return found

    monkeypatch.setattr(watcher, "_marks", look)
    watching = asyncio.create_task(watcher.watch())
    await asyncio.wait_for(looked.wait(), PATIENCE)
    yield follower
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching


def save(file: Path, model: str) -> None:
    """As editors do: a new file in the place of the old one."""
    new = file.with_name("new")
    new.write_text(RECIPE.format(model))
    os.replace(new, file)


async def follows(follower: Follower) -> list[str]:
    return await asyncio.wait_for(follower.came.get(), PATIENCE)


async def test_each_save_counts(follower: Follower, file: Path) -> None:
    for model in ("second", "third", "fourth"):
        save(file, model)
        assert await follows(follower) == [model]


async def test_a_change_counts_while_a_model_still_leaves(follower: Follower, file: Path) -> None:
    """Until its last request had ended, no other change was read."""
    follower.leaving = [asyncio.create_task(asyncio.Event().wait())]  # type: ignore[list-item]
    for model in ("second", "third"):
        save(file, model)
        assert await follows(follower) == [model]
    follower.leaving.pop().cancel()


async def test_what_was_read_first_does_not_count_last(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When two read at once, such as a SIGHUP beside the watcher, the slower one had the older files count."""
    follower: Any = Follower()

    async def route(_: object) -> None: ...

    reload = RecipeReloader(follower, [file], route, lambda _: None)
    read, has_read, gate = reload._read, asyncio.Event(), asyncio.Event()

    async def slowly() -> Any:
        found = await read()
        has_read.set()
        await gate.wait()
        return found

    file.write_text(RECIPE.format("first"))
    monkeypatch.setattr(reload, "_read", slowly)
    slow = asyncio.create_task(reload.reload())
    await asyncio.wait_for(has_read.wait(), PATIENCE)
    file.write_text(RECIPE.format("second"))
    monkeypatch.setattr(reload, "_read", read)
    quick = asyncio.create_task(reload.reload())
    await asyncio.sleep(0.1)
    gate.set()
    await asyncio.wait_for(asyncio.gather(slow, quick), PATIENCE)
    assert [await follows(follower), await follows(follower)] == [["first"], ["second"]]


async def test_a_folder_that_was_taken_away_counts_once_it_is_back(follower: Follower, file: Path) -> None:
    away = file.parent.with_name("away")
    file.parent.rename(away)
    while not follower.faults:
        await asyncio.sleep(0.01)
    save(away / file.name, "second")
    away.rename(file.parent)
    assert await follows(follower) == ["second"]


async def test_a_reading_that_fails_is_not_the_last(follower: Follower, file: Path) -> None:
    follower.fails = True
    save(file, "second")
    assert await follows(follower) == ["second"]
    follower.fails = False
    save(file, "third")
    assert await follows(follower) == ["third"]


async def test_a_look_that_fails_is_not_the_last(
    follower: Follower, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def fails(*_: object) -> NoReturn:
        loop.call_soon_threadsafe(failed.set)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "glob", fails)
        await asyncio.wait_for(failed.wait(), PATIENCE)
    save(file, "second")
    while await follows(follower) != ["second"]:  # the first one, where a reading met the fault, too
        pass


async def test_files_without_a_model_are_no_fault(file: Path) -> None:
    """All models had left, and it was told that the recipes have faults and everything is as it was."""
    follower: Any = Follower()

    async def route(_: object) -> None: ...

    reload = RecipeReloader(follower, [file.parent], route, lambda _: None).reload
    assert await reload() == ReloadedView(changed=True, models=[], faults=[])
    file.write_text(RECIPE.format("first"))
    assert await reload() == ReloadedView(changed=True, models=["first"], faults=[])
    file.write_text("id: broken")
    found = await reload()
    assert (found.changed, found.models, bool(found.faults)) == (False, [], True)


async def test_a_front_reads_no_models(file: Path) -> None:
    """A reload had it serve models, for which it has no slot."""
    follower: Any = Follower()

    async def route(_: object) -> None: ...

    file.write_text(RECIPE.format("first"))
    reload = RecipeReloader(follower, [file.parent], route, lambda _: None, with_models=False).reload
    assert await reload() == ReloadedView(changed=True, models=[], faults=[])
