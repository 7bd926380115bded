"""Deliveries, webhooks and events, free of the database. Times are seconds since the epoch."""

from dataclasses import dataclass, field
from enum import StrEnum

from batches.records import BatchState

EVENTS = {
    BatchState.COMPLETED: "batch.completed",
    BatchState.FAILED: "batch.failed",
    BatchState.EXPIRED: "batch.expired",
    BatchState.CANCELLED: "batch.cancelled",
}
"""OpenAI's event of each final state."""
MOST_URL = 2048
"""Characters of a URL."""


class DeliveryState(StrEnum):
    PENDING = "pending"
    SENDING = "sending"
    DELIVERED = "delivered"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Delivery:
    id: str
    """The event's id, and the `webhook-id` of each attempt."""
    team: str
    batch: str
    webhook: str
    """The webhook whose secret signs it."""
    url: str
    event: str
    created: float
    """The end of the batch, in seconds since the epoch."""
    since: float
    """The first moment of its attempts: the end of the batch, or a later `redeliver`."""
    due: float
    """Time of the next attempt."""
    state: DeliveryState = DeliveryState.PENDING
    attempts: int = 0
    """Attempts since `since`."""
    epoch: int | None = None
    """Epoch of the server that sends it."""
    status: int | None = None
    """The receiver's last answer; None: there was none."""
    error: str = ""
    """Why the last attempt failed."""
    ended: float | None = None
    """The moment of delivery or of giving up."""


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """An attempt's outcome. error: the reason of a failure; '' on success."""

    status: int | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class DeliveryChange:
    """A delivery's state after an attempt."""

    state: DeliveryState
    outcome: DeliveryOutcome
    attempts: int
    due: float


@dataclass(frozen=True, slots=True)
class Webhook:
    """A URL that gets events of all of a team's batches. The one without a URL signs a team's `callback_url`s."""

    id: str
    team: str
    created: float
    updated: float
    secret: str = field(repr=False)
    name: str = ""
    url: str = ""
    events: tuple[str, ...] = ()
    previous: str = field(default="", repr=False)
    """The secret before the last rotation, which signs too until `previous_until`."""
    previous_until: float | None = None

    def secrets(self, now: float) -> tuple[str, ...]:
        """The secrets that sign now, the newest first."""
        is_rotating = self.previous and self.previous_until is not None and now < self.previous_until
        return (self.secret, self.previous) if is_rotating else (self.secret,)
