"""The acceptance run on a GPU: its parts, and the whole run with the tiny shape on any machine."""

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors import safe_open

from benchmarks.gpu import (
    acceptance,
    correctness,
    encoder_shapes,
    encoders,
    large,
    shipped,
    timed,
    tune_lora,
    whisper_shape,
)  # fmt: skip
from benchmarks.gpu.correctness import ANSWERS, write_recipes
from benchmarks.gpu.report import Report
from benchmarks.gpu.shapes import LARGER, SHAPES, write_base
from benchmarks.gpu.timed import TimedRun
from benchmarks.load.budget import Budget
from benchmarks.load.stats import compared
from benchmarks.peers.servers import NotStarted, Roundhouse
from benchmarks.report import machine
from models import nvml
from models.flags import flag_fault
from models.speech.model import SpeechModel, WindowRequest
from models.text import loading
from registry.recipes.loading import load_recipes
from runtime.cli.options import root
from tests.fakes.clocks import Clock


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def none(device: str) -> nvml.Gpu:
        raise nvml.NoGpu("the NVIDIA driver does not answer")

    monkeypatch.setattr(nvml, "gpu", none)
    monkeypatch.setattr(sys, "argv", ["acceptance"])
    assert acceptance.main() == 2
    assert "--shape tiny" in capsys.readouterr().err


@pytest.mark.parametrize("graphs", [False, True])
def test_its_recipes_are_the_starter_model_twice(tmp_path: Path, graphs: bool) -> None:
    write_recipes(tmp_path, graphs=graphs)
    second, first = load_recipes([tmp_path])
    assert (second.id, first.id) == ("second", "starter-chat")
    assert (second.residency.sleep, second.adapters) == ("always", ())
    assert {adapter.name for adapter in first.adapters} == ANSWERS.keys()
    assert [recipe.engine.flags.get("enforce_eager", False) for recipe in (first, second)] == [not graphs] * 2


def test_the_timed_recipe_has_the_given_values(tmp_path: Path) -> None:
    shape = SHAPES["tiny"]
    words = {
        "memory.adapters.arena": "true", "residency.sleep_prepared": "true", "engine.flags.enforce_eager": "true",
        "engine.flags.compilation_config": '{"cudagraph_mode": "FULL"}',
    }  # fmt: skip
    values = {key: acceptance.recipe_value(key, text) for key, text in words.items()}
    made = large.without_weights(shape, write_base(tmp_path / "base", shape, values=False), tmp_path, values=values)
    (found,) = load_recipes([made.file])
    assert (found.memory.adapters.arena, found.residency.sleep_prepared) == (True, True)
    assert (found.engine.flags["enforce_eager"], found.engine.flags["load_format"]) == (True, "dummy")
    assert found.engine.flags["compilation_config"] == '{"cudagraph_mode": "FULL"}'
    plain = large.without_weights(shape, tmp_path / "base", tmp_path)
    assert not load_recipes([plain.file])[0].memory.adapters.arena


def test_a_run_is_resumed_after_midnight(tmp_path: Path) -> None:
    def chosen(*, resume: bool) -> str:
        return acceptance.results_file(tmp_path, "8b", datetime(2026, 12, 1, 0, 5, tzinfo=UTC), resume=resume).name

    assert chosen(resume=True) == "2026-12-01-8b.json"
    for name in ("2026-11-29-8b.json", "2026-11-30-8b.json", "2026-12-01-tiny.json"):
        (tmp_path / name).touch()
    assert [chosen(resume=True), chosen(resume=False)] == ["2026-11-30-8b.json", "2026-12-01-8b.json"]
    (tmp_path / "2026-12-01-8b.json").touch()
    assert chosen(resume=True) == "2026-12-01-8b.json"


def test_with_few_places_there_is_one_model(tmp_path: Path) -> None:
    write_recipes(tmp_path, graphs=False, places=(4, 6))
    (only,) = load_recipes([tmp_path])
    assert (only.memory.adapters.device, only.memory.adapters.host, len(only.adapters)) == (4, 6, len(ANSWERS))


def test_it_runs_again_in_the_folder_of_an_earlier_run(tmp_path: Path) -> None:
    for _ in range(2):
        correctness._server(Report(tmp_path / "today.json", "cpu"), tmp_path / "eager", "cpu", graphs=False)


def test_results_are_written_after_each_step(tmp_path: Path) -> None:
    file = tmp_path / "gpu" / "today.json"
    report = Report(file, "cpu")
    report.server("start", ["python", "-m", "x"])
    report.add("start", True, seconds=1.0)
    held = json.loads(file.read_text())
    assert (held["steps"], held["servers"]) == ({"start": {"ok": True, "seconds": 1.0}}, {"start": "python -m x"})
    assert report.ok
    report.add("answers", False)
    assert not report.ok
    result = json.loads(file.read_text())["environment"]
    assert result["versions"]["litserve"]
    assert result["command"].startswith("python -m benchmarks.gpu.acceptance")


class Standing:
    """Replaces a started server, and refuses everything except status requests."""

    def __init__(self, *_: object, **__: object) -> None:
        self.port = 1

    def __enter__(self) -> "Standing":
        return self

    def __exit__(self, *_: object) -> None:
        return


def answering(answer: Callable[[httpx.Request], httpx.Response], monkeypatch: pytest.MonkeyPatch) -> correctness.Client:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # must not be used for this machine
    client = correctness.Client(1)
    assert not client._http._mounts
    client._http = httpx.AsyncClient(base_url="http://127.0.0.1:1", transport=httpx.MockTransport(answer))
    return client


async def test_failed_answers_do_not_count_as_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(request: httpx.Request) -> httpx.Response:
        reported = {"models": [{"id": name, "bytes": 1} for name in ("starter-chat", "second")]}
        return httpx.Response(200, json=reported) if request.url.path == "/v1/status" else httpx.Response(503)

    client = answering(refused, monkeypatch)
    monkeypatch.setattr(correctness, "Client", lambda _port: client)
    monkeypatch.setattr(correctness, "_server", Standing)
    await correctness.eager(Report(tmp_path / "today.json", "cpu"), "cpu", tmp_path, 0)
    steps = json.loads((tmp_path / "today.json").read_text())["steps"]
    assert [step["ok"] for step in steps.values()] == [False] * 3


async def test_tokens_are_those_counted_by_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    text, usage = b'data: {"choices":[{"text":"abc"}]}', b'data: {"choices":[],"usage":{"completion_tokens":3}}'
    parts = [text, usage, b"data: [DONE]", b""]
    client = answering(lambda _: httpx.Response(200, content=b"\n\n".join(parts)), monkeypatch)
    assert (await client.stream("m", 3))[2] == 3
    parts[1] = b'data: {"error":{"message":"the engine died"}}'
    with pytest.raises(correctness.Wrong, match="the engine died"):
        await client.stream("m", 3)


def test_the_8b_shape_is_that_of_the_published_checkpoint() -> None:
    """Meta's Llama 3.1 8B has 8,030,261,248 parameters."""
    tensors = SHAPES["8b"].tensors()
    assert sum(int(np.prod(sides)) for sides in tensors.values()) == 8_030_261_248
    assert list(tensors)[-1] == "lm_head.weight"


def test_the_larger_shape_is_that_of_the_published_checkpoint() -> None:
    """Qwen2.5-32B has 32,763,876,352 parameters with the biases of queries, keys and values."""
    tensors = LARGER.tensors()
    assert sum(int(np.prod(sides)) for sides in tensors.values()) == 32_763_876_352
    assert tensors["model.layers.63.self_attn.k_proj.bias"] == [1024]


def test_two_hundred_questions_are_held_out_and_all_adapters_answers_differ() -> None:
    from starter_training.chat.tasks.conversations import heldout

    pairs = [(name, *pair) for name, some in correctness.QUESTIONS.items() for pair in some]
    assert (len(pairs), len(set(pairs))) == (200, 200)
    assert {len(some) for some in correctness.QUESTIONS.values()} == {10}
    for name, (_, *others) in correctness.QUESTIONS.items():
        assert set(others) <= set(heldout(name))
    assert all(question != answer for _, question, answer in pairs), "the base may repeat a question"


def test_a_generated_base_answers_in_letters(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", SHAPES["tiny"])
    letters = 0
    with safe_open(base / "model.safetensors", "pt") as file:
        assert {name: list(file.get_slice(name).get_shape()) for name in file.keys()} == SHAPES["tiny"].tensors()  # noqa: SIM118
        head = file.get_tensor("lm_head.weight").float()
        letters = int((head.abs().sum(1) > 0).sum())
        first, second = (file.get_tensor(f"model.layers.{i}.mlp.up_proj.weight").float() for i in (0, 1))
    assert 26 <= letters < 128
    assert 0.019 < float(first.std()) < 0.021
    assert not bool((first == second).any(1).all())


def test_the_large_recipe_bounds_its_steps(tmp_path: Path) -> None:
    result = large.chat(SHAPES["8b"], tmp_path, tmp_path, device=4, host=16, idle="2s").recipe
    assert (result.batching.max_tokens, result.batching.tokens_while_swapping) == (8192, 2048)
    assert (result.memory.adapters.device, result.memory.adapters.max_rank, result.dtype) == (4, 16, "bfloat16")
    assert result.residency.sleep == "always"


@pytest.mark.real
@pytest.mark.skipif(os.environ.get("GPU_ACCEPTANCE") != "1", reason="long form, ten minutes: set GPU_ACCEPTANCE=1")
def test_every_step_runs_with_the_tiny_shape(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks.gpu.acceptance", "--shape", "tiny", "--results", str(file)]
    done = subprocess.run(command, cwd=root(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    steps = json.loads(file.read_text())["steps"]
    assert list(steps) == [
        "start", "twenty adapters in one crowd", "the base does none of their tasks",
        "two models answer at once, and alike", "sleep and wake, 1", "start, with few places",
        "twenty adapters in one crowd, on four places, 1", "twenty adapters in one crowd, on four places, 2",
        "embeddings are those of a CPU", "scores are those of a CPU", "recordings are understood",
        "start, with compilation and graphs",
        "twenty adapters in one crowd, with compilation and graphs", "speed of the small model", "large, tiny",
    ]  # fmt: skip
    figures = steps["large, tiny"]["figures"]
    for server in ("roundhouse", "vllm serve"):
        for tier in ("device", "host", "disk"):
            assert f"large.{server}.{tier}.added_p99" in figures
            assert f"large, prefills.{server}.{tier}.added_p99" in figures
        assert f"large.{server}.storm.gap_longest" in figures
        assert f"mixed.{server}.ratio" in figures
    assert {name for name in figures if name.startswith("wake")}
    assert steps["large, tiny"]["series"]["large: commands"].keys() == {"roundhouse", "vllm serve"}
    assert all(bar["met"] is not None for bar in steps["large, tiny"]["bars"])


def test_the_long_rehearsal_fetches_nothing_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROUNDHOUSE_CUDA_REHEARSAL", raising=False)
    done = subprocess.run([root() / "scripts" / "install-cuda-rehearsal"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "4 GiB" in done.stderr


def timed_run(
    folder: Path, clock: Clock, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[TimedRun, list[str]]:
    """Return a run of the 8B shape whose parts take twenty seconds each and only record that they ran."""
    ran: list[str] = []
    report = Report(folder / "today.json", "cpu", 0.01)
    run = TimedRun(report, SHAPES["8b"], "cpu", folder, Budget(seconds, clock))

    def part(name: str) -> Callable[..., Coroutine[None, None, None]]:
        async def note(*_: object) -> None:
            ran.append(name)
            clock.now += 20
            if name == "mixed":
                raise timed.Failed("the engine died")

        return note

    for name in timed.PARTS:
        if hasattr(run, f"_{name}"):
            monkeypatch.setattr(run, f"_{name}", part(name))
    return run, ran


async def test_parts_that_do_not_fit_into_the_budget_are_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, ran = timed_run(tmp_path, Clock(), 235.0, monkeypatch)
    await run.run(["tiers", "mixed", "oracle", "sleep", "tune"])
    assert ran == ["tiers", "mixed", "oracle", "sleep", "tune"]
    results = json.loads((tmp_path / "today.json").read_text())
    assert not results["steps"]["mixed ended early"]["ok"]
    assert "left_out" not in results
    run, ran = timed_run(tmp_path, Clock(), 170.0, monkeypatch)
    await run.run(["tiers", "oracle", "mixed", "sleep"])
    assert ran == ["oracle", "mixed", "sleep"]
    results = json.loads((tmp_path / "today.json").read_text())
    assert results["left_out"] == {"tiers": "170 s are left, and it takes 190"}
    run, ran = timed_run(tmp_path, Clock(), 235.0, monkeypatch)
    run._stock = True
    await run.run(["tiers", "oracle"])
    assert ran == ["oracle"], "stock vLLM takes longer to start"


async def test_adapters_are_written_while_the_servers_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = timed_run(tmp_path, Clock(), 1000.0, monkeypatch)
    run._traced = False
    has_started, written = threading.Event(), list[Path]()

    def write(folder: Path, *_: object) -> list[Path]:
        assert has_started.wait(10)
        written.append(folder)
        return written

    async def start(_: object) -> list[Any]:
        has_started.set()
        raise NotStarted("roundhouse ended with 1")

    monkeypatch.setattr(timed, "write_adapters", write)
    monkeypatch.setattr(run, "_start", start)
    monkeypatch.setattr(
        run, "_model", lambda _: SimpleNamespace(recipe=SimpleNamespace(id="m"), file=tmp_path, path=tmp_path)
    )
    with pytest.raises(NotStarted):
        await run._up()
    assert written == [tmp_path / "adapters"], "the next part does not write them at the same time"


@pytest.mark.parametrize(("graphs", "models"), [(False, ("starter-chat", "second")), (True, ("starter-chat",))])
def test_only_models_that_answer_are_loaded(
    graphs: bool, models: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(Roundhouse, "launch", lambda _: None)
    monkeypatch.setattr(Roundhouse, "_wait", lambda _: None)
    monkeypatch.setattr(Roundhouse, "prepare", lambda server: loaded.extend(server._load))
    with correctness._server(Report(tmp_path / "today.json", "cpu", 0.01), tmp_path, "cpu", graphs=graphs):
        assert tuple(loaded) == models


def test_a_part_is_ended_when_its_budget_is_used_up() -> None:
    clock = Clock()
    budget = Budget(100, clock)
    over, long = budget.until(10), budget.until(1000)
    clock.now = 11
    assert (over(), long(), budget.left) == (True, False, 89)
    clock.now = 100
    assert long()


def test_an_adapter_is_compared_with_the_bases_own_p99() -> None:
    base, adapter = [0.010] * 99 + [0.020], [0.011] * 99 + [0.022]
    figures = compared(base, adapter)
    assert (figures["base_p50_ms"], figures["added_p50_ms"]) == (10.0, 1.0)
    assert figures["p99_over_p99_ms"] == pytest.approx(figures["base_p99_ms"] * 0.1, abs=0.2)


def test_results_name_the_gpu_and_the_costs_of_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = nvml.Gpu("NVIDIA H100 80GB HBM3", "GPU-1", 85_520_809_984, 0)
    monkeypatch.setattr(nvml, "gpu", lambda device: card)
    monkeypatch.setattr(nvml, "driver", lambda: "580.65.06")
    monkeypatch.setattr(machine, "pin_apart", lambda: {"num_host_alloc": 1})
    Report(tmp_path / "today.json", "cuda:0", 0.01).add("start", True)
    found = json.loads((tmp_path / "today.json").read_text())["environment"]
    assert (found["gpu"], found["gpu_bytes"], found["driver"]) == (card.name, card.total, "580.65.06")
    assert found["pinned_memory"] == {"num_host_alloc": 1}
    assert {"kernel", "hypervisor", "pipe_round_trip_us", "byte_code", "commit", "versions"} <= found.keys()


def test_the_costs_of_the_machine_are_in_the_results() -> None:
    found = machine.record("cpu", 0.02)
    assert found.keys() == {"hypervisor", "pipe_round_trip_us", "byte_code"}
    assert 0 < machine.ping_pong(0.02)["p50"] < 1e6
    code = machine.byte_code("benchmarks")
    assert 0 <= code["compiled"] <= code["modules"]
    assert code["modules"] > 50
    assert machine.byte_code("no_such_package_is_there") == {"modules": 0, "compiled": 0}


def test_a_gpu_that_pins_no_memory_lacks_only_one_figure() -> None:
    python = [sys.executable, "-S", "-c"]
    assert machine.pin_apart([*python, "print('of a library\\n{\"gib_seconds\": 1.5}')"]) == {"gib_seconds": 1.5}
    assert machine.pin_apart([*python, "raise SystemExit('no device')"]) == {"error": "no device\n"}
    assert machine.pin_apart([*python, "import time; time.sleep(3600)"], 0.5) == {"error": "it took more than 0.5 s"}


def test_the_tuner_runs_in_a_separate_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(tune_lora.NotTuned, match="invalid choice: 'no shape'"):
        tune_lora.tune_apart(replace(SHAPES["tiny"], name="no shape"), 16, 24, 1.0, tmp_path)
    given: list[object] = []

    def tune(*values: object) -> dict[str, object]:
        given.extend(values)
        return {"files": ["one.json"]}

    def run_here(command: list[str], **_: object) -> "subprocess.CompletedProcess[str]":
        monkeypatch.setattr(sys, "argv", command[2:])
        return subprocess.CompletedProcess(command, tune_lora.main(), capsys.readouterr().out, "")

    monkeypatch.setattr(tune_lora, "tune", tune)
    monkeypatch.setattr(subprocess, "run", run_here)
    assert tune_lora.tune_apart(SHAPES["tiny"], 16, 24, 12.5, tmp_path) == {"files": ["one.json"]}
    assert given == [SHAPES["tiny"], 16, 24, 12.5, tmp_path]


def test_tuned_files_have_the_name_in_which_vllm_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's name of a part of a GPU may differ from the driver's."""

    class Timer:
        def __init__(self, places: int) -> None:
            self.card = lambda: "NVIDIA H200 MIG 1g.18gb"

        def __call__(self, *_: object) -> float:
            return 1.0

    monkeypatch.setattr(nvml, "gpu", lambda device: nvml.Gpu("MIG 1g.18gb", "MIG-x", 1, 0))
    monkeypatch.setattr(tune_lora, "CudaTimer", Timer)
    monkeypatch.setattr(tune_lora, "compile_all", lambda *_: [])
    monkeypatch.setattr(tune_lora, "kinds", lambda: ("SHRINK",))
    result = tune_lora.tune(SHAPES["tiny"], 16, 24, 60.0, tmp_path)
    assert (result["card"], result["files"]) == ("NVIDIA H200 MIG 1g.18gb", ["NVIDIA_H200_MIG_1g.18gb_SHRINK.json"])
    assert [file.name for file in tmp_path.iterdir()] == result["files"]


def test_the_machine_is_named_as_its_firmware_names_it(tmp_path: Path) -> None:
    for folder in ("proc", "sys/class/dmi/id"):
        (tmp_path / folder).mkdir(parents=True)
    assert machine.hypervisor(tmp_path) == ""
    (tmp_path / "sys/class/dmi/id/sys_vendor").write_text("QEMU\n")
    assert machine.hypervisor(tmp_path) == "", "a vendor's name alone is no hypervisor"
    (tmp_path / "proc/cpuinfo").write_text("flags : fpu hypervisor lahf_lm")
    assert machine.hypervisor(tmp_path) == "QEMU"
    (tmp_path / "sys/class/dmi/id/sys_vendor").unlink()
    assert machine.hypervisor(tmp_path) == "unnamed"


@pytest.mark.parametrize("kind", encoders.KINDS)
def test_each_variant_of_an_encoder_is_a_recipe_value(kind: str, tmp_path: Path) -> None:
    """Everything else is as in the GPU's shipped recipe."""
    for folder in ("h200", "single-gpu-80gb"):
        at = tmp_path / folder
        files = encoders.write_recipes(kind, shipped.RECIPES / folder, tmp_path, at)
        made = {recipe.id: recipe for recipe in load_recipes([at])}
        assert {name: recipe.engine.flags for name, recipe in made.items()} == {
            f"{kind}-{way}": flags for way, flags in encoders.WAYS.items()
        }
        assert files.keys() == made.keys()
        assert all(flag_fault(recipe) is None for recipe in made.values())
        assert [loading.leaves_padding(made[f"{kind}-{way}"], "cuda:0") for way in encoders.WAYS] == [False, True, True]
        (recipe,) = load_recipes([shipped.RECIPES / folder / f"bge-{kind}.yaml"])
        same = ("dtype", "batching", "context_length", "residency", "window", "queue")
        assert [getattr(made[f"{kind}-padded"], name) for name in same] == [getattr(recipe, name) for name in same]


@pytest.mark.parametrize(("kind", "parameters"), [("embed", 335_141_888), ("rerank", 567_755_777)])
def test_encoders_have_the_sizes_of_the_published_ones(kind: str, parameters: int) -> None:
    """The published ones are bge-large-en-v1.5 with its pooler, and bge-reranker-v2-m3."""
    sides = encoder_shapes.tensors(encoder_shapes.config(kind))
    assert sum(int(np.prod(one)) for one in sides.values()) == parameters


def test_an_encoder_of_random_weights_is_read_by_the_library(tmp_path: Path) -> None:
    pair = ("a signal", "the brake")
    folders = {kind: encoder_shapes.write_encoder(kind, tmp_path / kind, tiny=True) for kind in encoders.KINDS}
    library = loading.import_library()
    arguments: dict[str, Any] = {"device": "cpu", "local_files_only": True, "model_kwargs": {"dtype": "float32"}}
    first, second = library.SentenceTransformer(str(folders["embed"]), **arguments).encode(pair)
    assert (float(first @ first), abs(float(first @ second)) < 0.999) == (pytest.approx(1, abs=1e-4), True)
    assert 0 < library.CrossEncoder(str(folders["rerank"]), **arguments).predict([pair])[0] < 1


def test_a_whisper_of_random_weights_says_its_words_and_ends(tmp_path: Path) -> None:
    """With the library's settings and with the server's, which request times, at the first temperature."""
    folder = whisper_shape.write_whisper(tmp_path / "whisper", whisper_shape.TINY)
    (recipe,) = load_recipes([shipped.RECIPES / "single-gpu-80gb" / "whisper.yaml"])
    model = SpeechModel(recipe.model_copy(update={"dtype": "float32"}), folder, "cpu", 1)
    tokens = [model.whisper.hf_tokenizer.id_to_token(i) for i in range(whisper_shape.TINY.vocabulary)]
    expected = whisper_shape.spoken(tokens)
    assert len(expected) == whisper_shape.WORDS
    features = model.features(np.zeros(16_000, np.float32))
    (result,) = model.run([WindowRequest(features, 30.0)])
    assert [token for segment in result.segments for token in segment.tokens] == expected
    assert not result.poor
    assert not result.silent


def test_a_base_without_values_takes_no_disk_space(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", SHAPES["8b"], values=False)
    file = base / "model.safetensors"
    assert file.stat().st_size > 16e9
    assert file.stat().st_blocks * 512 < 1e7
    with safe_open(file, "pt") as opened:
        assert len(list(opened.keys())) == len(SHAPES["8b"].tensors())


def test_the_guide_for_gpus_names_existing_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command in its tables and code blocks is tried without a GPU."""
    text = (root() / "benchmarks" / "README.md").read_text()
    commands = re.findall(r'make gpu-acceptance .*ARGS="(.+?)"', text)
    assert len(commands) == 3
    compared = re.findall(r"^(?:\w+=1 )?run (--.+)$", text, re.MULTILINE)
    assert len(compared) == 2
    monkeypatch.setattr(acceptance, "kind_of_host", lambda: "cpu")
    for words in commands + compared:
        monkeypatch.setattr(sys, "argv", ["acceptance", *shlex.split(words.replace("--shape tiny", "--shape 8b"))])
        assert acceptance.main() == 2, words
    tried, first, second = (re.search(r"--parts (\S+)", words)[1].split(",") for words in commands)  # type: ignore[index]
    assert set(first) | set(second) == set(timed.PARTS)
    assert set(tried) == set(timed.PARTS) - {"tune"}
    seconds = timed.START + timed.STOCK_START + sum(timed.SECONDS[part] for part in first)
    assert f"The first call takes {seconds} seconds" in text


def test_a_budget_of_nothing_is_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that works out what is left may arrive at 0."""
    left: list[float] = []

    class Runs:
        def __init__(self, *arguments: Any, **_: object) -> None:
            left.append(arguments[4].left)

        async def run(self, _: object) -> None:
            return

    monkeypatch.setattr(machine, "record", lambda *_: {})
    monkeypatch.setattr(timed, "TimedRun", Runs)
    words = ["--shape", "tiny", "--budget", "0", "--results", str(tmp_path / "today.json")]
    monkeypatch.setattr(sys, "argv", ["acceptance", *words])
    assert acceptance.main() == 0
    assert left[0] <= 0


@pytest.mark.parametrize(
    "words", [["--parts", "tiers,nothing"], ["eager", "--budget", "9"], ["eager", "--budget", "0"]]
)
def test_unknown_arguments_are_refused(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["acceptance", *words])
    with pytest.raises(SystemExit):
        acceptance.main()
