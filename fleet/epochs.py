"""The right to write the desired replicas, and the choice between two lists; see the table in `fleet`."""

from collections.abc import Mapping
from typing import NamedTuple


class DesiredReplicas(NamedTuple):
    """The row that placers write, and nodes read."""

    epoch: int
    replicas: Mapping[str, tuple[str, ...]]
    """Nodes by model."""


def successor(row: DesiredReplicas, known: int, replicas: Mapping[str, tuple[str, ...]]) -> DesiredReplicas | None:
    """The row after a placer's write that knows an epoch; None: nothing is written, and it must stop placing."""
    return DesiredReplicas(known + 1, replicas) if row.epoch == known else None


def may_follow(known: int, row: DesiredReplicas) -> bool:
    """Whether a node that knows an epoch follows the row: not where the database is at an older state."""
    return row.epoch >= known
