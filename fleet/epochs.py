"""Rules for writing and following the desired replicas; see the table in `fleet`."""

from collections.abc import Mapping
from typing import NamedTuple


class DesiredReplicas(NamedTuple):
    """The row that placers write and nodes read."""

    epoch: int
    replicas: Mapping[str, tuple[str, ...]]
    """Nodes by model."""


def successor(row: DesiredReplicas, known: int, replicas: Mapping[str, tuple[str, ...]]) -> DesiredReplicas | None:
    """Return the row that a placer that knows an epoch may write, or None if it must stop placing."""
    return DesiredReplicas(known + 1, replicas) if row.epoch == known else None


def may_follow(known: int, row: DesiredReplicas) -> bool:
    """Return whether a node follows the row, which it does not if its own epoch is higher."""
    return row.epoch >= known
