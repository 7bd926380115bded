"""Teams and keys in the database. Each change increments the revision that servers watch."""

import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from registry.base.wording import nearest, quoted
from registry.errors import Conflict, NotFound
from registry.names import DEFAULT_TEAM
from registry.storage.database import Database
from tenants.caller import Scope, ServiceClass
from tenants.keys import secret
from tenants.keys.keyring import KeyEntry, TeamEntry
from tenants.keys.records import Key, KeyRequest, Team, check_hours, check_name, check_team, check_weight
from tenants.limits.records import zone_of
from tenants.storage.tables import ACCOUNTS, CHANGED, KEYRING, KEYS, RESPONSES, TEAMS


def lines(connection: sa.Connection) -> dict[str, str]:
    """Map each rotated key to the first key of its rotation chain."""
    query = sa.select(KEYS.c.id, KEYS.c.replaces).where(KEYS.c.replaces.is_not(None))
    before: dict[str, str] = {row.id: row.replaces for row in connection.execute(query)}
    roots = {}
    for id_ in before:
        first = id_
        while first in before:
            first = before[first]
        roots[id_] = first
    return roots


def rotation_chain(id_: str, roots: Mapping[str, str]) -> list[str]:
    """Return all keys of a key's rotation chain, first one first. roots: result of `lines`."""
    first = roots.get(id_, id_)
    return rotation_chains(roots).get(first, [first])


def rotation_chains(roots: Mapping[str, str]) -> dict[str, list[str]]:
    """Return all keys of each rotation chain by its first key, first one first. roots: result of `lines`."""
    chains: dict[str, list[str]] = {}
    for other, first in roots.items():
        chains.setdefault(first, [first]).append(other)
    return chains


RESPONSES_AT_ONCE = 500
"""Most stored responses that one transaction deletes."""
_OWNER = b"roundhouse pepper"


class KeyTable:
    """Each call is one transaction, after others that delete many stored responses, and blocks on the database.

    Args:
        pepper: for the keys. Raises Conflict if the keys in the database were created with another one.
    """

    def __init__(self, database: Database, pepper: bytes, clock: Callable[[], float] = time.time) -> None:
        self._database, self.pepper, self._clock = database, pepper, clock
        self._claim()

    def _salt(self, team: str) -> str:
        return hmac.digest(self.pepper, b"roundhouse cache of " + team.encode(), "sha256").hex()

    def _claim(self) -> None:
        mark = hmac.digest(self.pepper, _OWNER, "sha256")
        with self._database.write() as connection:
            connection.execute(sa.update(KEYRING).where(KEYRING.c.pepper.is_(None)).values(pepper=mark))
            stored = connection.execute(sa.select(KEYRING.c.pepper)).scalar_one()
        if not hmac.compare_digest(stored, mark):
            raise Conflict(
                "The keys in this database were made with another pepper. Bring back the file 'pepper' of the data "
                "directory, or the ROUNDHOUSE_PEPPER, that they were made with.",
                code="other_pepper",
            )

    # --- teams ------------------------------------------------------------------------------------------------------
    def list_teams(self) -> list[Team]:
        with self._database.read() as connection:
            rows = connection.execute(sa.select(TEAMS).order_by(TEAMS.c.created, TEAMS.c.id)).all()
        return [_team(row) for row in rows]

    def team(self, id_: str) -> Team:
        """Return a team. Raises NotFound."""
        with self._database.read() as connection:
            return _team(self._of_team(connection, id_))

    def create_team(self, id_: str, name: str = "", weight: float = 1.0, timezone: str = "UTC") -> Team:
        """Create a team. Raises BadRequest for a bad name, weight or zone, Conflict if the id is taken."""
        check_team(id_)
        check_name(name)
        check_weight(weight)
        zone_of(timezone)
        team = Team(id_, name or id_, self._clock(), weight=weight, timezone=timezone)
        with self._database.write_durably() as connection:
            if _find(connection, TEAMS, id_) is not None:
                raise Conflict(f"There is a team '{id_}' already. Choose another id.", code="team_exists", param="team")
            connection.execute(sa.insert(TEAMS).values(asdict(team)))
            connection.execute(CHANGED)
        return team

    def archive(self, id_: str, archived: bool) -> Team:
        """Archive or restore a team. Archiving refuses its keys and deletes its stored responses.

        Raises NotFound, and Conflict for the default team.
        """
        if id_ == DEFAULT_TEAM and archived:
            raise Conflict(
                f"The team '{DEFAULT_TEAM}' cannot be archived: requests without a key belong to it.", param="team"
            )
        if archived:
            self._delete_responses(id_)
        with self._database.write_durably() as connection:
            team = _team(self._of_team(connection, id_))
            if (team.archived is not None) == archived:
                return team
            at = self._clock() if archived else None
            connection.execute(sa.update(TEAMS).where(TEAMS.c.id == id_).values(archived=at))
            if archived:
                connection.execute(sa.delete(RESPONSES).where(RESPONSES.c.team == id_))
            connection.execute(CHANGED)
        return replace(team, archived=at)

    def edit_team(
        self,
        id_: str,
        *,
        name: str | None = None,
        weight: float | None = None,
        timezone: str | None = None,
        store_texts: bool | None = None,
        response_hours: int | None = None,
    ) -> Team:
        """Change the given fields. In effect within a second. Raises BadRequest, NotFound.

        0 `response_hours` deletes the stored responses.
        """
        check_name(name or "")
        check_weight(1.0 if weight is None else weight)
        zone_of("UTC" if timezone is None else timezone)
        check_hours(response_hours or 0)
        given = {
            "name": None if name is None else name or id_,
            "weight": weight,
            "timezone": timezone,
            "store_texts": store_texts,
            "response_hours": response_hours,
        }
        changes: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
        if response_hours == 0:
            self._delete_responses(id_)
        with self._database.write_durably() as connection:
            team = replace(_team(self._of_team(connection, id_)), **changes)
            if response_hours == 0:
                connection.execute(sa.delete(RESPONSES).where(RESPONSES.c.team == id_))
            connection.execute(sa.update(TEAMS).where(TEAMS.c.id == id_).values(asdict(team)))
            connection.execute(CHANGED)
        return team

    def _delete_responses(self, team: str) -> None:
        """Delete a team's stored responses before the change that forbids them, which then finds only few.

        In one transaction, 100,000 keep all other writers of SQLite out for 6 s, and they give up after 5 s.
        """
        some = sa.select(RESPONSES.c.id).where(RESPONSES.c.team == team).limit(RESPONSES_AT_ONCE)
        delete = sa.delete(RESPONSES).where(RESPONSES.c.id.in_(some.scalar_subquery()))
        while True:
            with self._database.write() as connection:
                if connection.execute(delete).rowcount < RESPONSES_AT_ONCE:
                    return
            self._database.pause()

    def _of_team(self, connection: sa.Connection, id_: str) -> Any:
        row = _find(connection, TEAMS, id_)
        if row is None:
            names = connection.execute(sa.select(TEAMS.c.id).limit(1000)).scalars().all()
            raise NotFound(
                f"There is no team {quoted(id_)}. There are: {', '.join(nearest(id_, names))}.",
                code="team_not_found",
                param="team",
            )
        return row

    # --- keys -------------------------------------------------------------------------------------------------------
    def list_keys(self, team: str | None = None) -> list[Key]:
        """Return all keys or those of a team, oldest first. Raises NotFound for an unknown team."""
        query = sa.select(KEYS).order_by(KEYS.c.created, KEYS.c.id)
        with self._database.read() as connection:
            if team is not None:
                self._of_team(connection, team)
                query = query.where(KEYS.c.team == team)
            return [_key(row) for row in connection.execute(query)]

    def create(self, request: KeyRequest) -> tuple[Key, str]:
        """Create a key. Also returns its text, which is not stored. Raises NotFound, Conflict for an archived team."""
        now = self._clock()
        expires = None if request.seconds is None else now + request.seconds
        with self._database.write_durably() as connection:
            if self._of_team(connection, request.team).archived is not None:
                raise Conflict(
                    f"The team '{request.team}' is archived. Restore it first.", code="team_archived", param="team"
                )
            if request.account is not None:
                account = _find(connection, ACCOUNTS, request.account)
                if account is None or account.deleted is not None:
                    raise NotFound(f"There is no service account {quoted(request.account)}.", code="account_not_found")
            return self._insert(connection, request, now, expires, None)

    def rotate(self, id_: str, grace: float) -> tuple[Key, str]:
        """Create a successor with the same rights, account and limits.

        The old key stays valid for `grace` seconds, or until its own expiry if that is earlier.

        Raises NotFound, and Conflict if the key is not active or was already rotated: a second successor would expire
        at the end of the grace period.
        """
        now = self._clock()
        with self._database.write_durably() as connection:
            old = self._active_key(connection, id_, now)
            later = connection.execute(sa.select(KEYS.c.id).where(KEYS.c.replaces == id_)).scalars().first()
            if later is not None:
                raise Conflict(f"The key {id_} was rotated already: rotate its successor {later}, or make a new one.")
            end = now + grace if old.expires is None else min(now + grace, old.expires)
            connection.execute(sa.update(KEYS).where(KEYS.c.id == id_).values(expires=end))
            request = KeyRequest(
                old.team,
                old.name,
                old.scopes,
                old.models,
                old.adapters,
                service_class=old.service_class,
                ceiling=old.ceiling,
                timeout=old.timeout,
                account=old.account,
            )
            return self._insert(connection, request, now, old.expires, old.id)

    def revoke(self, id_: str) -> Key:
        """Refuse a key from now on. Does nothing if it is revoked already. Raises NotFound."""
        with self._database.write_durably() as connection:
            if self._key(connection, id_).revoked is None:
                connection.execute(sa.update(KEYS).where(KEYS.c.id == id_).values(revoked=self._clock()))
                connection.execute(CHANGED)
            return self._key(connection, id_)

    def check_admin_remains(self, goes: Callable[[Key], bool]) -> None:
        """Refuse to remove the last administrator's key over HTTP.

        goes: whether a key is to be removed. Raises Conflict if every active key with scope `admin` is.
        """
        now = self._clock()
        archived = {team.id for team in self.list_teams() if team.archived is not None}
        able = [
            key
            for key in self.list_keys()
            if Scope.ADMIN in key.scopes and key.state(now) == "active" and key.team not in archived
        ]
        if able and all(map(goes, able)):
            raise Conflict(
                f"Without the key {able[-1].id} this server could not be administered over HTTP: no other key has "
                "the scope 'admin'. Make one first, or do this on the server's host (roundhouse keys, roundhouse "
                "teams).",
                code="last_admin_key",
            )

    def edit(self, id_: str, scopes: frozenset[Scope] | None = None, seconds: float | None = None) -> Key:
        """Change the given fields. seconds: until it expires. Raises BadRequest, NotFound, Conflict."""
        now = self._clock()
        with self._database.write_durably() as connection:
            old = self._active_key(connection, id_, now)
            request = KeyRequest(old.team, old.name, scopes or old.scopes, old.models, old.adapters, seconds)
            expires = old.expires if seconds is None else now + seconds
            values = {"scopes": sorted(request.scopes), "expires": expires}
            connection.execute(sa.update(KEYS).where(KEYS.c.id == id_).values(values))
            connection.execute(CHANGED)
            return self._key(connection, id_)

    def _insert(
        self,
        connection: sa.Connection,
        request: KeyRequest,
        created: float,
        expires: float | None,
        replaces: str | None,
    ) -> tuple[Key, str]:
        new_key = secret.make()
        values: dict[str, Any] = {
            "id": new_key.id, "team": request.team, "name": request.name,
            "hash": secret.digest(self.pepper, new_key.text),
            "scopes": sorted(request.scopes), "models": request.models, "adapters": request.adapters,
            "created": created, "expires": expires, "replaces": replaces,
            "service_class": _label(request.service_class), "ceiling": _label(request.ceiling),
            "timeout": request.timeout,
            "account": request.account,
        }  # fmt: skip
        connection.execute(sa.insert(KEYS).values(values))
        connection.execute(CHANGED)
        return self._key(connection, new_key.id), new_key.text

    def _key(self, connection: sa.Connection, id_: str) -> Key:
        row = _find(connection, KEYS, id_)
        if row is None:
            raise NotFound(f"There is no key {quoted(id_)}; see `roundhouse keys list`.", code="key_not_found")
        return _key(row)

    def _active_key(self, connection: sa.Connection, id_: str, now: float) -> Key:
        key = self._key(connection, id_)
        if (state := key.state(now)) != "active":
            raise Conflict(f"The key {id_} is {state}. Make a new one with `roundhouse keys create`.")
        return key

    # --- for the keyring --------------------------------------------------------------------------------------------
    def revision(self) -> int:
        with self._database.read() as connection:
            return int(connection.execute(sa.select(KEYRING.c.revision)).scalar_one())

    def snapshot(self) -> "KeySnapshot":
        with self._database.read() as connection:
            revision = int(connection.execute(sa.select(KEYRING.c.revision)).scalar_one())
            rows = connection.execute(sa.select(KEYS)).all()
            teams = {team.id: team for team in map(_team, connection.execute(sa.select(TEAMS)))}
            firsts = lines(connection)
        snapshot = {
            row.id: KeyEntry.of(_key(row), row.hash, self._salt(row.team), teams[row.team].weight, firsts.get(row.id))
            for row in rows
        }
        archived = [team.id for team in teams.values() if team.archived is not None]
        entries = {team.id: TeamEntry(self._salt(team.id), team.weight) for team in teams.values()}
        return KeySnapshot(revision, snapshot, archived, entries)


class KeySnapshot(NamedTuple):
    """Keys by id, archived teams, and all teams, at this revision or a later one."""

    revision: int
    keys: dict[str, KeyEntry]
    archived: list[str]
    teams: dict[str, TeamEntry]


def teams_storing_texts(database: Database) -> list[str]:
    """Return the teams whose texts are kept."""
    with database.read() as connection:
        return list(connection.execute(sa.select(TEAMS.c.id).where(TEAMS.c.store_texts)).scalars())


def _find(connection: sa.Connection, table: sa.Table, id_: str) -> Any:
    """Return the row, locked until the end of this transaction. None if missing."""
    return connection.execute(sa.select(table).where(table.c.id == id_).with_for_update()).one_or_none()


def _team(row: Any) -> Team:
    return Team(
        row.id, row.name, row.created, row.archived, row.weight, row.timezone, row.store_texts, row.response_hours
    )


def _key(row: Any) -> Key:
    return Key(
        row.id, row.team, row.name, frozenset(map(Scope, row.scopes)), tuple(row.models), tuple(row.adapters),
        row.created, row.expires, row.revoked, row.replaces, _class(row.service_class), _class(row.ceiling),
        row.timeout, row.account,
    )  # fmt: skip


def _class(label: str | None) -> ServiceClass | None:
    return None if label is None else ServiceClass.of(label)


def _label(service_class: ServiceClass | None) -> str | None:
    return None if service_class is None else service_class.label
