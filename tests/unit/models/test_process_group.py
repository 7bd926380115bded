"""Who belongs to a process group, and whether anybody of it still runs."""

import os
import subprocess
import sys

import psutil

from models import process_control
from tests.eventually import eventually


def test_a_group_lives_until_its_last_process_ends() -> None:
    read, write = os.pipe()
    code = "import os; os.fork(); os.read(0, 1)"  # both wait for the pipe's end
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-c", code], os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, read, 0), (os.POSIX_SPAWN_CLOSE, write)], setpgroup=0,
    )  # fmt: skip
    os.close(read)
    try:
        assert process_control.is_group_alive(pid)
        assert pid in {process.pid for process in process_control.group_members(pid)}
        assert os.getpid() not in {process.pid for process in process_control.group_members(pid)}
    finally:
        os.close(write)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert pid in {process.pid for process in process_control.group_members(pid)}, "a zombie still belongs to it"
    os.waitpid(pid, 0)
    assert pid not in {process.pid for process in process_control.group_members(pid)}


def test_a_zombie_does_not_run() -> None:
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ, setpgroup=0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not process_control.is_group_alive(pid)
    os.waitpid(pid, 0)
    assert not process_control.is_group_alive(pid)


def test_a_zombie_with_a_thread_that_runs_does() -> None:
    """The kernel gives back memory and ports with the last thread, and shows a zombie from the first one's end on."""
    read, write = os.pipe()
    code = (
        "import ctypes, os, platform, threading\n"
        "threading.Thread(target=os.read, args=(0, 1)).start()\n"
        "ctypes.CDLL(None).syscall(60 if platform.machine() == 'x86_64' else 93, 0)"  # exit, of this thread only
    )
    process = psutil.Process(
        os.posix_spawn(
            sys.executable, [sys.executable, "-c", code], os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, read, 0), (os.POSIX_SPAWN_CLOSE, write)], setpgroup=0,
        )
    )  # fmt: skip
    os.close(read)
    try:
        eventually(lambda: process.status() == psutil.STATUS_ZOMBIE)
        assert process_control.is_group_alive(process.pid)
    finally:
        os.close(write)
    eventually(lambda: not process_control.is_group_alive(process.pid))
    os.waitpid(process.pid, 0)


def test_an_engine_keeps_to_its_gpu_and_cores() -> None:
    """Its threads and its children too; those that were there before it was told as well."""
    core = min(os.sched_getaffinity(0))
    code = f"""
import os, subprocess, sys, threading
from models.process_control import keep_to
go, done = threading.Event(), []
thread = threading.Thread(target=lambda: (go.wait(), done.append(os.sched_getaffinity(0))))
thread.start()
keep_to("GPU-b", [{core}])
go.set()
thread.join()
child = [sys.executable, "-c", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], *os.sched_getaffinity(0))"]
print(done[0], subprocess.check_output(child, text=True).strip())
"""
    answer = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert answer.strip() == f"{{{core}}} GPU-b {core}"
