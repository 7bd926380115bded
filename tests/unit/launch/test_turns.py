"""Many requests of one team to add models: another team waits for one of them at most."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from launch.checks.checker import FileChecker
from launch.checks.process import CheckResult
from launch.request import ModelRequest
from registry.errors import QueueFull, Unfit
from registry.recipes.definition import Recipe
from tests.unit.launch.test_additions import additions
from tests.unit.registry.makers import recipe


async def test_teams_take_turns_at_checks_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    checker, checked, gate = FileChecker(), list[str](), asyncio.Event()

    async def run(_: Recipe, folder: Path) -> CheckResult:
        await gate.wait()
        checked.append(folder.name)
        return CheckResult()

    monkeypatch.setattr("launch.checks.checker._mark", lambda *_: None)
    monkeypatch.setattr(checker, "_run", run)
    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(checker.check(recipe("m"), Path(f"a{number}"), "a"))
            await asyncio.sleep(0.01)  # each mark is read in a thread
        group.create_task(checker.check(recipe("m"), Path("b"), "b"))
        while "b" not in checker._turns._waiting:
            await asyncio.sleep(0.001)
        gate.set()
    assert checked.index("b") <= 2, checked


async def test_a_team_that_asks_for_many_proposals_leaves_threads_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, adding = additions(tmp_path, 1 << 30)
    gate = threading.Event()

    def propose(request: ModelRequest) -> Any:
        if request.team == "a":
            gate.wait()
        raise Unfit(f"for {request.team}", (), code="source_not_found")

    monkeypatch.setattr(adding, "_propose", propose)
    theirs = [asyncio.create_task(adding.preview(ModelRequest("/m", team="a"))) for _ in range(40)]
    try:
        with pytest.raises(Unfit, match="for b"):
            await adding.preview(ModelRequest("/m", team="b"))
    finally:
        gate.set()
    failures = await asyncio.gather(*theirs, return_exceptions=True)
    assert {type(failure) for failure in failures} == {Unfit, QueueFull}
