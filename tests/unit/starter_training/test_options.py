"""The trainings' options, which must name the weights that they keep, and the errors that end a rebuild."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from starter_training import __main__ as starter
from starter_training import figures, install
from starter_training.chat import train


@pytest.mark.parametrize("words", [["--tasks", "uppercase"], ["--minutes-base", "0"]])
def test_a_partial_training_requires_the_weights_it_keeps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """Otherwise nineteen untrained adapters, or adapters of an untrained base, would get into the pack."""
    monkeypatch.setattr(sys, "argv", ["train", "--out", "out", *words])
    with pytest.raises(SystemExit):
        train._arguments()
    assert "--resume" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["train", "--out", "out", "--resume", "before", *words])
    assert str(train._arguments().resume) == "before"


def test_the_help_has_the_duration_of_each_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["starter_training", "--help"])
    with pytest.raises(SystemExit):
        starter._arguments()
    reported = " ".join(capsys.readouterr().out.split())
    assert "on cpu chat 240, rerank 60, speech 180; on cuda chat 10, rerank 5, speech 30" in reported


@pytest.mark.parametrize(("step", "module"), [("_rerank", "install_rerank"), ("_speech", "install_speech")])
@pytest.mark.parametrize("code", [0, 1, figures.MISSED])
def test_an_evaluation_that_fails_ends_the_rebuild(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str, module: str, code: int
) -> None:
    """Otherwise the new weights would be installed with the old figures."""

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
