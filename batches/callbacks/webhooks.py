"""The table of webhooks. A team sees only its own.

Their secrets sign, so a hash of them would not do. Stored is a random text for each, of which a key that is not in the
database makes the secret (`secret_of`); earlier versions stored secrets themselves.
"""

import base64
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import sqlalchemy as sa

from batches.callbacks.records import DeliveryState, Webhook
from batches.storage.queries import find, page
from batches.storage.tables import OUTBOX, WEBHOOKS
from registry.storage.database import Database, inserting

MOST = 10
"""Webhooks of one team."""
ROTATION_SECONDS = 86_400.0
"""Time for which the former secret signs too."""
PREFIX = "whsec_"
"""The beginning of a secret in Standard Webhooks; base64 follows."""
DELETED_WORDS = "Its webhook was deleted."


def new_seed() -> str:
    """The stored seed of a new secret."""
    return secrets.token_hex(32)


def secret_of(stored: str, key: bytes) -> str:
    """The secret for a stored text; '' for none."""
    if not stored or stored.startswith(PREFIX):
        return stored
    return f"{PREFIX}{base64.b64encode(hmac.digest(key, stored.encode(), 'sha256')).decode()}"


class WebhookTable:
    """Every call is one blocking transaction. Raises Unavailable. key: makes secrets."""

    def __init__(self, database: Database, key: bytes) -> None:
        self._database, self._key = database, key
        self._webhook = partial(webhook_of, key=key)

    def create(self, webhook: Webhook) -> Webhook | None:
        """Store a webhook with the seed of a secret, and return it with the secret. None: the team has `MOST`."""
        mine = sa.select(sa.func.count()).where(WEBHOOKS.c.team == webhook.team, WEBHOOKS.c.url != "")
        with self._database.write() as connection:
            if int(connection.execute(mine).scalar_one()) >= MOST:
                return None
            connection.execute(sa.insert(WEBHOOKS).values(**_values(webhook)))
        return replace(webhook, secret=secret_of(webhook.secret, self._key))

    def get(self, id_: str, team: str) -> Webhook | None:
        """The webhook; None: unknown, or another team's."""
        return find(self._database, _one(id_, team), self._webhook)

    def signer(self, team: str) -> Webhook | None:
        """The one that signs the team's `callback_url`s; None: it has had no such batch yet."""
        return find(self._database, _signer(team), self._webhook)

    def list(self, team: str, after: str | None = None, limit: int = 20) -> Sequence[Webhook] | None:
        """The newest ones first. after: id of the last one of the page before; None: it is unknown."""
        where = [WEBHOOKS.c.team == team, WEBHOOKS.c.url != ""]
        return page(self._database, WEBHOOKS, self._webhook, where, team, after, limit)

    def update(
        self, id_: str, team: str, now: float, *, name: str | None, url: str | None, events: Sequence[str] | None
    ) -> Webhook | None:
        """Change what is not None. Deliveries that wait go to the new URL. None: there is none."""
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
        """Give it a new secret; the former one signs too for a day, or not at all. None: there is none."""
        query = sa.update(WEBHOOKS).where(WEBHOOKS.c.id == id_, WEBHOOKS.c.team == team).returning(WEBHOOKS)
        former = {"previous": WEBHOOKS.c.secret, "previous_until": now + ROTATION_SECONDS}
        values = former if keeps_previous else {"previous": "", "previous_until": None}
        with self._database.write() as connection:
            row = connection.execute(query.values(secret=new_seed(), updated=now, **values)).one_or_none()
        return None if row is None else webhook_of(row, self._key)

    def delete(self, id_: str, team: str, now: float) -> bool:
        """Delete a webhook; its waiting deliveries are dead then. False: there is none."""
        query = sa.delete(WEBHOOKS).where(WEBHOOKS.c.id == id_, WEBHOOKS.c.team == team, WEBHOOKS.c.url != "")
        with self._database.write() as connection:
            if not connection.execute(query).rowcount:
                return False
            connection.execute(
                _waiting(id_).values(state=DeliveryState.DEAD.value, error=DELETED_WORDS, ended=now, epoch=None)
            )
        return True

    def ensure_signer(self, team: str, now: float) -> Webhook:
        """The one that signs the team's `callback_url`s, made if there is none."""
        with self._database.write() as connection:
            ensure_signer(connection, team, now)
            return webhook_of(connection.execute(_signer(team)).one(), self._key)


def ensure_signer(connection: sa.Connection, team: str, now: float) -> None:
    """`WebhookTable.ensure_signer` within a transaction. Its id follows from the team: two cannot be made."""
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
    """The webhook's deliveries that are neither delivered nor dead."""
    states = (DeliveryState.PENDING.value, DeliveryState.SENDING.value)
    return sa.update(OUTBOX).where(OUTBOX.c.webhook == id_, OUTBOX.c.state.in_(states))


def _values(webhook: Webhook) -> dict[str, Any]:
    return {**asdict(webhook), "events": list(webhook.events)}
