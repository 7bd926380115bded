"""What decides who goes first: every request in a queue has a rank, and the lowest one is next."""

from dataclasses import dataclass
from math import inf, isnan
from typing import Self

from tenants.classes import ServiceClass


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """The order in a queue. Whoever enqueues chooses class and share; arrival breaks ties, and rule 9 of
    `runtime.scheduling.placement` uses it so that nobody waits for ever.

    Raises ValueError for a share that has no order.
    """

    service_class: ServiceClass
    share: float
    """What the caller has had of the model already; 0 where nothing is shared."""
    arrival: int
    """Counts the requests of one queue."""

    def __post_init__(self) -> None:
        if isnan(self.share):
            raise ValueError("a share must be a number")

    def promoted(self) -> Self:
        """Before every rank that is not promoted; promoted ones stand in order of arrival."""
        return type(self)(ServiceClass.CRITICAL, -inf, self.arrival)
