"""Join a fleet, stay in it, and list its members. All calls block on the database; run them in a thread."""

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import sqlalchemy as sa

from fleet.membership.desired import DesiredTable
from fleet.membership.tables import MEMBERS, RENEWALS, VERSION_TABLE
from registry.base.wording import nearest, quoted
from registry.errors import BadRequest, Conflict, NotFound, Unavailable
from registry.storage.database import Database, inserting, url_of
from registry.storage.migration import upgrade

LEASE_SECONDS = 10.0
RENEW_SECONDS = 2.0
"""Seconds between renewals, each of which also reads the members."""
DEAD_SECONDS = 60.0
"""Seconds after the end of its lease when a server counts as dead, and others end its open ledger rows."""
SWEPT_SECONDS = 3600.0
"""Seconds before the rows of a dead server are looked for again."""
FORGOTTEN_DAYS = 30
"""Days after the end of its lease when a server's row is deleted."""
CLOCK_SECONDS = 5.0
"""Largest difference of a clock from the database's without a warning."""
MIGRATIONS = Path(__file__).parent / "migrations"
Role = Literal["node", "front"]


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    boot: int
    role: Role
    address: str
    """Address of its port for the fleet; empty for a front, which gets no requests."""
    version: str
    draining: bool
    lease_seconds: float = field(default=LEASE_SECONDS, compare=False)
    """Seconds left of its lease when it was read."""


@dataclass(frozen=True, slots=True)
class NewMember:
    """A joining server's description of itself."""

    name: str
    server: str
    """Id of its data directory."""
    role: Role
    address: str
    version: str


def schema_of(fleet: str) -> str:
    """Return the schema of the tables that a fleet's servers share."""
    return f"roundhouse_fleet_{fleet}"


def open_members(url: str, fleet: str) -> "MemberTable":
    """Open the members of a fleet, and create or migrate the tables.

    Raises BadRequest unless it is a PostgreSQL, Conflict if a newer version wrote it, Unavailable.
    """
    address = url_of(url)
    if address.drivername == "sqlite":
        raise BadRequest("A fleet needs a PostgreSQL that all of its servers share: --database postgresql+psycopg://…")
    database = Database(address, schema=schema_of(fleet))
    with database.closing_on_error():
        database.make_schema()
        upgrade(database, MIGRATIONS, VERSION_TABLE)
    database.set_timeouts()
    return MemberTable(database, DesiredTable(database, schema_of(fleet)))


class OlderState(Unavailable):
    """The database is older than this server has seen it: it was restored from a backup."""

    code = "database_unavailable"


class MemberTable:
    def __init__(self, database: Database, desired: DesiredTable) -> None:
        self.database, self.desired = database, desired
        self._seen = 0
        """The highest count of renewals seen."""
        self._swept: dict[str, tuple[datetime.datetime, float]] = {}
        """Dead servers whose rows were ended, with the end of their lease, and when."""
        self._clock_ahead = time.time() - time.monotonic()
        """The database's clock (until it answers, this machine's) minus this process's monotonic clock."""

    def now(self) -> float:
        """Return the database's time in seconds since the epoch, extrapolated without a call."""
        return self._clock_ahead + time.monotonic()

    def read_clock(self) -> None:
        """Read the database's clock. Raises Unavailable."""
        with self.database.read() as connection:
            self._read_clock(connection)

    def _read_clock(self, connection: sa.Connection) -> None:
        before = time.monotonic()
        seconds = connection.execute(sa.select(sa.extract("epoch", sa.func.clock_timestamp()))).scalar_one()
        self._clock_ahead = float(seconds) - (before + time.monotonic()) / 2

    def check(self, new: NewMember) -> None:
        """Raise Conflict if `join` would."""
        with self.database.read() as connection:
            self._check(connection, new)

    def join(self, new: NewMember) -> int:
        """Take the name. Returns the boot number. Raises Conflict while another server has it."""
        with self.database.write() as connection:
            if not (before := self._check(connection, new)):
                self._read_clock(connection)
                before = int(self.now())  # above all boots of a row that was deleted
            values = {
                "boot": before + 1, "server": new.server, "role": new.role, "address": new.address,
                "version": new.version, "lease_until": _lease(), "draining": False,
            }  # fmt: skip
            statement = inserting(connection, MEMBERS).values(name=new.name, **values)
            connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_=values))
        return before + 1

    def _check(self, connection: sa.Connection, new: NewMember) -> int:
        """Return the previous boot number, or 0. Raises Conflict."""
        is_living = (MEMBERS.c.lease_until > sa.func.clock_timestamp()).label("is_living")
        twin = sa.select(MEMBERS.c.name).where(MEMBERS.c.server == new.server, MEMBERS.c.name != new.name, is_living)
        if (other := connection.execute(twin.limit(1)).scalar()) is not None:
            raise Conflict(
                f"The fleet has a server '{other}' with this data directory, or with a copy of it. Give this one a "
                f"data directory of its own with --data-dir, or wait {LEASE_SECONDS:g} s if that one has ended."
            )
        columns = (MEMBERS.c.boot, MEMBERS.c.server, MEMBERS.c.address, is_living)
        row = connection.execute(sa.select(*columns).where(MEMBERS.c.name == new.name)).one_or_none()
        if row is None:
            return 0
        if row.is_living and row.server != new.server:
            where = f" at {row.address}" if row.address else ""
            raise Conflict(
                f"The fleet has a server '{new.name}' already{where}. Give this one another name (roundhouse fleet ca "
                f"issue, or --fleet-name), or wait {LEASE_SECONDS:g} s if that one has ended.",
                code="name_in_use",
            )
        return int(row.boot)

    def renew(self, name: str, boot: int) -> Sequence[Member] | None:
        """Extend the lease, and read the database's clock.

        Returns all living members, or None if another server has the name. Raises OlderState.
        """
        own = (MEMBERS.c.name == name) & (MEMBERS.c.boot == boot)
        increment = sa.update(RENEWALS).values(count=RENEWALS.c.count + 1).returning(RENEWALS.c.count)
        with self.database.write() as connection:
            count = int(connection.execute(increment).scalar_one())
            if count <= self._seen:
                raise OlderState("The fleet's database is in an older state than this server has seen.")
            if connection.execute(sa.update(MEMBERS).where(own).values(lease_until=_lease())).rowcount == 0:
                return None
            living = _living(connection)
            self._read_clock(connection)
        self._seen = count
        return living

    def list(self) -> Sequence[Member]:
        """Return all members whose lease has not expired."""
        with self.database.read() as connection:
            return _living(connection)

    def drain(self, name: str, draining: bool) -> None:
        """Drain a server, or end that. Raises NotFound if it is not a living member."""
        with self.database.write() as connection:
            names = [member.name for member in _living(connection)]
            if name not in names:
                listed = ", ".join(nearest(name, names)) or "none"
                raise NotFound(f"The fleet has no server {quoted(name)}. There are: {listed}.", code="server_not_found")
            connection.execute(sa.update(MEMBERS).where(MEMBERS.c.name == name).values(draining=draining))

    def sweep(self, end_rows: Callable[[str], int]) -> Mapping[str, int]:
        """End the rows of each dead server, unless another server is just doing so. Forget those that left long ago.

        A jump of the database's clock deletes no living server: its lease would be seen to change in SWEPT_SECONDS.
        end_rows: takes the id of a data directory. Returns how many were ended, by name. Raises Unavailable.
        """
        newest, now = sa.func.max(MEMBERS.c.lease_until), sa.func.clock_timestamp()
        is_forgotten = (newest < now - datetime.timedelta(days=FORGOTTEN_DAYS)).label("is_forgotten")
        dead = sa.select(
            sa.func.max(MEMBERS.c.name).label("name"), MEMBERS.c.server, newest.label("ends"), is_forgotten
        )
        dead = dead.group_by(MEMBERS.c.server)
        dead = dead.having(newest < now - datetime.timedelta(seconds=DEAD_SECONDS))
        lock = sa.func.pg_try_advisory_xact_lock(sa.func.hashtext(sa.func.concat(sa.func.current_schema(), " sweep")))
        with self.database.read() as connection:
            if not connection.execute(sa.select(lock)).scalar_one():
                return {}
            ended, forgotten = {}, []
            for row in connection.execute(dead).all():
                ends, at = self._swept.get(row.server, (None, 0.0))
                if ends == row.ends and time.monotonic() - at < SWEPT_SECONDS:
                    continue
                if count := end_rows(row.server):
                    ended[row.name] = count
                self._swept[row.server] = row.ends, time.monotonic()
                if ends == row.ends and row.is_forgotten:
                    forgotten.append(row)
        for row in forgotten:
            with self.database.write() as connection:
                its = (MEMBERS.c.server == row.server) & (MEMBERS.c.lease_until <= row.ends)
                connection.execute(sa.delete(MEMBERS).where(its))
            del self._swept[row.server]
        return ended

    def leave(self, name: str, boot: int) -> None:
        """Release the lease."""
        own = (MEMBERS.c.name == name) & (MEMBERS.c.boot == boot)
        with self.database.write() as connection:
            connection.execute(sa.update(MEMBERS).where(own).values(lease_until=sa.func.clock_timestamp()))

    def close(self) -> None:
        self.desired.stop_leading()
        self.database.close()


def _lease() -> sa.ColumnElement[datetime.datetime]:
    """Return the end of a lease that starts now, by the database's clock."""
    return sa.func.clock_timestamp() + datetime.timedelta(seconds=LEASE_SECONDS)


def _living(connection: sa.Connection) -> list[Member]:
    left = sa.extract("epoch", MEMBERS.c.lease_until - sa.func.clock_timestamp()).label("left")
    rows = connection.execute(
        sa.select(MEMBERS, left).where(MEMBERS.c.lease_until > sa.func.clock_timestamp()).order_by(MEMBERS.c.name)
    )
    return [
        Member(row.name, row.boot, row.role, row.address, row.version, row.draining, float(row.left)) for row in rows
    ]
