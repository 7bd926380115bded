"""What crosses from the slot into EngineCore's process, by environment, and what that process does for itself."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing import connection

ACTIVE = "ROUNDHOUSE_VLLM"
"""1: the plug-in is at work. A plain vLLM in the same environment stays as it was made."""
THREADS = "ROUNDHOUSE_VLLM_THREADS"
"""Compute threads of EngineCore on a CPU: two threads on busy cores wait for each other at every layer."""
CAUSE = "ROUNDHOUSE_VLLM_CAUSE"
"""The file that takes the reason of a failed start."""


def enter() -> None:
    """What EngineCore's own process needs. Called again when EngineCore begins: a fork has its plug-ins loaded."""
    if multiprocessing.current_process().name.startswith("EngineCore"):
        _watch_parent()
        _bound_threads()


def _bound_threads() -> None:
    """Set the compute threads of this process; vLLM's CPU worker makes later calls to set them do nothing."""
    if threads := os.environ.get(THREADS):
        import torch

        torch.set_num_threads(int(threads))


_watching = False


def _watch_parent() -> None:
    """In a child process: die at once when the process that started it is gone, whatever this one is doing."""
    global _watching
    parent = multiprocessing.parent_process()
    if parent is None or _watching:
        return
    _watching = True

    slot = os.getppid()

    def watch() -> None:
        # the sentinel tells at once, but a sibling forked at the wrong moment can hold its other end open
        while os.getppid() == slot and not connection.wait([parent.sentinel], timeout=1.0):
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
