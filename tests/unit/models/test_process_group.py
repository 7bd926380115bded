"""Who belongs to a process group, and whether anybody of it still runs."""

import os
import sys

from models import process_group


def test_a_group_lives_until_its_last_process_ends() -> None:
    read, write = os.pipe()
    code = "import os; os.fork(); os.read(0, 1)"  # both wait for the pipe's end
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-c", code], os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, read, 0), (os.POSIX_SPAWN_CLOSE, write)], setpgroup=0,
    )  # fmt: skip
    os.close(read)
    try:
        assert process_group.alive(pid)
        assert pid in {process.pid for process in process_group.members(pid)}
        assert os.getpid() not in {process.pid for process in process_group.members(pid)}
    finally:
        os.close(write)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert pid in {process.pid for process in process_group.members(pid)}, "a zombie still belongs to it"
    os.waitpid(pid, 0)
    assert pid not in {process.pid for process in process_group.members(pid)}


def test_a_zombie_does_not_run() -> None:
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ, setpgroup=0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not process_group.alive(pid)
    os.waitpid(pid, 0)
    assert not process_group.alive(pid)
