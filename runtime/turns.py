"""Slots start together and would all import at once what each of them needs. Those that have more to import, because a
model is wanted at once, go first; the others begin when the last of them has begun to serve, or after a while.
"""

import contextlib
import os
import time
from functools import cache

VARIABLE = "ROUNDHOUSE_SLOTS_FIRST"
"""In a slot's environment: how many go first, and the run's folder."""
SECONDS = 3.0
EVERY_SECONDS = 0.02


def announce(run_dir: str, count: int) -> None:
    """For the processes that this one starts."""
    os.environ[VARIABLE] = f"{count} {run_dir}"


def take() -> None:
    """Return when it is this process's turn."""
    count, _, run_dir = os.environ.get(VARIABLE, "0 ").partition(" ")
    if count == "0" or number(run_dir, int(count)) is not None:
        return
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and not all(os.path.exists(_served(run_dir, n)) for n in range(int(count))):
        time.sleep(EVERY_SECONDS)


@cache
def number(run_dir: str, count: int) -> int | None:
    """One below `count` for each of the first processes that ask in a run; None for all later ones."""
    for n in range(count):
        with contextlib.suppress(OSError):  # taken, or the run is over
            os.close(os.open(f"{run_dir}/begun-{n}", os.O_CREAT | os.O_EXCL, 0o600))
            return n
    return None


def serves(run_dir: str, n: int) -> None:
    """The process that got number `n` has imported what every slot needs."""
    with contextlib.suppress(OSError):
        os.close(os.open(_served(run_dir, n), os.O_CREAT, 0o600))


def _served(run_dir: str, n: int) -> str:
    return f"{run_dir}/serves-{n}"
