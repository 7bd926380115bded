"""Processes that make training data must not outlive the training, however it ends."""

import ctypes
import multiprocessing
import os
import signal

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """In a child of `multiprocessing`: have Linux kill it when its parent ends. Elsewhere nothing is done."""
    parent, prctl = multiprocessing.parent_process(), getattr(ctypes.CDLL(None), "prctl", None)
    if parent is None or prctl is None:
        return
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent.pid:  # it ended before the call
        os.kill(os.getpid(), signal.SIGKILL)
