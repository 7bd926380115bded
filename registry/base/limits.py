"""The limits of a process on memory, CPU time and files, as `ulimit` shows them."""

import resource


def limit(which: int, most: int, *, for_good: bool = False) -> None:
    """Limit this process to `most`, or to less if it is not allowed that much.

    which: such as `resource.RLIMIT_AS`. for_good: it can never raise the limit again.
    """
    _, hard = resource.getrlimit(which)
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (allowed, allowed if for_good else hard))
