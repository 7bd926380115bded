"""The shipped recipes of a GPU are measured as they are, and their figures written back."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import speech
from benchmarks.gpu import shipped, timed
from benchmarks.gpu.report import Report
from benchmarks.gpu.shapes import LARGER, SHAPES
from benchmarks.harness import Bench
from benchmarks.load.budget import Budget
from benchmarks.peers.servers import NotStarted
from registry.recipes.definition import Expected
from registry.recipes.loading import load_recipes, parse_recipe


@pytest.mark.parametrize(("card", "folder"), [(85_520_809_984, "single-gpu-80gb"), (150_754_820_096, "h200")])
def test_a_shipped_recipe_is_measured_unchanged_except_for_its_weights(tmp_path: Path, card: int, folder: str) -> None:
    file = shipped.recipe_file(card)
    assert file.parent.name == folder
    (recipe,) = load_recipes([file])
    made = shipped.model(file, SHAPES["8b"], tmp_path).recipe
    assert recipe.engine.flags.keys() - made.engine.flags.keys() <= set(shipped.OF_TOKENIZER)
    assert made.engine.flags.items() - recipe.engine.flags.items() == {("load_format", "dummy")}
    same = ("memory", "batching", "queue", "residency", "context_length", "dtype")
    assert [getattr(made, name) for name in same] == [getattr(recipe, name) for name in same]


@pytest.mark.parametrize("tiny", [False, True])
def test_the_larger_models_recipe_is_measured_if_there_is_one(tmp_path: Path, tiny: bool) -> None:
    assert shipped.large_recipe_file(85_520_809_984) is None
    file = shipped.large_recipe_file(150_754_820_096)
    assert file is not None
    (recipe,) = load_recipes([file])
    made = shipped.model(file, replace(SHAPES["tiny"], kind="qwen2") if tiny else LARGER, tmp_path)
    assert made.recipe.engine.flags == {"load_format": "dummy"}
    assert made.recipe.memory.adapters == recipe.memory.adapters, "the recipe's"
    assert json.loads((made.path / "config.json").read_text())["architectures"] == ["Qwen2ForCausalLM"]
    if not tiny:
        same = ("memory", "batching", "queue", "residency", "context_length", "dtype")
        assert [getattr(made.recipe, name) for name in same] == [getattr(recipe, name) for name in same]


async def test_a_gpu_without_such_a_recipe_leaves_its_part_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report(tmp_path / "results.json", "cpu", 0.01)
    run = timed.TimedRun(report, SHAPES["8b"], "cpu", tmp_path, Budget(1000))
    await run._larger()
    left_out = json.loads((tmp_path / "results.json").read_text())["left_out"]
    assert left_out == {"larger": "no recipe of a larger model ships for a card of this size"}


@pytest.mark.parametrize("name", ["h200/llama-8b", "h200/qwen-32b", "single-gpu-80gb/llama-8b"])
def test_each_chat_recipe_for_one_gpu_can_have_figures(name: str) -> None:
    text = (shipped.RECIPES / f"{name}.yaml").read_text()
    note = "NVIDIA H200, 2026-11-28, commit 01234567; random weights"
    figures = {"load_seconds": 40.2, "resident": "78000MiB", "note": note}
    assert parse_recipe(shipped.with_figures(text, figures), name).expected.load_seconds == 40.2


def test_the_costs_of_a_gpu_are_written_as_in_a_recipe() -> None:
    view = {"bytes": 64_000_000_001, "last_load_seconds": {"weights": 30.25, "warming": 10.0}}
    where = {"gpu": "NVIDIA H100 80GB HBM3", "cpu": "x", "time": "2026-11-28T12:00:00Z", "commit": 5 * "0123abcd"}
    found = Expected.model_validate(shipped.expected(view, where, "random weights", 160.24))
    assert (found.load_seconds, found.tokens_per_second) == (40.2, 160.2)
    assert found.resident is not None
    assert 0 <= found.resident - 64_000_000_001 < 1 << 20
    assert found.note.startswith("NVIDIA H100 80GB HBM3, 2026-11-28, commit 0123abcd; random")
    assert shipped.NOTE.fullmatch(found.note)


@pytest.mark.parametrize("folder", ["h200", "single-gpu-80gb", "node-8x80gb"])
def test_figures_of_a_gpu_recipe_name_gpu_day_and_commit(folder: str) -> None:
    """A recipe without measurements only has the calculation in its comment."""
    for recipe in load_recipes([shipped.RECIPES / folder]):
        figures = recipe.expected.model_dump(exclude_defaults=True)
        assert not figures or shipped.NOTE.fullmatch(recipe.expected.note), recipe.id


RESULTS: dict[str, Any] = {
    "environment": {"gpu": "NVIDIA H100 80GB HBM3", "gpu_bytes": 85_520_809_984},
    "steps": {
        f"{shipped.STEP}llama-8b.yaml": {
            "ok": True, "load_seconds": 40.2, "resident": "61036MiB", "tokens_per_second": 160.2,
            "note": "NVIDIA H100 80GB HBM3, 2026-11-28, commit 01234567; 8b shape with random weights",
        }
    },
}  # fmt: skip


@pytest.mark.parametrize(("card", "folder"), [(85_520_809_984, "single-gpu-80gb"), (150_754_820_096, "h200")])
def test_figures_of_a_gpu_are_written_into_its_recipe(
    card: int, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, recipes = tmp_path / "results.json", tmp_path / "recipes"
    recipes.mkdir()
    shutil.copytree(shipped.RECIPES / folder, recipes / folder)
    file = recipes / folder / "llama-8b.yaml"
    (before,), text = load_recipes([file]), file.read_text()
    monkeypatch.setattr(sys, "argv", ["shipped", str(results), "--recipes", str(recipes)])
    for seconds in (40.2, 38.5):  # the second figures replace the first
        steps = {name: step | {"load_seconds": seconds} for name, step in RESULTS["steps"].items()}
        results.write_text(json.dumps({"environment": RESULTS["environment"] | {"gpu_bytes": card}, "steps": steps}))
        assert shipped.main() == 0
        (after,) = load_recipes([file])
        assert (after.expected.load_seconds, after.expected.resident) == (seconds, 61036 << 20)
        assert shipped.NOTE.fullmatch(after.expected.note)
        assert after.model_copy(update={"expected": before.expected}) == before
    lines, earlier = file.read_text().splitlines(), text.replace(shipped.SUMS, shipped.MEASURED).splitlines()
    assert [line for line in lines if not line.startswith("expected: ")] == earlier
    assert earlier != text.splitlines()


def test_each_recipe_of_the_results_gets_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(shipped.RECIPES / "single-gpu-80gb", tmp_path / "single-gpu-80gb")
    names = ("llama-8b", "bge-embed", "bge-rerank")
    view = {"bytes": 1 << 30, "last_load_seconds": {"weights": 2.0}}
    environment = RESULTS["environment"] | {"cpu": "x", "time": "2026-11-28T12:00:00Z", "commit": 5 * "0123abcd"}
    step = {"ok": True, **shipped.expected(view, environment, "random weights")}
    results = {"environment": environment, "steps": {f"{shipped.STEP}{name}.yaml": step for name in names}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    monkeypatch.setattr(sys, "argv", ["shipped", str(tmp_path / "results.json"), "--recipes", str(tmp_path)])
    assert shipped.main() == 0
    recipes = load_recipes([tmp_path / "single-gpu-80gb"])
    assert {recipe.id for recipe in recipes if recipe.expected.load_seconds == 2.0} == {
        "llama-3.1-8b-instruct", "bge-large-en-v1.5", "bge-reranker-v2-m3"
    }  # fmt: skip


async def test_speech_has_figures_for_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def measured(bench: Bench, file: Path, weights: Path) -> dict[str, object]:
        assert load_recipes([file])[0].id == "whisper-large-v3-turbo"
        for what in ("alone", "four", "long"):
            bench.figure(f"{what}.ratio", [1.5], "x")
        return {"bytes": 3 << 30, "last_load_seconds": {"weights": 2.0}}

    monkeypatch.setattr(speech, "measure", measured)
    monkeypatch.setattr(timed, "write_whisper", lambda folder, shape: folder)
    monkeypatch.setenv("BARE_DEVICE", "")  # so that it is put back
    (tmp_path / "speech").mkdir()
    report = Report(tmp_path / "results.json", "cpu", 0.01)
    await timed.TimedRun(report, SHAPES["8b"], "cpu", tmp_path, Budget(1000))._speech()
    steps = json.loads((tmp_path / "results.json").read_text())["steps"]
    figures = steps[f"{shipped.STEP}whisper.yaml"]
    assert (figures["load_seconds"], figures["resident"], steps["speech"]["ok"]) == (2.0, "3072MiB", True)
    assert figures["note"].endswith(shipped.RANDOM)
    found = shipped.measured({"environment": RESULTS["environment"], "steps": steps})
    assert found.keys() == {Path("single-gpu-80gb", "whisper.yaml")}
    for name in ("single-gpu-80gb", "h200"):
        text = (shipped.RECIPES / name / "whisper.yaml").read_text()
        assert parse_recipe(shipped.with_figures(text, found[next(iter(found))]), name).expected.load_seconds == 2.0


async def test_speech_that_was_not_measured_is_not_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def died(*_: object) -> dict[str, object]:
        raise NotStarted("roundhouse ended with 1")

    monkeypatch.setattr(speech, "measure", died)
    monkeypatch.setattr(timed, "write_whisper", lambda folder, shape: folder)
    monkeypatch.setenv("BARE_DEVICE", "")  # so that it is put back
    (tmp_path / "speech").mkdir()
    report = Report(tmp_path / "results.json", "cpu", 0.01)
    with pytest.raises(NotStarted):
        await timed.TimedRun(report, SHAPES["8b"], "cpu", tmp_path, Budget(1000))._speech()
    assert not report.steps["speech"]["ok"]


@pytest.mark.parametrize(
    ("environment", "step", "words"),
    [
        ({"gpu_bytes": None}, {}, "without a GPU"),
        ({}, {"ok": False}, "no figures"),
        ({}, {"note": "NVIDIA H100 80GB HBM3, 2026-11-28, commit "}, "no commit"),
        ({}, {"note": f"NVIDIA H100 80GB HBM3, 2026-11-28, commit 01234567; {shipped.TINY}"}, "without --shape tiny"),
    ],
)
def test_results_without_figures_for_a_recipe_are_refused(
    environment: dict[str, Any], step: dict[str, Any], words: str
) -> None:
    steps = {name: known | step for name, known in RESULTS["steps"].items()}
    with pytest.raises(shipped.Unusable, match=words):
        shipped.measured({"environment": RESULTS["environment"] | environment, "steps": steps})
