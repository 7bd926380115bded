"""Processes that the test's own process has started."""

from collections.abc import Collection

import psutil


def children() -> list[psutil.Process]:
    return psutil.Process().children()


def running(word: str, others: Collection[psutil.Process] = ()) -> list[psutil.Process]:
    """Those with this in their command line. One that has ended and was not waited for has none, and counts; but not
    `others`, which were there before the test."""
    return [
        child for child in children() if child not in others and (_ended(child) or word in " ".join(child.cmdline()))
    ]


def _ended(child: psutil.Process) -> bool:
    return child.status() == psutil.STATUS_ZOMBIE
