"""The acceptance run on a GPU, as far as it goes without one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_acceptance
from benchmarks.gpu_acceptance import ANSWERS, Report, write_recipes
from models import nvml
from registry.recipes.loading import load_recipes
from runtime.cli.options import root


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def none(device: str) -> nvml.Gpu:
        raise nvml.NoGpu("the NVIDIA driver does not answer")

    monkeypatch.setattr(nvml, "gpu", none)
    monkeypatch.setattr(sys, "argv", ["gpu_acceptance"])
    assert gpu_acceptance.main() == 2
    assert "the NVIDIA driver does not answer" in capsys.readouterr().err


def test_its_recipes_are_the_starter_model_twice(tmp_path: Path) -> None:
    write_recipes(tmp_path)
    second, first = load_recipes([tmp_path])
    assert (second.id, first.id) == ("second", "starter-chat")
    assert (second.residency.sleep, second.residency.preload, second.adapters) == ("always", True, ())
    assert {adapter.name for adapter in first.adapters} == ANSWERS.keys()


def test_results_are_there_after_each_step(tmp_path: Path) -> None:
    file = tmp_path / "gpu" / "today.json"
    report = Report(file, "cpu")
    report.add("start", True, seconds=1.0)
    assert json.loads(file.read_text())["steps"] == {"start": {"ok": True, "seconds": 1.0}}
    assert report.ok
    report.add("answers", False)
    assert not report.ok
    assert json.loads(file.read_text())["environment"]["versions"]["litserve"]


def test_the_long_rehearsal_fetches_nothing_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROUNDHOUSE_CUDA_REHEARSAL", raising=False)
    done = subprocess.run([root() / "scripts" / "install-cuda-rehearsal"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "4 GiB" in done.stderr
