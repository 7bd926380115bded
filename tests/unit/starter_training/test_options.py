"""Options of the trainings: what they leave alone must be somewhere."""

import sys

import pytest

from starter_training import __main__ as starter
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
    told = " ".join(capsys.readouterr().out.split())
    assert "on cpu chat 240, rerank 60, speech 180; on cuda chat 10, rerank 5, speech 30" in told
