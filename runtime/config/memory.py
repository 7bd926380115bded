"""The number of slots that memory has room for."""

MOST_SLOTS = 64
"""Slots of one server at most."""


def slots_that_fit() -> int:
    """The number of slots that free memory has room for: one for each GiB."""
    import psutil  # the command line reads settings, and is to be quick

    return psutil.virtual_memory().available >> 30
