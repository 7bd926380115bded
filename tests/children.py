"""Processes that the test's own process has started."""

import contextlib

import psutil


def running(word: str) -> list[psutil.Process]:
    """Those with this in their command line. A child that has ended and was not asked for yet has none."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if word in " ".join(child.cmdline()):
                found.append(child)
    return found
