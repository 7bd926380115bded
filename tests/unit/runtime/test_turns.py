"""Which slots begin first."""

import sys
import threading
import time
from importlib.machinery import ModuleSpec
from multiprocessing.spawn import get_preparation_data
from pathlib import Path

import pytest

from runtime import turns
from runtime.server import run as server


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process asks once; here each call stands for a process."""
    monkeypatch.setenv(turns.VARIABLE, "")
    turns.announce(str(tmp_path), 2)
    monkeypatch.setattr(turns, "number", turns.number.__wrapped__)


def taken(run_dir: Path) -> list[int | None]:
    return [turns.number(str(run_dir), 2) for _ in range(4)]


def test_each_number_is_given_out_once(tmp_path: Path) -> None:
    assert taken(tmp_path) == [0, 1, None, None]


def test_others_wait_until_all_first_ones_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SECONDS", 60.0)
    turns.take()
    turns.take()
    waiting = threading.Thread(target=turns.take)
    waiting.start()
    turns.serves(str(tmp_path), 0)
    waiting.join(0.1)
    assert waiting.is_alive()
    turns.serves(str(tmp_path), 1)
    waiting.join(10)
    assert not waiting.is_alive()
    turns.take()  # a later life of a slot: at once


def test_nobody_waits_for_ever_nor_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SECONDS", 0.1)
    for _ in range(3):
        turns.take()  # the third after 0.1 s: the first two never serve
    monkeypatch.setattr(turns, "SECONDS", 600.0)
    turns.announce(str(tmp_path), 0)
    began = time.monotonic()
    turns.take()
    monkeypatch.delenv(turns.VARIABLE)
    turns.take()
    assert time.monotonic() - began < 300


def test_a_folder_that_is_gone_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SECONDS", 0.1)
    turns.announce(str(tmp_path / "gone"), 1)
    turns.take()
    turns.serves(str(tmp_path / "gone"), 0)


@pytest.mark.parametrize(
    ("name", "begins_with"),
    [("runtime.cli.main", "runtime.slot_process"), ("benchmarks.scripted_server", "benchmarks.scripted_server")],
)
def test_slots_begin_with_their_own_module_unless_somebody_elses_is_the_main_one(
    name: str, begins_with: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", ModuleSpec(name, None))
    with server.workers_begin_with("runtime.slot_process"):
        assert get_preparation_data("a slot")["init_main_from_name"] == begins_with
    assert get_preparation_data("a slot")["init_main_from_name"] == name


def test_so_it_is_with_the_installed_command(monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.setattr(main, "__file__", "/somewhere/bin/roundhouse", raising=False)
    with server.workers_begin_with("runtime.slot_process"):
        assert get_preparation_data("a slot")["init_main_from_name"] == "runtime.slot_process"
    assert "init_main_from_name" not in get_preparation_data("a slot")
