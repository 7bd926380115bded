"""What decides who goes first: every request at the head of a queue has a rank, and the lowest one is next."""

from dataclasses import dataclass
from typing import NamedTuple

from runtime.scheduling.fair.accounts import ShareAccounts
from runtime.scheduling.fair.claim import QueueRequest


class Rank(NamedTuple):
    """The order among heads at one moment: counters rise as others start, so a rank is not kept."""

    position: int
    """Of its class: a class that is owed its floor comes before those above it."""
    team: float
    """The team's counter, and its number."""
    team_number: int
    key: float
    key_number: int
    due: float
    arrival: int
    """Counts the requests of one queue."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitingRequest:
    """`digest` None: the base itself. `since`: clock seconds."""

    id: str
    digest: str | None
    since: float
    arrival: int
    claim: QueueRequest
    ties: ShareAccounts
    due: float
    """In its key: its deadline, or as if it had one."""
