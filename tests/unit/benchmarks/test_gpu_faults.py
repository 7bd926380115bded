"""A failure in a timed part of the acceptance run costs only that part, and no figure that was written."""

import asyncio
import errno
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import httpx
import pytest

from benchmarks.gpu import bars, correctness, timed
from benchmarks.gpu import report as report_module
from benchmarks.gpu.report import OtherRun, Report
from benchmarks.gpu.shapes import SHAPES
from benchmarks.gpu.timed import TimedRun
from benchmarks.load.budget import Budget, TimedOut, run_within
from benchmarks.load.client import Reply
from benchmarks.peers.servers import NotStarted, Server
from benchmarks.report import machine
from models.chat.vllm import tuned
from registry.storage.files import write_text
from runtime.cli.options import root
from tests.eventually import eventually

Part = Callable[[TimedRun], Awaitable[None]]


class Run:
    """A run of the 8B shape whose parts are scripted."""

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, *, resume: bool = False, stock: bool = False, **parts: Part
    ) -> None:
        self.file, self.ran = folder / "today.json", list[str]()
        patch.setattr(machine, "record", lambda *_: {})
        report = Report(self.file, "cpu", 0.01, resume=resume)
        self.timed = TimedRun(report, SHAPES["8b"], "cpu", folder, Budget(10_000), stock=stock)
        for name in timed.PARTS:
            patch.setattr(self.timed, f"_{name}", self._part(name, parts.get(name)))

    def _part(self, name: str, part: Part | None) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            self.ran.append(name)
            if part is not None:
                await part(self.timed)
            self.timed._report.add(f"{name}: figures", True)

        return run

    @property
    def results(self) -> dict[str, Any]:
        held: dict[str, Any] = json.loads(self.file.read_text())
        return held


async def fail(_: TimedRun) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def has_server(run: TimedRun) -> None:
    run._servers = [SimpleNamespace(is_running=True, pid=4_194_304)]  # type: ignore[list-item]


def sleeping() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["sleep", "600"])


async def test_a_part_that_hangs_is_ended_with_the_processes_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that blocks the event loop, as the start of a server does."""
    with sleeping() as other:  # a process of an earlier part, which must survive

        async def hang(_: TimedRun) -> None:
            sleeping().wait()
            raise NotStarted("it ended")

        run = Run(tmp_path, monkeypatch, oracle=hang)
        monkeypatch.setattr(run.timed, "_limit", lambda needs: 0.3 if needs == timed.SECONDS["oracle"] else 600.0)
        await run.timed.run(["oracle", "sleep"])
        assert other.poll() is None
        other.kill()
    steps = run.results["steps"]
    assert "not done after" in steps["oracle ended early"]["error"]
    assert steps["sleep: figures"]["ok"]
    assert run.results["finished"] == ["sleep"]


async def test_this_process_collects_no_garbage_while_gaps_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection takes longer than the longest gap may be."""
    collects = set[bool]()

    async def ask(*_: object) -> None:
        collects.add(gc.isenabled())
        await asyncio.sleep(0)

    async def ask_until(over: asyncio.Event, *_: object) -> list[Reply]:
        arrivals = [time.perf_counter()]
        await over.wait()
        collects.add(gc.isenabled())
        return [Reply(0.0, arrivals=[*arrivals, time.perf_counter()])]

    monkeypatch.setattr(timed, "ask_until", ask_until)
    run = Run(tmp_path, monkeypatch).timed
    monkeypatch.setattr(run, "_ask", ask)
    server = Stands("roundhouse", "m", tmp_path)
    assert (await run._gaps(server, ["m"], 8, 0.01))["gaps"] == timed.STREAMS
    assert collects == {False}
    assert gc.isenabled()


async def test_no_storm_begins_that_the_budget_would_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def up() -> list[Server]:
        return [Stands("roundhouse", "m", tmp_path)]

    run = Run(tmp_path, monkeypatch)
    run.timed._budget = Budget(timed.STORM)
    monkeypatch.setattr(run.timed, "_up", up)
    await TimedRun._storm(run.timed)
    assert len(run.results["left_out"]) == 5


async def test_the_storms_that_have_an_aim_come_before_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    async def up() -> list[Server]:
        return [Stands("roundhouse", "m", tmp_path), Stands("vllm serve", "m", tmp_path)]

    async def gaps(*_: object) -> dict[str, float]:
        nonlocal now
        now += timed.STORM
        return {}

    run = Run(tmp_path, monkeypatch)
    run.timed._budget = Budget(len(bars.GAPS) * timed.STORM, lambda: now)
    monkeypatch.setattr(run.timed, "_up", up)
    monkeypatch.setattr(run.timed, "_gaps", gaps)
    await TimedRun._storm(run.timed)
    assert run.results["steps"].keys() == {f"storm: {kind}, roundhouse" for kind in bars.GAPS}


@pytest.mark.parametrize(
    ("device", "state", "ok"), [("cuda:0", "asleep", True), ("cuda:0", "absent", False), ("cpu", "absent", True)]
)
async def test_a_model_that_is_unloaded_on_a_gpu_has_not_slept(
    device: str, state: str, ok: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(Stands):
        def __init__(self, model: str, folder: Path, *_: object) -> None:
            super().__init__("roundhouse", model, folder)
            answer = httpx.MockTransport(lambda _: httpx.Response(200, json={"state": state}))
            self.http = httpx.Client(base_url="http://here", transport=answer)

        def command(self) -> list[str]:
            return []

    async def ask(*_: object) -> SimpleNamespace:
        return SimpleNamespace(ttft=0.5)

    monkeypatch.setattr(machine, "record", lambda *_: {})
    monkeypatch.setattr(timed, "Roundhouse", Away)
    report = Report(tmp_path / "today.json", "cpu", 0.01)
    run = TimedRun(report, SHAPES["8b"], device, tmp_path, Budget(10))
    monkeypatch.setattr(run, "_ask", ask)
    await run._sleep()
    assert json.loads((tmp_path / "today.json").read_text())["steps"]["sleep: 1"]["ok"] is ok


async def test_no_process_is_killed_once_the_next_part_may_begin() -> None:
    killed = list[str]()

    def kill() -> None:
        time.sleep(0.3)  # as long as it takes to list all processes
        killed.append("all")

    with pytest.raises(TimedOut):
        await run_within(0.01, asyncio.sleep(600), kill)
    assert killed


async def test_a_part_that_fails_affects_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, monkeypatch, sleep=fail)
    await run.timed.run(["sleep", "encoders"])
    assert "No space left" in run.results["steps"]["sleep ended early"]["error"]
    assert run.results["finished"] == ["encoders"]


async def test_the_cause_that_a_server_gives_is_in_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It need not be looked up in a log on a machine that is gone by then."""

    async def load(_: TimedRun) -> None:
        body = {"error": {"message": "vLLM's engine did not start: no kernel image"}}
        request = httpx.Request("POST", "http://127.0.0.1:1/v1/models/m/load")
        httpx.Response(500, json=body, request=request).raise_for_status()

    run = Run(tmp_path, monkeypatch, oracle=load)
    await run.timed.run(["oracle"])
    assert "500" in run.results["steps"]["oracle ended early"]["error"]
    assert "did not start: no kernel image" in run.results["steps"]["oracle ended early"]["error"]


async def test_parts_whose_server_did_not_start_do_not_start_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(_: TimedRun) -> None:
        raise NotStarted("roundhouse ended with 1")

    run = Run(tmp_path, monkeypatch, tiers=start)
    await run.timed.run(["tiers", "mixed", "storm", "oracle"])
    assert run.ran == ["tiers", "oracle"]
    assert run.results["left_out"].keys() == {"mixed", "storm"}


async def test_servers_that_died_are_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[int]()

    async def die(run: TimedRun) -> None:
        run._servers[0].is_running = False  # type: ignore[misc]
        raise timed.Failed("connection lost")

    async def look(run: TimedRun) -> None:
        seen.append(len(run._servers))

    run = Run(tmp_path, monkeypatch, tiers=has_server, storm=die, mixed=look)
    await run.timed.run(["tiers", "storm", "mixed"])
    assert run.ran == ["tiers", "storm", "mixed"]
    assert seen == [0]


async def test_servers_that_are_being_killed_serve_no_other_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with much memory lives on for a moment after SIGKILL."""
    seen = list[int]()

    async def hang(_: TimedRun) -> None:
        await asyncio.sleep(600)

    async def look(run: TimedRun) -> None:
        seen.append(len(run._servers))

    run = Run(tmp_path, monkeypatch, tiers=has_server, storm=hang, mixed=look)
    monkeypatch.setattr(run.timed, "_limit", lambda needs: 0.1 if needs == timed.SECONDS["storm"] else 600.0)
    monkeypatch.setattr(run.timed, "_kill_part", lambda: lambda: None)
    await run.timed.run(["tiers", "storm", "mixed"])
    assert run.ran == ["tiers", "storm", "mixed"]
    assert seen == [0]


class Stands(Server):
    """A server that is ready at once."""

    def launch(self) -> None:
        return

    def __enter__(self) -> Self:
        return self


class Dies(Server):
    """A server whose process ends as it starts."""

    def command(self) -> list[str]:
        return [sys.executable, "-S", "-c", "raise SystemExit('no kernel image is available')"]


class Hangs(Server):
    """A server whose start never ends."""

    def command(self) -> list[str]:
        return ["sleep", "600"]


async def test_a_peer_that_hangs_at_its_start_affects_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "START", 0.2)
    run = Run(tmp_path, monkeypatch, stock=True)
    servers = [Stands("roundhouse", "m", tmp_path), Hangs("vllm serve", "m", tmp_path)]
    assert await run.timed._start(servers) == servers[:1]
    assert "was not ready" in run.results["steps"]["timed: start, vllm serve"]["error"]
    assert not servers[1].is_running
    assert await run.timed._start([Stands(name, "m", tmp_path) for name in ("roundhouse", "vllm serve")])
    assert run.results["steps"]["timed: start, vllm serve"]["ok"], "as in a run that resumes"


async def test_parts_without_stock_servers_get_no_extra_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = list[float]()

    async def run_within(seconds: float, work: Any, _: object) -> None:
        limits.append(seconds)
        await work

    monkeypatch.setattr(timed, "run_within", run_within)
    run = Run(tmp_path, monkeypatch, stock=True, tiers=has_server)
    await run.timed.run(["oracle", "tiers", "storm"])
    oracle, storm = timed.SECONDS["oracle"], timed.SECONDS["storm"]
    assert limits[::2] == [timed.PATIENCE * oracle, 2 * timed.PATIENCE * storm]


async def test_the_run_goes_on_without_a_stock_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, monkeypatch, stock=True)
    servers = [Stands("roundhouse", "m", tmp_path), Dies("vllm serve", "m", tmp_path)]
    assert await run.timed._start(servers) == servers[:1]
    step = run.results["steps"]["timed: start, vllm serve"]
    assert not step["ok"]
    assert "no kernel image" in step["error"]
    with pytest.raises(NotStarted):
        await run.timed._start([Dies("roundhouse", "m", tmp_path)])


async def test_a_resumed_run_leaves_out_parts_with_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tuned.VARIABLE, "")  # so that it is put back
    del os.environ[tuned.VARIABLE]
    first = Run(tmp_path, monkeypatch, mixed=fail)
    await first.timed.run(["tune", "tiers", "mixed"])
    second = Run(tmp_path, monkeypatch, resume=True)
    await second.timed.run(["tune", "tiers", "mixed", "sleep"])
    assert second.ran == ["mixed", "sleep"]
    assert os.environ[tuned.VARIABLE] == str(tmp_path), "kernels tuned by an earlier call are used"
    assert second.results["steps"].keys() == {f"{name}: figures" for name in ("tune", "tiers", "mixed", "sleep")}
    assert second.results["finished"] == ["tune", "tiers", "mixed", "sleep"]
    assert second.timed._report.ok
    assert len(second.results["resumed"]) == 1
    monkeypatch.delenv(tuned.VARIABLE)
    await Run(tmp_path, monkeypatch, resume=True).timed.run(["speech"])
    assert os.environ[tuned.VARIABLE] == str(tmp_path), "also if this call does not name that part"
    anew = Run(tmp_path, monkeypatch)
    await anew.timed.run(["tiers"])
    assert anew.results["finished"] == ["tiers"]


async def test_what_was_tuned_is_set_aside_if_a_part_fails_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that were tuned may end an engine, and all parts come after them."""
    monkeypatch.setenv(tuned.VARIABLE, "")  # so that it is put back
    folders: list[str] = []

    async def tune(run: TimedRun) -> None:
        run._use_tuned(tmp_path)

    async def end_with_tuned(run: TimedRun) -> None:
        folders.append(os.environ.get(tuned.VARIABLE, ""))
        if folders[-1]:
            raise NotStarted("no kernel image is available")

    async def end(_: TimedRun) -> None:
        raise NotStarted("it ended")

    first = Run(tmp_path, monkeypatch, tune=tune, oracle=end_with_tuned, storm=end)
    await first.timed.run(["tune", "sleep", "oracle", "tiers", "storm"])
    assert first.ran == ["tune", "sleep", "oracle", "oracle", "tiers", "storm"], "storm is not run twice"
    assert folders == [str(tmp_path), ""]
    assert "no kernel image" in first.results["steps"]["tune: set aside"]["error"]
    assert "oracle ended early" not in first.results["steps"]
    second = Run(tmp_path, monkeypatch, resume=True, storm=end_with_tuned)
    await second.timed.run(["tune", "oracle", "storm"])
    assert (second.ran, folders[2:]) == (["storm"], [""])


async def test_what_was_tuned_is_kept_if_the_budget_ends_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tuned.VARIABLE, "")  # so that it is put back

    now = [0.0]

    async def outlast(_: TimedRun) -> None:
        now[0] = 1000.0
        raise TimedOut("not done after 500 s")

    run = Run(tmp_path, monkeypatch, storm=outlast)
    run.timed._use_tuned(tmp_path)
    run.timed._budget = Budget(500, lambda: now[0])
    await run.timed.run(["storm"])
    assert run.results["steps"].keys() == {"storm ended early"}
    assert os.environ[tuned.VARIABLE] == str(tmp_path)


async def test_what_was_tuned_is_set_aside_if_answers_are_wrong_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tuned.VARIABLE, "")  # so that it is put back

    async def graphs(report: Report, *_: object) -> None:
        wrong = [["adapter", "question", "answer"]] if os.environ.get(tuned.VARIABLE) else []
        report.add("twenty adapters in one crowd, with compilation and graphs", not wrong, right=200, wrong=wrong)

    monkeypatch.setattr(correctness, "graphs", graphs)
    run = Run(tmp_path, monkeypatch)
    monkeypatch.setattr(run.timed, "_oracle", lambda: TimedRun._oracle(run.timed))
    run.timed._use_tuned(tmp_path)
    await run.timed.run(["oracle"])
    assert "1 answers are wrong" in run.results["steps"]["tune: set aside"]["error"]
    assert run.results["steps"]["twenty adapters in one crowd, with compilation and graphs"]["ok"]
    assert run.results["finished"] == ["oracle"]


async def test_a_part_is_no_longer_listed_as_left_out_once_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, monkeypatch)
    run.timed._report.leave_out("storm", "no time")
    run.timed._report.leave_out("storm: base, roundhouse", "no time")
    run.timed._report.leave_out("sweep", "no time")
    await run.timed.run(["storm"])
    assert run.results["left_out"].keys() == {"sweep"}


async def test_a_part_that_left_a_piece_out_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def shorten(run: TimedRun) -> None:
        run._report.leave_out("storm: base, roundhouse", "no time is left")

    first = Run(tmp_path, monkeypatch, storm=shorten)
    await first.timed.run(["storm", "sleep"])
    second = Run(tmp_path, monkeypatch, resume=True)
    await second.timed.run(["storm", "sleep"])
    assert second.ran == ["storm"]
    assert second.results["left_out"] == {}
    assert second.results["finished"] == ["sleep", "storm"]


@pytest.mark.parametrize("key", ["commit", "gpu", "shape", "recipe"])
def test_figures_of_another_commit_card_shape_or_recipe_are_not_mixed(key: str, tmp_path: Path) -> None:
    file = tmp_path / "today.json"
    Report(file, "cpu", 0.01).add("start", True)
    held = json.loads(file.read_text())
    held["environment"][key] = "another"
    file.write_text(json.dumps(held))
    with pytest.raises(OtherRun, match=f"results of {key} another"):
        Report(file, "cpu", 0.01, resume=True)


def test_on_a_full_disk_all_figures_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    is_full = [False]

    def write_if_room(file: Path, text: str) -> None:
        if is_full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_text(file, text)

    monkeypatch.setattr(report_module, "write_text", write_if_room)
    report = Report(tmp_path / "today.json", "cpu", 0.01)
    report.add("tiers", True)
    is_full[0] = True
    report.add("storm", True, gaps=list(range(500)))
    assert "499]" in capsys.readouterr().out
    assert not report.ok
    assert json.loads((tmp_path / "today.json").read_text())["steps"].keys() == {"tiers"}
    is_full[0] = False
    report.close()
    assert report.ok
    assert json.loads((tmp_path / "today.json").read_text())["steps"].keys() == {"tiers", "storm"}


def test_the_machines_costs_are_measured_first_and_nothing_is_overwritten_without_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "today.json"
    Report(file, "cpu", 0.01)
    first = json.loads(file.read_text())
    assert (first["steps"], "byte_code" in first["environment"]) == ({}, True)
    with monkeypatch.context() as patch:
        patch.setattr(machine, "record", None)  # takes half a minute on a card, so a resumed run does without
        Report(file, "cpu", 0.01, resume=True).add("tiers", True)
    assert not (tmp_path / "today.earlier.json").exists()
    Report(file, "cpu", 0.01)
    assert json.loads(file.read_text())["steps"] == {}
    assert json.loads((tmp_path / "today.earlier.json").read_text())["steps"].keys() == {"tiers"}


ENDLESS = """
import sys
from pathlib import Path
from benchmarks.gpu.report import Report
report = Report(Path(sys.argv[1]), "cpu", 0.01)
for number in range(10**9):
    report.add(f"step {number % 200}", True, figures=list(range(300)))
"""


def test_a_killed_run_leaves_a_whole_results_file(tmp_path: Path) -> None:
    file = tmp_path / "today.json"
    command = [sys.executable, "-c", ENDLESS, str(file)]
    with subprocess.Popen(command, cwd=root(), stdout=subprocess.DEVNULL) as process:
        eventually(lambda: file.exists() and json.loads(file.read_text())["steps"])
        for _ in range(100):
            assert json.loads(file.read_text())["steps"]
        process.send_signal(signal.SIGKILL)
    assert json.loads(file.read_text())["steps"]


def test_a_run_whose_threads_hang_still_ends() -> None:
    """So do its children, one of which has the other end of the pipe that is read here to its end."""
    code = """
import asyncio, subprocess, sys, time
from benchmarks.load.budget import exit_after
child = subprocess.Popen(["sleep", "600"])
exit_after(0.2)
asyncio.run(asyncio.to_thread(time.sleep, 600))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=root(), capture_output=True, text=True, timeout=500)
    assert done.returncode == 1
    assert "did not end in time" in done.stderr
