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
    """Records the models of each reload."""

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
    """Replace the file by a new one, as editors do."""
    new = file.with_name("new")
    new.write_text(RECIPE.format(model))
    os.replace(new, file)


async def follows(follower: Follower) -> list[str]:
    return await asyncio.wait_for(follower.came.get(), PATIENCE)


async def test_each_save_is_noticed(follower: Follower, file: Path) -> None:
    for model in ("second", "third", "fourth"):
        save(file, model)
        assert await follows(follower) == [model]


async def test_a_change_is_applied_while_a_model_still_leaves(follower: Follower, file: Path) -> None:
    """Other changes do not wait for its last request."""
    follower.leaving = [asyncio.create_task(asyncio.Event().wait())]  # type: ignore[list-item]
    for model in ("second", "third"):
        save(file, model)
        assert await follows(follower) == [model]
    follower.leaving.pop().cancel()


async def test_an_earlier_reading_is_not_applied_last(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a SIGHUP and the watcher read at once, the slower one must not apply older files."""
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


async def test_a_removed_folder_is_read_again_once_it_is_back(follower: Follower, file: Path) -> None:
    away = file.parent.with_name("away")
    file.parent.rename(away)
    while not follower.faults:
        await asyncio.sleep(0.01)
    save(away / file.name, "second")
    away.rename(file.parent)
    assert await follows(follower) == ["second"]


async def test_a_failed_reading_is_repeated(follower: Follower, file: Path) -> None:
    follower.fails = True
    save(file, "second")
    assert await follows(follower) == ["second"]
    follower.fails = False
    save(file, "third")
    assert await follows(follower) == ["third"]


async def test_watching_goes_on_after_a_failed_check(
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


async def test_files_without_models_are_no_fault(file: Path) -> None:
    """It used to be logged as faulty recipes that change nothing, although all models had left."""
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
