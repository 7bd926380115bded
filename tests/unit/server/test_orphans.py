"""Orphans, in a process to which the kernel gives them as it does to a container's first process."""

import subprocess
import sys

from tests.system.serving import ROOT

CODE = """
import ctypes, multiprocessing, subprocess, time
from pathlib import Path
import psutil
from runtime.server.orphans import OrphanReaper
from tests.eventually import eventually

def zombies():
    return [one.pid for one in psutil.Process().children() if one.status() == psutil.STATUS_ZOMBIE]

reaper = OrphanReaper()
reaper.reap()  # without a child
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
for _ in range(3):  # each ends before its own child
    subprocess.run(["sh", "-c", "sleep 0.01 & exit 0"], check=True)
own = multiprocessing.get_context("fork").Process(target=exit, args=(7,))
own.start()
eventually(lambda: len(zombies()) == 4)
reaper.reap()  # sees the orphans, and lets multiprocessing wait for its child
assert len(zombies()) == 3, zombies()
reaper.reap()
assert not zombies()
reaper.reap()
own.join()
assert own.exitcode == 7
"""


def test_ended_orphans_are_waited_for_and_no_others() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
