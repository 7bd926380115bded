"""Time stamps along a request's way, and the parts of a first token's time between them."""

import ast
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import first_token
from benchmarks.gpu.report import Report
from benchmarks.load.client import Reply
from benchmarks.peers import stamps
from benchmarks.report import machine
from runtime.cli.options import root


@pytest.mark.parametrize("module", stamps.HOOKS)
def test_functions_with_stamps_exist(module: str) -> None:
    """Checked in the sources, because an import of vLLM takes seconds."""
    package = importlib.util.find_spec(module.partition(".")[0])
    assert package is not None
    assert package.submodule_search_locations
    file = Path(package.submodule_search_locations[0]).joinpath(*module.split(".")[1:]).with_suffix(".py")
    tree = ast.parse(file.read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for name, owner, method in stamps.HOOKS[module]:
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert method in {node.name for node in classes[owner].body if isinstance(node, functions)}
        assert name in stamps.ORDER


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for the stamps of processes that start during the test."""
    with first_token.stamps(tmp_path / "stamps"):
        yield tmp_path / "stamps"


def test_only_processes_that_start_inside_the_block_write_stamps(folder: Path) -> None:
    code = "from uvicorn.protocols.http import h11_impl as http; print(http.RequestResponseCycle.run_asgi.__code__)"
    command, home = [sys.executable, "-c", code], {"PYTHONPATH": str(root())}
    with_stamps = subprocess.run(command, capture_output=True, text=True, check=True)
    without = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | home)
    assert ["stamped" in done.stdout for done in (with_stamps, without)] == [True, False]


def test_the_variables_are_restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for path in (None, "/before"):
        monkeypatch.delenv("PYTHONPATH", raising=False)
        if path:
            monkeypatch.setenv("PYTHONPATH", path)
        with first_token.stamps(tmp_path):
            assert os.environ["PYTHONPATH"] == (f"{tmp_path}{os.pathsep}{path}" if path else str(tmp_path))
        assert (os.environ.get("PYTHONPATH"), stamps.VARIABLE in os.environ) == (path, False)


async def test_stamps_are_written_while_they_are_switched_on(folder: Path) -> None:
    stamper = stamps.Stamper(str(folder))

    async def send() -> str:
        return "sent"

    def step(output: dict[int, int]) -> tuple[dict[int, int], bool]:
        return output, True

    send_stamped, step_stamped = stamper.wrap("sent", send), stamper.wrap("step", step)
    await send_stamped()
    with first_token.switched_on(folder):
        assert await send_stamped() == "sent"
        for output in ({}, {0: 1}):
            assert step_stamped(output) == (output, True)
    await send_stamped()
    written = first_token.read(folder)
    assert [name for _, name in written] == ["sent", "step"], "a step without output has no stamp"
    assert written[0][0] <= written[1][0]


def reply(sent: float, arrival: float) -> Reply:
    return Reply(sent, 200, [arrival])


def test_a_first_token_is_split_by_the_stamps_within_its_time() -> None:
    own = [(1.001, "asgi"), (1.003, "core"), (1.013, "step"), (1.014, "out")]
    later = [(when + 1, name) for when, name in own]
    legs = first_token.split([(0.5, "step"), *own, (1.5, "step"), *later], [reply(1, 1.015), reply(2, 2.017)])
    assert legs == {
        "client to asgi": 1.0, "asgi to core": 2.0, "core to step": 10.0, "step to out": 1.0, "out to client": 2.0
    }  # fmt: skip


async def test_servers_take_turns_and_each_leg_has_its_median(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "record", lambda *_: {})
    report = Report(tmp_path / "today.json", "cpu")
    stampers = {name: stamps.Stamper(str(folder)) for name in ("ours", "stock")}
    servers: list[Any] = [SimpleNamespace(name=name, model="m") for name in stampers]
    turns: list[str] = []
    times = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(times)))

    async def ask(server: Any, model: str) -> Reply:
        turns.append(server.name)
        begin = float(next(times))
        for name in stamps.ORDER if server.name == "ours" else ("generate", "sent"):
            stampers[server.name].stamp(name)
        return reply(begin, float(next(times)))

    await first_token.run(report, servers, ask, folder, 4, lambda: lambda: False)
    assert turns[:4] == ["ours", "stock", "stock", "ours"]
    assert len(turns) == 2 * 2 * (first_token.WARM + 4)
    steps = report._held["steps"]
    assert steps["ttft: with stamps, ours"]["requests"] == 4
    assert set(steps["ttft: legs, ours"]["median_ms"].values()) == {1000.0}
    assert len(steps["ttft: legs, ours"]["median_ms"]) == len(stamps.ORDER) + 1
    assert not steps["ttft: legs, stock"]["ok"], "its stamps could not be placed"
