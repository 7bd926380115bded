"""Trainings' options, and what ends them: what they leave alone must be somewhere."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from starter_training import __main__ as starter
from starter_training import figures, install
from starter_training.chat import train


@pytest.mark.parametrize("words", [["--tasks", "uppercase"], ["--minutes-base", "0"]])
def test_what_is_not_trained_is_not_drawn_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """Else nineteen empty adapters, or adapters of a base of random weights, would go into the pack."""
    monkeypatch.setattr(sys, "argv", ["train", "--out", "out", *words])
    with pytest.raises(SystemExit):
        train._arguments()
    assert "--resume" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["train", "--out", "out", "--resume", "before", *words])
    assert str(train._arguments().resume) == "before"


def test_the_help_tells_how_long_each_step_trains(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["starter_training", "--help"])
    with pytest.raises(SystemExit):
        starter._arguments()
    reported = " ".join(capsys.readouterr().out.split())
    assert "on cpu chat 240, rerank 60, speech 180; on cuda chat 10, rerank 5, speech 30" in reported


@pytest.mark.parametrize(("step", "module"), [("_rerank", "install_rerank"), ("_speech", "install_speech")])
@pytest.mark.parametrize("code", [0, 1, figures.MISSED])
def test_what_could_not_be_measured_ends_the_rebuild(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str, module: str, code: int
) -> None:
    """Else the new weights would go with the figures of the old ones."""

    def ended(command: list[str]) -> SimpleNamespace:
        last = any(word in command[2] for word in ("rerank.evaluate", "speech.samples"))
        return SimpleNamespace(returncode=code if last else 0)

    monkeypatch.setattr(install, module, lambda *_: None)
    monkeypatch.setattr(subprocess, "run", ended)
    if code == 1:
        with pytest.raises(SystemExit, match="exit code 1"):
            getattr(starter, step)(tmp_path, tmp_path, 1.0, "cpu", False)
    else:
        getattr(starter, step)(tmp_path, tmp_path, 1.0, "cpu", False)
