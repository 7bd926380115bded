"""Processes that end with the one that started them."""

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
CHILD = """
import os, sys, time
from models.process_control import die_with_parent
die_with_parent(int(sys.argv[1]) or os.getppid())
print("lives", flush=True)
time.sleep(3600)
"""
PARENT = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1], "0"])
"""


def test_a_killed_parent_takes_its_child_along() -> None:
    command = [sys.executable, "-c", PARENT, CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "lives\n"
        parent.kill()
        assert parent.stdout.read() == "", "ends when the child has closed it, too"


def test_so_does_one_that_had_ended_before() -> None:
    command = [sys.executable, "-c", CHILD, "999999999"]
    done = subprocess.run(command, capture_output=True, timeout=250, cwd=ROOT)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")
