"""Libraries that are imported at their first use, in a thread where an event loop needs them."""

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


async def test_the_event_loop_goes_on_while_a_module_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several requests at once wait for one import, and each has all of the module afterwards."""
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


async def test_an_import_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError):
        await import_in_thread("late_to_come")
    (tmp_path / "late_to_come.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)  # forgets what folders held
    await import_in_thread("late_to_come")
    assert sys.modules["late_to_come"].VALUE == 1
