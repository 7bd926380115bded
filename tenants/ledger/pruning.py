"""Deletes old rows of single requests, whose hourly sums stay, and older sums."""

import time
from collections.abc import Iterator

import sqlalchemy as sa

from registry.errors import Conflict
from registry.storage.database import Database
from tenants.ledger.rows import HOUR
from tenants.storage.tables import HOURS, LEDGER, PRUNED

LONGEST_QUIET = 31 * 86_400
"""Seconds without a request after which an operator must confirm that the clock is right."""
BATCH = 1_000
"""Rows per transaction, which writes about 9 MB: each row is in two indices in random order."""


def first_kept_hour(connection: sa.Connection) -> int:
    """Return the first hour whose rows still exist, 0 if nothing was pruned."""
    return int(connection.execute(sa.select(PRUNED.c.hour)).scalar() or 0)


def check_clock(database: Database, now: float) -> None:
    """Raise Conflict if the newest request is long ago: a clock that is ahead makes all requests look old."""
    with database.read() as connection:
        newest = connection.execute(sa.select(sa.func.max(LEDGER.c.at))).scalar()
    if newest is not None and now - newest > LONGEST_QUIET:
        at, clock_text = (time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment)) for moment in (newest, now))
        raise Conflict(
            f"The newest request is of {at}, and this machine's clock says {clock_text}. Nothing was deleted. "
            "Set the clock; "
            "if it is right, add --force."
        )


def prune(database: Database, before: float) -> Iterator[int]:
    """Delete the requests of the hours before a moment. Yields the total deleted after each transaction.

    Running requests stay. `first_kept_hour` is correct even if this is interrupted.
    Raises Unavailable.
    """
    hour, deleted = int(before) // HOUR * HOUR, 0
    with database.write() as connection:
        if not (since := first_kept_hour(connection)):
            connection.execute(sa.insert(PRUNED).values(id=1, hour=hour))
        elif since < hour:
            connection.execute(sa.update(PRUNED).values(hour=hour))
    old = sa.select(LEDGER.c.uid).where(LEDGER.c.at < hour, LEDGER.c.state != "open").limit(BATCH)
    while True:
        with database.write() as connection:
            batch = connection.execute(sa.delete(LEDGER).where(LEDGER.c.uid.in_(old))).rowcount
        if not batch:
            return
        deleted += batch
        yield deleted
        database.pause()


def prune_sums(database: Database, before: float) -> int:
    """Delete the sums of the hours before a moment, after their requests. Returns how many. Raises Unavailable."""
    key = sa.tuple_(*HOURS.primary_key.columns)
    old = sa.select(*HOURS.primary_key.columns).where(HOURS.c.hour < int(before) // HOUR * HOUR).limit(BATCH)
    return delete_in_portions(database, sa.delete(HOURS).where(key.in_(old)))


def delete_in_portions(database: Database, delete: sa.Delete) -> int:
    """Run a bounded deletion until nothing is left. Returns how many rows were deleted. Raises Unavailable."""
    deleted = 0
    while True:
        with database.write() as connection:
            count = connection.execute(delete).rowcount
        if not count:
            return deleted
        deleted += count
        database.pause()
