"""Data workers of a training end with it, even if it is killed."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

PARENT = """
import multiprocessing, time
from tests.unit.starter_training.test_children import forever
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=forever)
    child.start()
    print(child.pid, flush=True)
    time.sleep(600)
"""


def forever() -> None:
    from starter_training.children import end_with_parent

    end_with_parent()
    print("ready", flush=True)
    time.sleep(600)


@pytest.mark.long
def test_a_killed_training_leaves_no_worker() -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": ".:starter-training"}
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert parent.stdout.readline().strip() == "ready"
        parent.send_signal(signal.SIGTERM)
        psutil.wait_procs([child], timeout=200)
        assert not child.is_running()
