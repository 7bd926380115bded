"""The log of a shutdown, and signals, which reach the earlier handlers, too."""

import logging
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from runtime.server.shutdown import RemainingWork, Shutdown


@pytest.fixture
def handlers() -> Iterator[list[int]]:
    """Install earlier handlers of SIGTERM and SIGINT, and return the signals that they get."""
    got: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield got
    for number, handler in before.items():
        signal.signal(number, handler)


def test_each_phase_is_logged_once_with_the_remaining_work(
    handlers: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "roundhouse.server")
    now = [RemainingWork(running=3, waiting=2, models=4)]
    shutdown = Shutdown(lambda: now[0], 60.0)
    shutdown.listen()
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)  # stays ignored
    assert handlers == [signal.SIGTERM, signal.SIGTERM]
    now[0] = RemainingWork(running=1, waiting=0, models=4)
    shutdown.drained()
    now[0] = RemainingWork(0, 0, 4)
    shutdown.ending()
    reported = [
        (r.message, *(r.__dict__.get(key) for key in ("running", "waiting", "finished"))) for r in caplog.records
    ]
    assert reported == [
        ("stopping: the port is closed, requests may finish", 3, 2, None),
        ("stopping: requests were cut off", 1, 0, 4),
        ("stopping: the engines end", 0, 0, None),
    ]


def test_only_the_main_thread_installs_a_handler_and_a_stop_without_signal_is_logged(
    handlers: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "roundhouse.server")
    shutdown = Shutdown(lambda: RemainingWork(0, 0, 1), 60.0)
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=shutdown.listen)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
    shutdown.drained()
    assert [(r.message, r.__dict__["seconds"]) for r in caplog.records] == [("stopping: no request is left", 0.0)]
