"""Garbage collections in a serving process."""

import asyncio
import gc
import logging
import time

import pytest

from registry.base import heap

NAMES = ("seconds", "generation", "collected")


async def test_long_collections_are_logged_and_short_ones_are_not(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([1.0, 1.019, 2.0, 2.05, 3.0, 3.2])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    watch = heap.CollectionLog(asyncio.get_running_loop(), logging.getLogger("roundhouse.test"))
    with caplog.at_level(logging.DEBUG, "roundhouse.test"):
        for generation in (0, 2, 1):
            watch("start", {"generation": generation})
            watch("stop", {"generation": generation, "collected": 7})
        assert not caplog.records
        await asyncio.sleep(0)
    records = [(record.levelname, *(vars(record)[name] for name in NAMES)) for record in caplog.records]
    assert records == [("DEBUG", 0.05, 2, 7), ("INFO", 0.2, 1, 7)], (
        "only collections that a user notices are logged at info"
    )


def test_nothing_is_logged_once_the_loop_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    monkeypatch.setattr(heap, "LONG_SECONDS", 0.0)
    watch = heap.CollectionLog(loop, logging.getLogger("roundhouse.test"))
    watch("start", {"generation": 2})
    watch("stop", {"generation": 2, "collected": 0})


def test_a_frozen_heap_is_left_out_of_collections() -> None:
    frozen = [[] for _ in range(1000)]
    heap.freeze_heap()
    try:
        assert not any(tracked is frozen for tracked in gc.get_objects())
    finally:
        gc.unfreeze()
