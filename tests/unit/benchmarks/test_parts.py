"""Workload, peers' flags, generated adapters."""

import asyncio
import importlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest
from typer.testing import CliRunner

from benchmarks import harness, models, run
from benchmarks.harness import Bench, RunSettings
from benchmarks.load import client_cost
from benchmarks.load.client import Reply
from benchmarks.load.clients import Cell
from benchmarks.load.workload import Workload
from benchmarks.pairs import in_pairs
from benchmarks.peers import processes, servers
from benchmarks.peers.servers import Server, vllm_flags
from benchmarks.report import environment
from benchmarks.report.generated import size, write_adapters, write_model
from benchmarks.tenants import layer
from models.chat import settings as chat_settings
from registry.recipes.loading import load_recipes
from runtime.cli.local.host import Kind

STARTER = Path(__file__).parents[3] / "recipes" / "starter" / "starter-chat.yaml"


def test_a_workload_is_seeded_and_never_repeats_itself() -> None:
    first, second = Workload(1), Workload(1)
    texts = [first.text(6) for _ in range(500)]
    assert [second.text(6) for _ in range(500)] == texts
    assert len({text.split()[0] for text in texts}) == 500


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_peer_gets_the_flags_that_our_engine_gets(kind: Kind) -> None:
    """`vllm serve` starts in a comparison with the arguments that the chat engine passes to vLLM's parser."""
    recipe = load_recipes(STARTER)[0]
    ours = list(chat_settings._settings(recipe, Path("/weights"), kind))
    ours = ours[ours.index("--served-model-name") :]
    json_only = str(recipe.engine.flags["structured_outputs_config"])
    ours += ["--enable-auto-tool-choice", "--tool-call-parser", "pythonic", "--structured-outputs-config", json_only]
    change_no_answer = {"--disable-fastapi-docs", "--no-use-tqdm-on-load", "--enable-sleep-mode"}
    change_no_answer |= {"--scheduling-policy", "priority"}  # all requests of a comparison have the same priority
    media = ours.index("--allowed-media-domains")  # no comparison uses them
    del ours[media : media + 2]
    ours = [word for word in ours if word not in change_no_answer]
    assert sorted(vllm_flags(recipe, kind)) == sorted(ours)


@pytest.mark.parametrize("name", [*run.NAMES, *run.MORE])
def test_every_name_has_its_benchmark(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{run.MODULES.get(name, name)}").run)


def test_generated_adapters_fit_their_base_and_differ(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    base = tmp_path / "base"
    base.mkdir()
    config = {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 2,
    }  # fmt: skip
    (base / "config.json").write_text(json.dumps(config))
    one, two = write_adapters(tmp_path / "adapters", base, 2, 4)
    assert (one / "adapter_model.safetensors").read_bytes() != (two / "adapter_model.safetensors").read_bytes()
    values = 2 * 4 * (64 + 48 + 48 + 64 + 96 + 96 + 96)  # layers x rank x (width in + width out)
    assert size(one) == pytest.approx(2 * values, abs=4000)


def test_the_client_runs_ahead_of_the_servers_that_it_starts() -> None:
    code = (
        "import os, subprocess, sys; from benchmarks.report import environment\n"
        "print(environment.go_first(), environment.record()['client'], flush=True)\n"
        "subprocess.run([sys.executable, '-c', 'import os; print(os.sched_getscheduler(0))'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, server = done.stdout.splitlines()
    assert first in ("True ahead of the servers", "False fair")
    assert int(server) == os.SCHED_OTHER


def test_the_peak_of_a_small_process_is_its_own() -> None:
    """The kernel's `ru_maxrss` includes the larger peak of the process that started it."""
    code = (
        "from benchmarks.tenants.layer import _peak\n"
        "before = _peak(); held = bytearray(b'.') * (40 * 2**20); print(_peak() - before)"
    )
    held = bytearray(b".") * (600 * 2**20)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 39 <= float(done.stdout) <= 60
    assert held


def test_a_turn_waits_for_a_server_that_still_computes_after_its_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "REST_SECONDS", 0.001)
    readings = itertools.count(0.0, 10.0)  # always ten seconds of CPU more than at the last reading
    monkeypatch.setattr(processes, "cpu_seconds", lambda _pid: next(readings))
    assert not asyncio.run(processes.come_to_rest([1], within=0.05))
    falls_silent = itertools.chain([0.0, 10.0, 20.0, 30.0], itertools.repeat(30.0))
    monkeypatch.setattr(processes, "cpu_seconds", lambda _pid: next(falls_silent))
    assert asyncio.run(processes.come_to_rest([1], within=200))
    assert next(falls_silent) == 30.0


def test_a_kernel_that_pages_out_idle_memory_is_noticed(tmp_path: Path) -> None:
    assert not environment.pages_out(tmp_path)
    scheme = tmp_path / "0" / "contexts" / "0" / "schemes" / "0"
    scheme.mkdir(parents=True)
    (scheme / "action").write_text("pageout\n")
    (tmp_path / "0" / "state").write_text("off\n")
    assert not environment.pages_out(tmp_path)
    (tmp_path / "0" / "state").write_text("on\n")
    assert environment.pages_out(tmp_path)


def test_a_run_starts_without_leftovers_of_another(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    requested = ["--smoke", "--tiny", "--keep", str(tmp_path), "client_cost"]
    done = CliRunner().invoke(run.app, requested, env={"COLUMNS": "600"})
    assert (done.exit_code, "is not empty" in done.output) == (2, True)


@pytest.mark.parametrize("failed", [0, 2])
def test_a_run_with_failed_requests_exits_with_an_error(monkeypatch: pytest.MonkeyPatch, failed: int) -> None:
    """It used to exit with 0 and to mention them only in its last line."""

    async def measure(bench: Bench) -> None:
        bench.count("roundhouse", Cell([Reply(0.0, error="HTTP 500")] * failed + [Reply(0.0)], 1.0))

    monkeypatch.setattr(client_cost, "run", measure)
    monkeypatch.setattr(environment, "go_first", lambda: True)
    stopping = signal.getsignal(signal.SIGTERM)
    done = CliRunner().invoke(run.app, ["--smoke", "--tiny", "client_cost"])
    signal.signal(signal.SIGTERM, stopping)
    assert json.loads(done.stdout.splitlines()[-1])["benchmarks"]["client_cost"]["failures"] == failed
    assert (done.exit_code, "client_cost: 2 failed: roundhouse: HTTP 500 (2)" in done.stderr) == (
        failed > 0,
        failed > 0,
    )


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--model", "real", "speech"], "leave out speech"),
        (["--model", "real", "--tiny"], "choose --tiny or --model real"),
        (["--model", "real"], "scripts/install-clients models"),
        (["--model", "huge"], "starter"),
    ],
)
def test_benchmarks_that_cannot_use_the_real_model_are_refused(
    monkeypatch: pytest.MonkeyPatch, words: list[str], fault: str
) -> None:
    monkeypatch.setattr(models, "real_file", lambda: None)
    done = CliRunner().invoke(run.app, words, env={"COLUMNS": "300"})
    assert (done.exit_code, fault in done.stderr) == (2, True)


def test_the_real_model_has_its_recipe_with_the_requested_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = write_model(tmp_path / "weights", hidden=32, ffn=64, layers=1)
    monkeypatch.setattr(models, "_converted", lambda _: weights)
    settings = RunSettings(quick=True, tiny=False, smoke=False, seed=0, work=tmp_path, real=True)
    chat = models.chat(settings, tmp_path / "recipes", device=3, host=7)
    assert (chat.recipe.id, chat.path, settings.model) == ("smollm2", weights, "real")
    assert (chat.recipe.memory.adapters.device, chat.recipe.memory.adapters.host) == (3, 7)


def test_the_error_of_a_separate_process_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        processes.figures_of(layer.MODULE, "nothing")
    assert "report FOLDER" in capfd.readouterr().err


def test_a_process_that_has_ended_counts_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Process:
        def __init__(self, held: int | None) -> None:
            self._held = held

        def memory_info(self) -> SimpleNamespace:
            if self._held is None:
                raise psutil.NoSuchProcess(1)
            return SimpleNamespace(rss=self._held)

    monkeypatch.setattr(processes, "family", lambda _pid: [Process(3), Process(None), Process(4)])
    assert processes.resident(1) == 7


async def test_a_pair_that_begins_in_anothers_turn_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(_pids: object) -> bool:
        return False

    async def load(_server: Server) -> Cell:
        body = bytearray(b'{"usage":{"completion_tokens":3}}')
        return Cell([Reply(10.0, 200, [10.5], 1, body=body)], 1.0, 0.0, 0.0)

    monkeypatch.setattr(processes, "come_to_rest", busy)
    one, other = (server_of(name) for name in ("one", "other"))
    bench = Bench("test", RunSettings(quick=True, tiny=True, smoke=True, seed=0, work=tmp_path))
    await in_pairs(bench, "keys", one, other, load, 1)
    reported = [f"a turn of {name} began while other servers were still busy" for name in ("one", "other")]
    assert bench.notes == reported


@pytest.mark.parametrize("ports", ["32768\t60999", "1024 65535", "15001 60999", ""])
def test_a_servers_port_is_outside_the_range_of_outgoing_connections(
    ports: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text(ports)
    monkeypatch.setattr(servers, "CONNECTIONS", tmp_path / "range")
    found = servers.free_port()
    with socket.socket() as own:
        own.bind(("127.0.0.1", found))
    if ports.startswith("32768"):
        assert servers.LEAST_PORT <= found < 32768


async def test_each_round_has_new_servers_and_every_other_one_begins_with_the_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def start_all(stack: ExitStack, started: Sequence[Server]) -> None:
        for server in started:
            stack.callback(seen.append, f"{server.name} stops")

    async def measure(started: Sequence[Server], number: int) -> None:
        seen.extend(f"{server.name} in round {number}" for server in started)

    monkeypatch.setattr(harness, "start_all", start_all)
    bench = Bench("test", RunSettings(quick=True, tiny=True, smoke=False, seed=0, work=tmp_path))
    await bench.starts(lambda start: [server_of(f"ours-{start}"), server_of(f"theirs-{start}")], measure)
    assert seen == [
        "ours-0 in round 0", "theirs-0 in round 0", "theirs-0 stops", "ours-0 stops",
        "theirs-1 in round 1", "ours-1 in round 1", "ours-1 stops", "theirs-1 stops",
    ]  # fmt: skip


def server_of(name: str) -> Server:
    return cast(Server, SimpleNamespace(name=name, pid=1))
