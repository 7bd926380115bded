"""A data directory's persistent state: adapters, aliases, pins, measurements."""

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import sqlalchemy as sa

from registry.errors import Conflict, NotFound
from registry.state.access import Load, TableAccess
from registry.state.adapters import AdapterTable, RouterTable
from registry.state.formats import bring_up
from registry.state.models import ModelTable
from registry.state.tables import ADAPTERS, COUNTED, METADATA, ROUTERS, VERSION_TABLE, VersionTables
from registry.storage.database import SQLITE, Database, file_url, url_of
from registry.storage.files import SERVER_ID, make_private, make_private_file, server_id
from registry.storage.migration import alone, can_use, refuse_newer, upgrade

if TYPE_CHECKING:  # a server without a fleet shares no names
    from registry.state.shared.opening import SharedTables
    from registry.state.shared.recipes import RecipeTable

FILE = "state.db"
REMOTE_MARK = "elsewhere"
"""A file that marks a data directory whose state moved to PostgreSQL; a `state.db` there is out of date."""
MIGRATIONS = Path(__file__).parent / "migrations"


def open_state(directory: Path, url: str | None = None) -> Database:
    """Open the state, and create or migrate it. url: `--database`, used only if it is PostgreSQL.

    Raises Conflict if a newer version wrote the database, Unavailable, BadRequest for an invalid address.
    """
    make_private(directory)
    if url is None or not is_remote(url):
        (directory / REMOTE_MARK).unlink(missing_ok=True)
        return open_file(directory / FILE)
    database = Database(url_of(url), schema=f"roundhouse_{server_id(directory)}")
    with database.closing_on_error():
        database.make_schema()
        upgrade(database, MIGRATIONS, VERSION_TABLE)
        if (directory / FILE).is_file() and is_empty(database):
            with closing(open_file(directory / FILE)) as former:
                copy(former, database)
        make_private_file(directory / REMOTE_MARK)
    return database


def is_remote(url: str | None) -> bool:
    """Return whether the state is outside the data directory. Raises BadRequest for an invalid address."""
    return url is not None and url_of(url).drivername != SQLITE


def open_file(path: Path) -> Database:
    """Open an SQLite database. Raises as `open_state` does."""
    database = Database(file_url(path))
    with database.closing_on_error():
        with alone(path.parent):
            bring_up(path)
        upgrade(database, MIGRATIONS, VERSION_TABLE)
    return database


def look(directory: Path, url: str | None = None) -> Database:
    """Open the state for reading, even while a server runs. Raises NotFound, Conflict, Unavailable."""
    is_file = url is None or not is_remote(url)
    if not (directory / (FILE if is_file else SERVER_ID)).is_file():
        raise NotFound(f"No server has used the data directory {directory}.", code="no_state")
    if url is None or is_file:
        database = Database(file_url(directory / FILE), read_only=True)
    else:
        database = Database(url_of(url), schema=f"roundhouse_{server_id(directory)}")
    with database.closing_on_error():
        if not can_use(database, MIGRATIONS, VERSION_TABLE):
            refuse_newer(database, MIGRATIONS, VERSION_TABLE)
            raise Conflict(
                f"The state of {directory} was written by an older version of Roundhouse. Start a server of this "
                "version on it once.",
                code="state_version",
            )
    return database


def is_empty(database: Database) -> bool:
    with database.read() as connection:
        return all(connection.execute(sa.select(table).limit(1)).first() is None for table in METADATA.tables.values())


def copy(source: Database, target: Database) -> None:
    """Copy every row into empty tables, in one transaction."""
    with source.read() as old, target.write() as new:
        for table in METADATA.sorted_tables:
            keys = table.columns.keys()
            rows = [dict(zip(keys, row, strict=True)) for row in old.execute(sa.select(table))]
            if rows:
                new.execute(sa.insert(table), rows)
        if not target.is_sqlite:  # SQLite continues from the existing values
            for column in COUNTED:
                counter = sa.func.pg_get_serial_sequence(column.table.name, column.name)
                last = sa.select(sa.func.max(column)).scalar_subquery()
                new.execute(sa.select(sa.func.setval(counter, sa.func.coalesce(last, 1), last.is_not(None))))


class State:
    """The state of a data directory: `state.db`, or a schema on PostgreSQL (`url`).

    Opening creates and migrates it, except with `read_only`, which is safe while a server runs.

    Thread-safe. A server runs calls that use the database in threads, because PostgreSQL may hang for as long as
    `registry.storage.postgres` allows. Changes survive a loss of power; measurements of the last seconds may be lost.
    """

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], float] = time.time,
        *,
        url: str | None = None,
        read_only: bool = False,
        shared: "SharedTables | None" = None,
    ) -> None:
        """Raises Conflict, Unavailable, BadRequest; with `read_only` also NotFound.

        shared: the tables of shared names, which are closed with this, if servers share names.
        """
        self.path = directory / FILE
        self._refreshing = threading.Lock()
        self._database = look(directory, url) if read_only else open_state(directory, url)
        self._database.set_timeouts()
        own = TableAccess(self._database, alone=not read_only)
        names = own if shared is None else TableAccess(shared.database, revision=shared.revision)
        self._names = names
        self.adapters = AdapterTable(replace(names, table="adapters"), clock)
        self.routers = RouterTable(replace(names, table="routers"), clock)
        self.models = ModelTable(own, clock, own if shared is None else replace(names, table="aliases"))
        self.recipes: RecipeTable | None = None
        """Recipes that were added at run time, if servers share them; otherwise they are files."""
        if shared is not None:
            from registry.state.shared import recipes

            self.recipes = recipes.RecipeTable(replace(names, table="recipes"), clock)
            self.refresh()
            self.adapters.reserved, self.routers.reserved = map(self._digests, (ADAPTERS, ROUTERS))
        for read in (self.adapters.all, self.routers.all, self.models.pins, self.models.aliases):
            read()  # later reads come from memory

    def refresh(self) -> bool:
        """Reread shared names, in one transaction, if another server changed any. Returns whether it did.

        Raises Conflict if the database was reset, Unavailable.
        """
        revision = self._names.revision
        if revision is None:
            return False
        with self._refreshing, self._names.read() as db:  # so that no older names replace newer ones
            number = revision.read(db)
            if number == revision.known:
                return False
            loads: dict[str, Load] = {
                "adapters": self.adapters.reload, "routers": self.routers.reload, "aliases": self.models.reload,
            }  # fmt: skip
            if self.recipes is not None:
                loads["recipes"] = self.recipes.reload
            changed = revision.tables_until(number)
            if changed is None or not changed <= loads.keys():  # a change was missed, or a newer version made it
                changed = frozenset(loads)
            for replace_content in [load(db) for table, load in loads.items() if table in changed]:
                replace_content()
            revision.known = number
        return True

    def _digests(self, tables: VersionTables) -> frozenset[str]:
        """Return digests of the server's own names, whose files are kept although it uses shared names."""
        with self._database.read() as db:
            return frozenset(db.execute(sa.select(tables.versions.c.digest).distinct()).scalars())

    def close(self) -> None:
        """Close the databases. Safe to call twice."""
        self._database.close()
        if self._names.database is not self._database:
            self._names.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()
