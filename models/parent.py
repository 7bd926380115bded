"""A process that must not outlive the one that started it."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send a signal to this process when its parent ends, however that happens.

    The kernel counts the end of the thread that started this process. It stays so when another program is executed,
    not in forks.

    Args:
        parent: its process id; if it has ended already, so does this process.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os.kill(os.getpid(), by)
