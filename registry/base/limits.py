"""The limits of a process on memory, CPU time, files and threads, as `ulimit` shows them."""

import resource

NO_PROCESSES = (
    "no further process or thread may start; raise ulimit -u, TasksMax= of the systemd unit, or --pids-limit of the "
    "container"
)


def limit(which: int, most: int, *, for_good: bool = False) -> None:
    """Limit this process to `most`, or to less if it is not allowed that much.

    which: such as `resource.RLIMIT_AS`. for_good: it can never raise the limit again.
    """
    _, hard = resource.getrlimit(which)
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (allowed, allowed if for_good else hard))


def is_out_of_processes(error: BaseException | None) -> bool:
    """Return whether an error or its cause is that the system allows no further process or thread."""
    while error is not None:
        if isinstance(error, BlockingIOError) or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
            return True
        error = error.__cause__
    return False
