"""Deliveries, webhooks and events. Imports no database. Times are seconds since the epoch."""

from dataclasses import dataclass, field
from enum import StrEnum

from batches.records import BatchState

EVENTS = {
    BatchState.COMPLETED: "batch.completed",
    BatchState.FAILED: "batch.failed",
    BatchState.EXPIRED: "batch.expired",
    BatchState.CANCELLED: "batch.cancelled",
}
"""OpenAI's event for each final state."""
DELETED_WORDS = "Its webhook was deleted."
"""The error of its deliveries."""
MOST_URL = 2048
"""Longest URL in characters."""


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
    """End of the batch, in seconds since the epoch."""
    since: float
    """Start of its attempts: the end of the batch, or a later `redeliver`."""
    due: float
    """Time of the next attempt."""
    state: DeliveryState = DeliveryState.PENDING
    attempts: int = 0
    """Attempts since `since`."""
    epoch: int | None = None
    """Epoch of the server that is sending it."""
    status: int | None = None
    """The receiver's last status. None if there was no answer."""
    error: str = ""
    """Why the last attempt failed."""
    ended: float | None = None
    """Time of the delivery or of giving up."""


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The outcome of an attempt. error: the reason of a failure, '' on success."""

    status: int | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class DeliveryChange:
    """The state of a delivery after an attempt."""

    state: DeliveryState
    outcome: DeliveryOutcome
    attempts: int
    due: float


@dataclass(frozen=True, slots=True)
class Webhook:
    """A URL that receives events of all of a team's batches. The one without a URL signs a team's `callback_url`s."""

    id: str
    team: str
    created: float
    updated: float
    secret: str = field(repr=False)
    name: str = ""
    url: str = ""
    events: tuple[str, ...] = ()
    previous: str = field(default="", repr=False)
    """The secret before the last rotation. It also signs until `previous_until`."""
    previous_until: float | None = None

    def secrets(self, now: float) -> tuple[str, ...]:
        """Return the secrets that sign now, newest first."""
        is_rotating = self.previous and self.previous_until is not None and now < self.previous_until
        return (self.secret, self.previous) if is_rotating else (self.secret,)
