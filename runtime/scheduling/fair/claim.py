"""What a request asks of a queue, and for whom."""

from dataclasses import dataclass

from registry.names import DEFAULT_TEAM
from tenants.classes import ServiceClass


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """`team` and `key` share by weight with those of their class; `work` is what it is charged when it starts."""

    team: str = DEFAULT_TEAM
    key: str = ""
    weight: float = 1.0
    """Of the team."""
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    work: float = 1.0
    """Foreseen, in units of a prompt token's work."""
    due: float | None = None
    """Its deadline, in the queue's clock."""
    pool: str = ""
    """'': none of the recipe's."""


DEFAULT_REQUEST = QueueRequest()
