"""The memory of a slot's processes in /proc, which a heartbeat does not always read completely."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from runtime.slots import processes
from runtime.slots.processes import group_bytes

MIB = 2**20


@contextlib.contextmanager
def _process(code: str) -> Iterator[tuple[int, int]]:
    """Run a Python process in its own group. Yields its pid and a pipe to which it writes one byte per step.

    The code writes with `os.write`, because a signal handler that prints fails when it interrupts another print.
    """
    read, write = os.pipe()
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-c", code], os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)], setpgroup=0,
    )  # fmt: skip
    try:
        os.read(read, 1)
        yield pid, read
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)


def test_bytes_of_a_process_group_are_its_peak() -> None:
    code = "import os, time; big = bytearray(80 << 20); del big; os.write(1, b'.'); time.sleep(60)"
    with _process(code) as (pid, _):
        assert 80 * MIB < group_bytes(pid) < 160 * MIB
    assert group_bytes(pid) == 0


def test_a_heartbeat_reads_the_pages_of_a_group_only_after_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[int] = []
    monkeypatch.setattr(processes, "group_bytes", lambda group: walks.append(group) or group_bytes(group))
    code = (
        "import os, signal, time\n"
        "big = []\n"
        "signal.signal(signal.SIGUSR1, lambda *_: (big.append(bytearray(64 << 20)), os.write(1, b'.')))\n"
        "os.write(1, b'.')\n"
        "while True: time.sleep(60)"
    )
    now = [0.0]
    with _process(code) as (pid, read):
        peak = processes.GroupPeak(pid, lambda: now[0])
        held = peak.read()
        assert (peak.read(), len(walks)) == (held, 1)
        os.kill(pid, signal.SIGUSR1)
        os.read(read, 1)
        assert peak.read() > held + 60 * MIB
        assert len(walks) == 2
        now[0] = processes.REREAD_SECONDS
        peak.read()
        assert len(walks) == 3, "shared pages may count for more by now"
    assert peak.read() == 0
