"""The table of webhooks. A team sees only its own.

Secrets must be usable for signing, so a hash would not do. The table stores a random seed, from which a key outside the
database derives the secret (`secret_of`).
"""

import base64
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import sqlalchemy as sa

from batches.callbacks.records import DELETED_WORDS, DeliveryState, Webhook
from batches.storage.queries import find, page, take_turns
from batches.storage.tables import OUTBOX, WEBHOOKS
from registry.storage.database import Database, inserting

MOST = 10
"""Most webhooks of one team."""
ROTATION_SECONDS = 86_400.0
"""Time for which the previous secret also signs."""
PREFIX = "whsec_"
"""Prefix of a Standard Webhooks secret, followed by base64."""


def new_seed() -> str:
    """Return a random seed for a new secret."""
    return secrets.token_hex(32)


def secret_of(stored: str, key: bytes) -> str:
    """Return the secret for a stored seed, '' for none."""
    if not stored:
        return ""
    return f"{PREFIX}{base64.b64encode(hmac.digest(key, stored.encode(), 'sha256')).decode()}"


class WebhookTable:
    """Every call is one blocking transaction. Raises Unavailable. key: makes secrets."""

    def __init__(self, database: Database, key: bytes) -> None:
        self._database, self._key = database, key
        self._webhook = partial(webhook_of, key=key)

    def create(self, webhook: Webhook) -> Webhook | None:
        """Store a webhook with its seed, and return it with the secret. Returns None if the team has `MOST`."""
        mine = sa.select(sa.func.count()).where(WEBHOOKS.c.team == webhook.team, WEBHOOKS.c.url != "")
        with self._database.write() as connection:
            take_turns(connection, webhook.team, "webhooks")  # or two servers at once could pass the limit
            if int(connection.execute(mine).scalar_one()) >= MOST:
                return None
            connection.execute(sa.insert(WEBHOOKS).values(**_values(webhook)))
        return replace(webhook, secret=secret_of(webhook.secret, self._key))

    def get(self, id_: str, team: str) -> Webhook | None:
        """Return the webhook, or None if it is unknown or another team's."""
        return find(self._database, _one(id_, team), self._webhook)

    def signer(self, team: str) -> Webhook | None:
        """Return the signer of the team's `callback_url`s, or None if the team has none yet."""
        return find(self._database, _signer(team), self._webhook)

    def list(self, team: str, after: str | None = None, limit: int = 20) -> Sequence[Webhook] | None:
        """Return webhooks, newest first, or None if `after` is unknown. after: last id of the previous page."""
        where = [WEBHOOKS.c.team == team, WEBHOOKS.c.url != ""]
        return page(self._database, WEBHOOKS, self._webhook, where, team, after, limit)

    def update(
        self, id_: str, team: str, now: float, *, name: str | None, url: str | None, events: Sequence[str] | None
    ) -> Webhook | None:
        """Change the fields that are not None. Pending deliveries go to the new URL. Returns None if there is none."""
        given = {"name": name, "url": url, "events": None if events is None else list(events)}
        values: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        with self._database.write() as connection:
            row = connection.execute(_one(id_, team).with_for_update()).one_or_none()
            if row is None:
                return None
            if any(getattr(row, key) != value for key, value in values.items()):
                query = sa.update(WEBHOOKS).where(WEBHOOKS.c.id == id_).returning(WEBHOOKS)
                row = connection.execute(query.values(**values, updated=now)).one()
            if url is not None:
                connection.execute(_waiting(id_).values(url=url))
        return webhook_of(row, self._key)

    def rotate(self, id_: str, team: str, now: float, *, keeps_previous: bool) -> Webhook | None:
        """Rotate the secret. The old one also signs for a day if kept. Returns None if there is no such webhook."""
        query = sa.update(WEBHOOKS).where(WEBHOOKS.c.id == id_, WEBHOOKS.c.team == team).returning(WEBHOOKS)
        former = {"previous": WEBHOOKS.c.secret, "previous_until": now + ROTATION_SECONDS}
        values = former if keeps_previous else {"previous": "", "previous_until": None}
        with self._database.write() as connection:
            row = connection.execute(query.values(secret=new_seed(), updated=now, **values)).one_or_none()
        return None if row is None else webhook_of(row, self._key)

    def delete(self, id_: str, team: str, now: float) -> bool:
        """Delete a webhook and make its unfinished deliveries dead. Returns False if there is none."""
        query = sa.delete(WEBHOOKS).where(WEBHOOKS.c.id == id_, WEBHOOKS.c.team == team, WEBHOOKS.c.url != "")
        with self._database.write() as connection:
            if not connection.execute(query).rowcount:
                return False
            connection.execute(
                _waiting(id_).values(state=DeliveryState.DEAD.value, error=DELETED_WORDS, ended=now, epoch=None)
            )
        return True

    def ensure_signer(self, team: str, now: float) -> Webhook:
        """Return the signer of the team's `callback_url`s, created if missing."""
        with self._database.write() as connection:
            ensure_signer(connection, team, now)
            return webhook_of(connection.execute(_signer(team)).one(), self._key)


def ensure_signer(connection: sa.Connection, team: str, now: float) -> None:
    """`WebhookTable.ensure_signer` in a transaction. The id depends only on the team, so there is at most one."""
    made = Webhook(_signer_id(team), team, now, now, new_seed())
    connection.execute(inserting(connection, WEBHOOKS).values(**_values(made)).on_conflict_do_nothing())


def webhook_of(row: "sa.Row[Any]", key: bytes) -> Webhook:
    values = row._asdict()
    for name in ("secret", "previous"):
        values[name] = secret_of(values[name], key)
    return Webhook(**{**values, "events": tuple(values["events"])})


def _signer_id(team: str) -> str:
    return f"callbacks:{team}"


def _signer(team: str) -> "sa.Select[Any]":
    return sa.select(WEBHOOKS).where(WEBHOOKS.c.id == _signer_id(team))


def _one(id_: str, team: str) -> "sa.Select[Any]":
    return sa.select(WEBHOOKS).where(WEBHOOKS.c.id == id_, WEBHOOKS.c.team == team, WEBHOOKS.c.url != "")


def _waiting(id_: str) -> sa.Update:
    """Return an update of the webhook's unfinished deliveries."""
    states = (DeliveryState.PENDING.value, DeliveryState.SENDING.value)
    return sa.update(OUTBOX).where(OUTBOX.c.webhook == id_, OUTBOX.c.state.in_(states))


def _values(webhook: Webhook) -> dict[str, Any]:
    return {**asdict(webhook), "events": list(webhook.events)}
