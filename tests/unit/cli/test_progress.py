"""Progress is drawn on a terminal and silent otherwise."""

import io
import sys
import threading
from pathlib import Path

import pytest
from rich.progress import ProgressColumn

from runtime.cli.remote.progress import Bar, Watch, bar
from tests.unit.cli.conftest import model
from tests.unit.cli.fake_server import FakeServer


class Seen(Bar):
    """Records what is drawn, and sets an event at the first time."""

    def __init__(self) -> None:
        super().__init__(is_drawn=True)
        self.displayed: list[tuple[str, float]] = []
        self.first = threading.Event()

    def show(self, text: str, fraction: float) -> None:
        self.displayed.append((text, fraction))
        self.first.set()


def test_a_load_is_drawn_while_a_request_waits(server: FakeServer) -> None:
    progress = {"phase": "weights", "percent": 40.0, "detail": ""}
    server.on("GET", "/v1/models/m", model("m", state="loading", progress=progress))
    seen = Seen()
    with Watch(server.url, "m", seen):
        assert seen.first.wait(200)
    assert seen.displayed[0] == ("m: weights", 0.4)


def test_a_server_that_has_ended_does_not_break_the_drawing() -> None:
    with Watch("http://127.0.0.1:9", "m", Seen()):
        pass


def test_only_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    with bar() as displayed:
        assert not displayed.is_drawn
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with bar(enabled=False) as displayed:
        displayed.show("waking", 0.5)
    assert terminal.getvalue() == ""
    with bar() as displayed:
        displayed.show("loading", 0.5)
    assert "loading" in terminal.getvalue()


def test_an_upload_is_drawn_as_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "legal.tar"
    file.write_bytes(b"x" * 100)
    with Bar(is_drawn=False).open(file) as opened:
        assert opened.read() == b"x" * 100
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    displayed = Bar(is_drawn=True)
    (task,) = displayed.progress.tasks
    with displayed.open(file) as opened:
        assert task.description == "sending legal.tar"
        opened.read(50)
        assert task.percentage == 50
        opened.seek(0)
        assert opened.read() == b"x" * 100
    assert task.percentage == 100
    displayed.show("m: weights", 0.25)
    assert task.percentage == 25


@pytest.mark.parametrize("text", ["sending talk [draft].mp3", "waiting: a template ends in [/INST]"])
def test_brackets_in_names_are_no_markup(text: str) -> None:
    progress_bar = Bar(is_drawn=True)
    progress_bar.show(text, 0.5)
    described = progress_bar.progress.columns[0]
    assert isinstance(described, ProgressColumn)
    assert str(described(progress_bar.progress.tasks[0])) == text
