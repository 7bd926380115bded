"""The table of deliveries: written when a batch ends, claimed and ended under an epoch."""

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import sqlalchemy as sa

from batches.callbacks.policy import LONGEST_PAUSE
from batches.callbacks.records import EVENTS, Delivery, DeliveryChange, DeliveryState
from batches.callbacks.webhooks import webhook_of
from batches.records import BatchState
from batches.storage.queries import find_all, is_open
from batches.storage.tables import OUTBOX, WEBHOOKS
from registry.storage.database import Database

LISTED = 100
"""Most deliveries of one batch that are listed."""


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    delivery: Delivery
    secrets: tuple[str, ...] = field(repr=False)
    """The secrets that sign it now. Empty if its webhook was deleted."""


class OutboxTable:
    """Every call is one blocking transaction. Raises Unavailable. key: makes secrets of webhooks."""

    def __init__(self, database: Database, key: bytes) -> None:
        self._database, self._key = database, key

    def is_due(self, now: float) -> bool:
        """Whether a pending delivery is due."""
        query = sa.select(OUTBOX.c.id).where(_is_due(now)).limit(1)
        with self._database.read() as connection:
            return connection.execute(query).one_or_none() is not None

    def claim(
        self, epoch: int, now: float, most: int, per_team: int, running: Mapping[str, int]
    ) -> Sequence[ClaimedDelivery]:
        """Claim due deliveries under an open epoch, longest due first: pending → sending.

        most: for all teams. per_team: for one team, including `running`, those being sent by team.
        """
        busy = [team for team, count in running.items() if count >= per_team]
        candidates = (
            sa.select(OUTBOX.c.id, OUTBOX.c.team)
            .where(_is_due(now), OUTBOX.c.team.not_in(busy))
            .order_by(OUTBOX.c.due)
            .limit(most)
            .with_for_update(skip_locked=True)
        )
        with self._database.write() as connection:
            if not is_open(connection, epoch):
                return []
            counts, ids = Counter(running), list[str]()
            for id_, team in connection.execute(candidates).all():
                if counts[team] < per_team:
                    counts[team] += 1
                    ids.append(id_)
            if not ids:
                return []
            query = sa.update(OUTBOX).where(OUTBOX.c.id.in_(ids)).returning(OUTBOX)
            rows = connection.execute(query.values(state=DeliveryState.SENDING.value, epoch=epoch)).all()
            hooks = sa.select(WEBHOOKS).where(WEBHOOKS.c.id.in_({row.webhook for row in rows}))
            signers = {row.id: webhook_of(row, self._key).secrets(now) for row in connection.execute(hooks)}
        return [ClaimedDelivery(_delivery(row), signers.get(row.webhook, ())) for row in rows]

    def end(self, epoch: int, delivery: Delivery, change: DeliveryChange, now: float) -> bool:
        """End an attempt. Returns False without changing anything if this epoch is not sending it any more."""
        is_over = change.state in (DeliveryState.DELIVERED, DeliveryState.DEAD)
        query = sa.update(OUTBOX).where(
            OUTBOX.c.id == delivery.id, OUTBOX.c.state == DeliveryState.SENDING.value, OUTBOX.c.epoch == epoch
        )
        values = {
            "state": change.state.value,
            "epoch": None,
            "attempts": change.attempts,
            "due": change.due,
            "status": change.outcome.status,
            "error": change.outcome.error,
            "ended": now if is_over else None,
        }
        with self._database.write() as connection:
            return connection.execute(query.values(**values)).rowcount > 0

    def of(self, batch: str) -> Sequence[Delivery]:
        """Return the deliveries of a batch, at most `LISTED`."""
        query = sa.select(OUTBOX).where(OUTBOX.c.batch == batch).order_by(OUTBOX.c.created, OUTBOX.c.id).limit(LISTED)
        return find_all(self._database, query, _delivery)

    def redeliver(self, batch: str, now: float) -> int:
        """Make delivered and dead deliveries of a batch pending again, and pending ones due now. Returns how many.

        They go to the current URLs of their webhooks. Deliveries of a deleted webhook stay dead.
        """
        has_webhook = sa.exists().where(WEBHOOKS.c.id == OUTBOX.c.webhook)
        query = sa.update(OUTBOX).where(
            OUTBOX.c.batch == batch, OUTBOX.c.state != DeliveryState.SENDING.value, has_webhook
        )
        current = sa.select(WEBHOOKS.c.url).where(WEBHOOKS.c.id == OUTBOX.c.webhook).scalar_subquery()
        url = sa.func.coalesce(sa.func.nullif(current, ""), OUTBOX.c.url)  # the signer of callback_urls has none
        values = {"state": DeliveryState.PENDING.value, "since": now, "due": now, "attempts": 0, "ended": None}
        with self._database.write() as connection:
            return connection.execute(query.values(**values, url=url)).rowcount

    def forget(self, before: float, limit: int = 1000) -> int:
        """Delete deliveries that ended before this time. Returns how many."""
        old = sa.select(OUTBOX.c.id).where(OUTBOX.c.ended < before).limit(limit)
        with self._database.write() as connection:
            return connection.execute(sa.delete(OUTBOX).where(OUTBOX.c.id.in_(old.scalar_subquery()))).rowcount


def announce(
    connection: sa.Connection, id_: str, team: str, surface: str, state: BatchState, callback: str, now: float
) -> None:
    """Write the deliveries of a batch that ends, in the transaction that ends it."""
    if surface != "openai":  # clients of Message Batches do not know such events
        return
    event = EVENTS[state]
    for row in connection.execute(sa.select(WEBHOOKS).where(WEBHOOKS.c.team == team)).all():
        url = row.url if event in row.events else "" if row.url else callback
        if url:
            delivery = Delivery(f"evt_{secrets.token_hex(16)}", team, id_, row.id, url, event, now, now, now)
            connection.execute(sa.insert(OUTBOX).values(**_values(delivery)))


def give_back(connection: sa.Connection, epoch: int) -> int:
    """Make the deliveries of a closed epoch pending again. Returns how many."""
    query = sa.update(OUTBOX).where(OUTBOX.c.epoch == epoch, OUTBOX.c.state == DeliveryState.SENDING.value)
    return connection.execute(query.values(state=DeliveryState.PENDING.value, epoch=None)).rowcount


def _is_due(now: float) -> sa.ColumnElement[bool]:
    """Whether a delivery waits and its pause is over. One beyond `LONGEST_PAUSE` means that the clock was set back."""
    is_over = sa.or_(OUTBOX.c.due <= now, OUTBOX.c.due > now + LONGEST_PAUSE)
    return sa.and_(OUTBOX.c.state == DeliveryState.PENDING.value, is_over)


def _values(delivery: Delivery) -> dict[str, object]:
    return {**asdict(delivery), "state": delivery.state.value}


def _delivery(row: "sa.Row[tuple[object, ...]]") -> Delivery:
    values = row._asdict()
    return Delivery(**{**values, "state": DeliveryState(values["state"])})
