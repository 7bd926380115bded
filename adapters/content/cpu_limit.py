"""A bound on the processor time of what a stranger's patterns make us do."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside the block after so much processor time. Main thread only.

    Python's `re` needs exponential time for some patterns, and checks for signals meanwhile. It is processor time, so
    that a busy machine refuses no valid adapter.
    """

    def over(*_: object) -> None:
        raise TimeoutError(
            f"The patterns of adapter_config.json (target_modules, rank_pattern, alpha_pattern) take more than "
            f"{seconds:g} s of processor time to match: write plain names of modules."
        )

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
