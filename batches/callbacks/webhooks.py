"""The table of webhooks and their secrets. A team sees only its own.

Secrets are stored as they are, since they sign: a hash could not.
"""

import base64
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from batches.callbacks.records import DeliveryState, Webhook
from batches.storage.queries import page
from batches.storage.tables import OUTBOX, WEBHOOKS
from registry.storage.database import Database, inserting

MOST = 10
"""Webhooks of one team."""
ROTATION_SECONDS = 86_400.0
"""For which the former secret signs too."""
SECRET_BYTES = 32
DELETED_WORDS = "Its webhook was deleted."


def new_secret() -> str:
    """A secret as Standard Webhooks writes it: whsec_ and base64."""
    return f"whsec_{base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()}"


class WebhookTable:
    """Every call is one blocking transaction. Raises Unavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, webhook: Webhook) -> bool:
        """False: the team has `MOST` webhooks."""
        mine = sa.select(sa.func.count()).where(WEBHOOKS.c.team == webhook.team, WEBHOOKS.c.url != "")
        with self._database.write() as connection:
            if int(connection.execute(mine).scalar_one()) >= MOST:
                return False
            connection.execute(sa.insert(WEBHOOKS).values(**_values(webhook)))
        return True

    def get(self, id_: str, team: str) -> Webhook | None:
        """The webhook; None: unknown, or another team's."""
        with self._database.read() as connection:
            row = connection.execute(_one(id_, team)).one_or_none()
        return None if row is None else webhook_of(row)

    def signer(self, team: str) -> Webhook | None:
        """The one that signs the team's `callback_url`s; None: it has had no such batch yet."""
        with self._database.read() as connection:
            row = connection.execute(_signer(team)).one_or_none()
        return None if row is None else webhook_of(row)

    def list(self, team: str, after: str | None = None, limit: int = 20) -> Sequence[Webhook] | None:
        """The newest ones first. after: id of the last one of the page before; None: it is unknown."""
        with self._database.read() as connection:
            where = [WEBHOOKS.c.team == team, WEBHOOKS.c.url != ""]
            rows = page(connection, WEBHOOKS, where, team, after, limit)
        return None if rows is None else [webhook_of(row) for row in rows]

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
        return webhook_of(row)

    def rotate(self, id_: str, team: str, now: float, *, keeps_previous: bool) -> Webhook | None:
        """Give it a new secret; the former one signs too for a day, or not at all. None: there is none."""
        query = sa.update(WEBHOOKS).where(WEBHOOKS.c.id == id_, WEBHOOKS.c.team == team).returning(WEBHOOKS)
        former = {"previous": WEBHOOKS.c.secret, "previous_until": now + ROTATION_SECONDS}
        values = former if keeps_previous else {"previous": "", "previous_until": None}
        with self._database.write() as connection:
            row = connection.execute(query.values(secret=new_secret(), updated=now, **values)).one_or_none()
        return None if row is None else webhook_of(row)

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
            return ensure_signer(connection, team, now)


def ensure_signer(connection: sa.Connection, team: str, now: float) -> Webhook:
    """`WebhookTable.ensure_signer` within a transaction. Its id follows from the team: two cannot be made."""
    if (row := connection.execute(_signer(team)).one_or_none()) is not None:
        return webhook_of(row)
    made = Webhook(_signer_id(team), team, now, now, new_secret())
    connection.execute(inserting(connection, WEBHOOKS).values(**_values(made)).on_conflict_do_nothing())
    return webhook_of(connection.execute(_signer(team)).one())


def webhook_of(row: "sa.Row[Any]") -> Webhook:
    values = row._asdict()
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
