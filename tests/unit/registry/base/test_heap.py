"""Collections of garbage in a process that serves."""

import asyncio
import gc
import logging
import time

import pytest

from registry.base import heap


async def test_long_collections_are_logged_and_short_ones_are_not(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([1.0, 1.019, 2.0, 2.05])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    watch = heap.CollectionLog(asyncio.get_running_loop(), logging.getLogger("roundhouse.test"))
    with caplog.at_level(logging.INFO, "roundhouse.test"):
        for generation in (0, 2):
            watch("start", {"generation": generation})
            watch("stop", {"generation": generation, "collected": 7})
        assert not caplog.records
        await asyncio.sleep(0)
    (record,) = caplog.records
    assert (vars(record)["seconds"], vars(record)["generation"], vars(record)["collected"]) == (0.05, 2, 7)


def test_nothing_is_logged_once_the_loop_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    monkeypatch.setattr(heap, "LONG_SECONDS", 0.0)
    watch = heap.CollectionLog(loop, logging.getLogger("roundhouse.test"))
    watch("start", {"generation": 2})
    watch("stop", {"generation": 2, "collected": 0})


def test_a_frozen_heap_is_left_out_of_collections() -> None:
    kept = [[] for _ in range(1000)]
    heap.freeze_heap()
    try:
        assert not any(found is kept for found in gc.get_objects())
    finally:
        gc.unfreeze()
