"""Keeps processes that make training data from outliving the training."""

import ctypes
import multiprocessing
import os
import signal

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have Linux kill this child of `multiprocessing` when its parent ends. Does nothing elsewhere."""
    parent, prctl = multiprocessing.parent_process(), getattr(ctypes.CDLL(None), "prctl", None)
    if parent is None or prctl is None:
        return
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent.pid:  # it ended before the call
        os.kill(os.getpid(), signal.SIGKILL)
