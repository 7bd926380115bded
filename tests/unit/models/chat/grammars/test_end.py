"""A killed child is waited for, because it would stay as a zombie otherwise."""

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from typing import Any

import psutil
import pytest

from models.chat.grammars.checker import GrammarChecker
from models.chat.grammars.process import CheckerProcess
from models.chat.vllm import variables
from models.chat.vllm.launch import stop_engine
from models.chat.vllm.plugin import CauseFile
from registry.bounds import USUAL
from tests.eventually import PATIENCE

FORK = multiprocessing.get_context("fork")


class _Engine:
    def __init__(self) -> None:
        self.roundhouse_cause = CauseFile()

    def shutdown(self, _within: float) -> None:
        """Forget the process, as vLLM does after its time-out."""


def _large(ready: Any) -> None:
    held = bytearray(b"a" * 300 * 2**20)  # so that the kernel needs some time to free it
    ready.set()
    time.sleep(len(held))


def test_an_engine_whose_time_is_over_leaves_no_zombie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variables.CAUSE, "")  # so that it is put back
    ready = FORK.Event()
    child = FORK.Process(target=_large, args=(ready,), daemon=True)
    child.start()
    assert ready.wait(PATIENCE)
    assert child.pid is not None
    stop_engine(_Engine(), [child], 0.0)
    assert not psutil.pid_exists(child.pid)
    assert child.exitcode == -signal.SIGKILL


class _Slow:
    """A process that ends only when the test lets it."""

    def __init__(self) -> None:
        self.killed = False
        self.patience: list[float | None] = []
        self.requested, self.ended = threading.Event(), threading.Event()

    def kill(self) -> None:
        self.killed = True

    def join(self, timeout: float | None = None) -> None:
        self.patience.append(timeout)
        self.requested.set()
        self.ended.wait(timeout)


async def test_a_grammars_process_is_waited_for_without_a_time_limit() -> None:
    process, (orders, own), (verdicts, writes) = _Slow(), os.pipe(), os.pipe()
    checker = GrammarChecker(lambda: CheckerProcess(process, own, verdicts), USUAL)  # type: ignore[arg-type]
    await checker.begin()
    closing = asyncio.create_task(checker.close())
    assert await asyncio.to_thread(process.requested.wait, PATIENCE)
    assert process.killed
    assert process.patience == [None], "without a time limit"
    assert not closing.done()
    process.ended.set()
    await asyncio.wait_for(closing, PATIENCE)
    for handle in (orders, writes):
        os.close(handle)
