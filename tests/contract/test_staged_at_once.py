"""Small adapters that are read on the engine's loop: what the thread would have read, and never a wait for the disk."""

import contextlib
import errno
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from adapters import staged_file, vllm_forms, vllm_stage
from adapters.staged_memory import StagedMemory
from adapters.vllm_forms import Forms
from adapters.vllm_read import FILES, read_adapter
from tests.contract import vllm_manager_fixtures as fixtures
from tests.contract.test_forms import facts, shorten, spoil, write
from tests.contract.test_places import Worker

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.lora import lora_model

    monkeypatch.setattr(lora_model, "safetensors", lora_model.safetensors)
    staged_file.patch(lora_model)


def learned(folder: Path) -> Forms:
    forms = Forms()
    read_adapter(fixtures.worker_manager(16), 1, write(folder / "first", 1), StagedMemory(), forms)
    return forms


def at_once(forms: Forms, path: str) -> Any:
    return forms.read(2, Path(path) / FILES[0], Path(path) / FILES[1], StagedMemory(), wait=False)


def test_what_is_read_at_once_is_what_the_loader_makes(tmp_path: Path) -> None:
    forms, path = learned(tmp_path), write(tmp_path / "a", 2)
    found = at_once(forms, path)
    assert facts(found) == facts(read_adapter(fixtures.worker_manager(16), 2, path, StagedMemory()))
    again = at_once(forms, write(tmp_path / "b", 3))
    assert facts(found) == facts(read_adapter(fixtures.worker_manager(16), 2, path, StagedMemory())), "its own memory"
    assert facts(again) != facts(found)


@pytest.mark.parametrize("name", FILES)
def test_nobody_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Whichever of the files is not in the page cache, wholly or in part, or on a file system that cannot tell."""
    forms, path = learned(tmp_path), write(tmp_path / "a", 2)
    stock, size = os.preadv, (Path(path) / name).stat().st_size

    def preadv(there: int | None, fd: int, buffers: list[memoryview], offset: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        if len(buffers[0]) != size:
            return stock(fd, buffers, offset, flags)
        if there is None:
            raise OSError(errno.EOPNOTSUPP, "not on this one")
        return there

    for there in (0, size - 1, None):
        monkeypatch.setattr(os, "preadv", partial(preadv, there))
        assert at_once(forms, path) is None
    monkeypatch.setattr(os, "preadv", stock)
    assert at_once(forms, path) is not None


def forgotten(path: str) -> None:
    """The kernel has none of the adapter's tensors in its page cache."""
    with open(Path(path) / FILES[1], "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_what_the_kernel_has_not_cached_is_left_to_the_thread(tmp_path: Path) -> None:
    forms, path, other = learned(tmp_path), write(tmp_path / "a", 2), write(tmp_path / "b", 3)
    forgotten(other)
    with open(Path(other) / FILES[1], "rb") as file, contextlib.suppress(BlockingIOError):
        if os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT):
            pytest.skip("this file system keeps all in memory")
    forgotten(path)
    assert at_once(forms, path) is None
    assert read_adapter(fixtures.worker_manager(16), 2, path, StagedMemory(), forms) is not None
    assert at_once(forms, path) is not None, "the thread has brought it in"


def test_large_ones_are_left_to_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forms, path = learned(tmp_path), write(tmp_path / "a", 2)
    monkeypatch.setattr(vllm_forms, "SMALL", (Path(path) / FILES[1]).stat().st_size - 1)
    assert at_once(forms, path) is None


@pytest.mark.parametrize("harm", [shorten, spoil, lambda folder: (folder / FILES[1]).write_bytes(b"1234"),
                                  lambda folder: (folder / FILES[0]).unlink()])  # fmt: skip
def test_what_is_amiss_is_told_by_the_thread(tmp_path: Path, harm: Any) -> None:
    forms, path = learned(tmp_path), write(tmp_path / "a", 2)
    harm(tmp_path / "a")
    files = len(os.listdir("/proc/self/fd"))
    assert at_once(forms, path) is None
    assert len(os.listdir("/proc/self/fd")) == files


def test_the_engine_stages_one_like_an_earlier_one_at_once(tmp_path: Path) -> None:
    worker = Worker()
    assert worker.stage_adapter(1, write(tmp_path / "1", 1)) == ["running"]
    assert worker.stage(1, tmp_path / "1") == ["done", "staged"]
    assert worker.stage_adapter(2, write(tmp_path / "2", 2)) == ["done", "staged"]
    assert worker.held_adapters() == [[1, 2], []]
    assert worker.place_adapter(2, 0) == ["done"]
    assert worker.stage_adapter(2, "/anywhere") == ["done"]


def test_it_has_no_more_of_the_engines_time_than_a_tenth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    worker.stage(1, Path(write(tmp_path / "1", 1)))
    monkeypatch.setattr(vllm_stage, "REST", 1e6)
    assert worker.stage_adapter(2, write(tmp_path / "2", 2)) == ["done", "staged"]
    assert worker.stage_adapter(3, write(tmp_path / "3", 3)) == ["running"]
    worker._swaps()._rest = time.monotonic()
    assert worker.stage_adapter(4, write(tmp_path / "4", 4)) == ["done", "staged"]


def test_it_does_not_wait_for_the_thread(tmp_path: Path) -> None:
    worker = Worker()
    worker.stage(1, Path(write(tmp_path / "1", 1)))
    with worker._swaps().reading:
        assert worker.stage_adapter(2, write(tmp_path / "2", 2)) == ["running"]
        assert worker.poll_adapter(2) == ["running"]
    assert worker.stage(2, tmp_path / "2") == ["done", "staged"]
