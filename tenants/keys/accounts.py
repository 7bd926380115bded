"""OpenAI's service accounts. They own keys, which are revoked when the account is deleted."""

import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from registry.base.wording import quoted
from registry.errors import Conflict, NotFound
from registry.storage.database import Database
from tenants.keys.records import check_name
from tenants.storage.tables import ACCOUNTS, CHANGED, KEYS, TEAMS


@dataclass(frozen=True, slots=True)
class Account:
    id: str
    team: str
    name: str
    role: str
    created: float
    deleted: float | None = None


class AccountTable:
    """Each call is one transaction and blocks on the database."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database, self._clock = database, clock

    def all(self, team: str, *, deleted: bool = False) -> list[Account]:
        """Return a team's accounts, oldest first. deleted: include deleted ones."""
        query = sa.select(ACCOUNTS).where(ACCOUNTS.c.team == team)
        if not deleted:
            query = query.where(ACCOUNTS.c.deleted.is_(None))
        with self._database.read() as connection:
            return [_account(row) for row in connection.execute(query.order_by(ACCOUNTS.c.created, ACCOUNTS.c.id))]

    def find(self, team: str, id_: str) -> Account:
        """Return an account that is not deleted. Raises NotFound."""
        account = next((one for one in self.all(team) if one.id == id_), None)
        if account is None:
            raise NotFound(f"There is no service account {quoted(id_)}.", code="account_not_found")
        return account

    def create(self, team: str, name: str) -> Account:
        """Create an account of an existing team. Raises BadRequest, and Conflict if the team is archived."""
        check_name(name)
        account = Account(f"svc_{secrets.token_hex(8)}", team, name, "member", self._clock())
        with self._database.write_durably() as connection:
            archived = sa.select(TEAMS.c.archived).where(TEAMS.c.id == team)
            if connection.execute(archived).scalar_one() is not None:
                raise Conflict(f"The team '{team}' is archived. Restore it first.", code="team_archived", param="team")
            connection.execute(sa.insert(ACCOUNTS).values(asdict(account)))
        return account

    def edit(self, team: str, id_: str, name: str | None, role: str | None) -> Account:
        """Change the name or role, if given. Raises BadRequest, NotFound."""
        old = self.find(team, id_)
        check_name(name or old.name)
        values = {"name": name or old.name, "role": role or old.role}
        with self._database.write_durably() as connection:
            connection.execute(sa.update(ACCOUNTS).where(ACCOUNTS.c.id == id_).values(values))
        return self.find(team, id_)

    def delete(self, team: str, id_: str) -> None:
        """Delete the account and revoke its keys. Raises NotFound."""
        self.find(team, id_)
        now = self._clock()
        with self._database.write_durably() as connection:
            connection.execute(sa.update(ACCOUNTS).where(ACCOUNTS.c.id == id_).values(deleted=now))
            revoked = sa.update(KEYS).where(KEYS.c.account == id_, KEYS.c.revoked.is_(None)).values(revoked=now)
            connection.execute(revoked)
            connection.execute(CHANGED)


def _account(row: Any) -> Account:
    return Account(row.id, row.team, row.name, row.role, row.created, row.deleted)
