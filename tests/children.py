"""Child processes of the test's own process."""

from collections.abc import Collection

import psutil


def children() -> list[psutil.Process]:
    return psutil.Process().children()


def running(word: str, others: Collection[psutil.Process] = ()) -> list[psutil.Process]:
    """Return children with `word` in their command line, without `others`, which ran before the test.

    A child that has ended but was not waited for has no command line, and is included.
    """
    return [
        child for child in children() if child not in others and (_ended(child) or word in " ".join(child.cmdline()))
    ]


def _ended(child: psutil.Process) -> bool:
    return child.status() == psutil.STATUS_ZOMBIE
