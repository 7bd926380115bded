"""The number of slots that memory has room for."""

from registry.base.control_groups import memory_left

MOST_SLOTS = 64
"""Slots of one server at most."""


def slots_that_fit() -> int:
    """The number of slots that free memory has room for, one for each GiB; a container's limit counts."""
    import psutil  # the command line reads settings, and is to be quick

    free, left = psutil.virtual_memory().available, memory_left()
    return (free if left is None else max(0, min(free, left))) >> 30
