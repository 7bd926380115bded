"""The cause of death of processes that are not the gateway's children."""

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from registry.base.control_groups import OomKills
from registry.errors import EngineFailed
from runtime.slots.link import UNKNOWN, Cause
from runtime.slots.processes import cause_of, hold


@pytest.fixture
def ended() -> Iterator[Callable[[str], int]]:
    """Return a function that returns the id of an ended process for which its parent has not waited yet."""
    started: list[int] = []

    def end(code: str) -> int:
        started.append(os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ))
        os.waitid(os.P_PID, started[-1], os.WEXITED | os.WNOWAIT)
        return started[-1]

    yield end
    for pid in started:
        with suppress(ChildProcessError):  # the test has waited
            os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            Cause("killed", "its process was ended by SIGKILL", signal.SIGKILL),
        ),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGABRT)",
            Cause("killed", "its process was ended by SIGABRT", signal.SIGABRT),
        ),
        ("import os; os._exit(7)", Cause("exited", "its process ended with status 7")),
        ("pass", Cause("exited", "its process ended with status 0")),
    ],
)
def test_the_exit_code_is_read_before_the_parent_waits(ended: Callable[[str], int], code: str, expected: Cause) -> None:
    assert cause_of(ended(code), OomKills()) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import os; os.kill(os.getpid(), 9)", Cause("killed", "its process was ended by SIGKILL", signal.SIGKILL)),
        ("import os; os._exit(7)", Cause("exited", "its process ended with status 7")),
        ("pass", Cause("exited", "its process ended with status 0")),
    ],
)
def test_the_exit_code_is_read_after_the_parent_has_waited(code: str, expected: Cause) -> None:
    """Kernels from 6.15 on keep it for holders of the process. With older ones it is unknown."""
    with subprocess.Popen([sys.executable, "-c", f"input(); {code}"], stdin=subprocess.PIPE) as process:
        held = hold(process.pid)
        assert held is not None
        assert cause_of(process.pid, OomKills(), held) is UNKNOWN, "it still runs"
        process.communicate(b"\n")
    kernel = tuple(int(part) for part in platform.release().split(".")[:2])
    assert cause_of(process.pid, OomKills(), held) == (expected if kernel >= (6, 15) else UNKNOWN)
    assert cause_of(process.pid, OomKills()) is UNKNOWN
    os.close(held)


def test_an_ended_process_cannot_be_held(ended: Callable[[str], int]) -> None:
    pid = ended("pass")
    os.waitpid(pid, 0)
    assert hold(pid) is None


def test_sigkill_with_an_oom_kill_is_out_of_memory(
    ended: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = ended("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setattr(OomKills, "has_killed", lambda self: True)
    assert cause_of(pid, OomKills()).code == "out_of_memory"


def test_an_oom_kill_is_the_cause_if_the_exit_code_is_lost(
    ended: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = ended("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    os.waitpid(pid, 0)
    monkeypatch.setattr(OomKills, "has_killed", lambda self: True)
    assert cause_of(pid, OomKills()).code == "out_of_memory"


def test_the_cause_of_a_lost_or_running_process_is_unknown(ended: Callable[[str], int]) -> None:
    pid = ended("pass")
    os.waitpid(pid, 0)
    assert cause_of(pid, OomKills()) is UNKNOWN
    assert cause_of(os.getpid(), OomKills()) is UNKNOWN


def test_a_heartbeats_error_is_a_cause() -> None:
    silent = EngineFailed("The engine did not answer within 3 s.", code="engine_hung")
    assert Cause.of(silent) == Cause("engine_hung", "The engine did not answer within 3 s")
