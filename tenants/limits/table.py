"""Limits in the database. Each change increments the keyring's revision, so that servers notice it."""

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from registry.base.wording import quoted
from registry.errors import BadRequest, Conflict, NotFound
from registry.storage.database import Database
from tenants.keys.table import lines, rotation_chain
from tenants.limits.records import Kind, Limit, Mode, zone_of
from tenants.storage.tables import CHANGED, KEYS, LEDGER, LIMITS, TEAMS

RECENT_SECONDS = 7 * 86_400.0


class LimitTable:
    """Each call is one transaction and blocks on the database."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database, self._clock = database, clock

    def all(self, owner: str | None = None, subject: str | None = None) -> list[Limit]:
        """Return limits, oldest first. Limits of a key are those of its rotation chain, listed under its first key."""
        query = sa.select(LIMITS).order_by(LIMITS.c.created, LIMITS.c.id)
        if owner is not None:
            query = query.where(LIMITS.c.owner == owner)
        with self._database.read() as connection:
            firsts = lines(connection)
            if subject is not None:
                query = query.where(
                    LIMITS.c.subject.in_(rotation_chain(subject, firsts) if owner == "key" else [subject])
                )
            return [_of_line(_limit(row), firsts) for row in connection.execute(query)]

    def zones(self) -> dict[str, ZoneInfo]:
        """Return time zones by team and by key id. Raises Conflict if this machine lacks one."""
        with self._database.read() as connection:
            teams = connection.execute(sa.select(TEAMS.c.id, TEAMS.c.timezone)).all()
            keys = connection.execute(sa.select(KEYS.c.id, KEYS.c.team)).all()
        zones = {row.id: _known_zone(row.id, row.timezone) for row in teams}
        return {**zones, **{row.id: zones[row.team] for row in keys}}

    def zone(self, limit: Limit) -> ZoneInfo:
        """Return the time zone of a limit's team. Raises NotFound."""
        self.check(limit.owner, limit.subject)
        return self.zones()[limit.subject]

    def check(self, owner: str, subject: str) -> None:
        """Raise NotFound if there is no such team or key."""
        with self._database.read() as connection:
            _check(connection, owner, subject)

    def check_model(self, name: str) -> bool:
        """Return whether recent requests counted for a model, or True for '', which means all models.

        Raises BadRequest if they show that the name is an alias, adapter or router, which counts nothing.
        """
        if not name:
            return True
        recent, is_id = LEDGER.c.at > self._clock() - RECENT_SECONDS, LEDGER.c.model == name
        query = sa.select(LEDGER.c.model).where(recent, sa.or_(is_id, LEDGER.c["asked"] == name))
        with self._database.read() as connection:
            model = connection.execute(query.order_by(sa.desc(is_id), sa.desc(LEDGER.c.at)).limit(1)).scalar()
        if model is not None and model.partition("@")[0] != name:
            raise BadRequest(
                f"{quoted(name)} is not the id of a model: the last request to it counted for {quoted(model)}. Give "
                "that id, or another model's.",
                param="model",
            )
        return model is not None

    def set(self, limit: Limit) -> Limit:
        """Set a limit, replacing the one with the same owner, kind and model. Warning limits only replace each other.

        Raises NotFound if there is no such team or key, BadRequest as `check_model`.
        """
        self.check_model(limit.model)
        alike = (LIMITS.c.owner == limit.owner) & (LIMITS.c.kind == limit.kind) & (LIMITS.c.model == limit.model)
        alike &= (LIMITS.c.mode == Mode.WARN) == (limit.mode is Mode.WARN)
        with self._database.write_durably() as connection:
            _check(connection, limit.owner, limit.subject)
            firsts = lines(connection)
            line = rotation_chain(limit.subject, firsts) if limit.owner == "key" else [limit.subject]
            limit, alike = _of_line(limit, firsts), alike & LIMITS.c.subject.in_(line)
            rows = connection.execute(sa.select(LIMITS.c.id).where(alike).order_by(LIMITS.c.created)).scalars().all()
            if rows:
                connection.execute(sa.delete(LIMITS).where(LIMITS.c.id.in_(rows)))
            return self._insert(connection, replace(limit, id=rows[0] if rows else ""))

    def add(self, limit: Limit) -> Limit:
        """Add a limit without replacing any. Raises NotFound."""
        with self._database.write_durably() as connection:
            _check(connection, limit.owner, limit.subject)
            return self._insert(connection, _of_line(limit, lines(connection)))

    def change(self, id_: str, changed: Callable[[Limit], Limit]) -> Limit:
        """Replace a limit by what `changed` makes of it. Raises NotFound."""
        with self._database.write_durably() as connection:
            row = self._take(connection, id_)
            return self._insert(connection, changed(_limit(row)), row.created)

    def remove(self, id_: str) -> Limit:
        """Remove a limit and return it. Raises NotFound."""
        with self._database.write_durably() as connection:
            row = self._take(connection, id_)
            connection.execute(CHANGED)
        return _limit(row)

    def _take(self, connection: sa.Connection, id_: str) -> Any:
        """Delete the row and return it. Raises NotFound."""
        row = connection.execute(sa.delete(LIMITS).where(LIMITS.c.id == id_).returning(LIMITS)).one_or_none()
        if row is None:
            raise NotFound(f"There is no limit {quoted(id_)}; see `roundhouse limits list`.", code="limit_not_found")
        return row

    def _insert(self, connection: sa.Connection, limit: Limit, created: float | None = None) -> Limit:
        stored = replace(limit, id=limit.id or f"lim_{secrets.token_hex(8)}")
        values: dict[str, Any] = {
            "id": stored.id, "owner": stored.owner, "subject": stored.subject, "kind": stored.kind.value,
            "model": stored.model,
            "amount": stored.amount, "mode": stored.mode.value, "emails": [],
            "created": self._clock() if created is None else created,
        }  # fmt: skip
        connection.execute(sa.insert(LIMITS).values(values))
        connection.execute(CHANGED)
        return stored


def _known_zone(team: str, name: str) -> ZoneInfo:
    try:
        return zone_of(name)
    except BadRequest:  # it was known where it was set
        raise Conflict(
            f"This machine does not know {name}, the time zone of team '{team}'. Install the package tzdata (or "
            f"tzdata-legacy), or choose another: roundhouse teams edit {team} --timezone UTC."
        ) from None


def _check(connection: sa.Connection, owner: str, subject: str) -> None:
    table = TEAMS if owner == "team" else KEYS
    if connection.execute(sa.select(table.c.id).where(table.c.id == subject)).first() is None:
        raise NotFound(
            f"There is no {owner} {quoted(subject)}; see `roundhouse {owner}s list`.",
            code="team_not_found" if owner == "team" else "key_not_found",
            param=owner,
        )


def _of_line(limit: Limit, firsts: dict[str, str]) -> Limit:
    return replace(limit, subject=firsts.get(limit.subject, limit.subject)) if limit.owner == "key" else limit


def _limit(row: Any) -> Limit:
    kind, mode = Kind(row.kind), Mode(row.mode)
    return Limit(row.id, row.owner, row.subject, kind, row.amount, mode, row.model)
