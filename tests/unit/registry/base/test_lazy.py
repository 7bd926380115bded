"""Libraries that are imported at their first use, in a thread if an event loop needs them."""

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from registry.base.lazy import LazyModule, import_in_thread
from tests.eventually import PATIENCE

SLOW = """
import threading

begun, go = threading.Event(), threading.Event()
begun.set()
go.wait()
VALUE = 7
"""


async def test_an_import_does_not_block_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several requests wait for one import, and each gets the complete module."""
    (tmp_path / "slow_to_import.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    library = LazyModule("slow_to_import")

    async def value() -> object:
        await import_in_thread("slow_to_import")
        return library.VALUE

    requests = [asyncio.create_task(value()) for _ in range(3)]
    async with asyncio.timeout(PATIENCE):
        while not isinstance(getattr(sys.modules.get("slow_to_import"), "go", None), threading.Event):
            await asyncio.sleep(0.001)
        sys.modules["slow_to_import"].go.set()
        assert await asyncio.gather(*requests) == [7, 7, 7]
        assert await value() == 7


async def test_a_failed_import_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError):
        await import_in_thread("added_later")
    (tmp_path / "added_later.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)  # invalidates the cached folder listings
    await import_in_thread("added_later")
    assert sys.modules["added_later"].VALUE == 1
