"""Compute how many slots fit into memory."""

from registry.base.control_groups import memory_left

MOST_SLOTS = 64
"""Maximum number of slots of one server."""


def slots_that_fit() -> int:
    """Return how many slots fit into free memory at one per GiB, within a container's limit."""
    import psutil  # not at the top, because the command line reads settings and must start quickly

    free, left = psutil.virtual_memory().available, memory_left()
    return (free if left is None else max(0, min(free, left))) >> 30
