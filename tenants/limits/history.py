"""Usage of the last minute and of budget periods, where meters begin.

A request whose end the ledger does not know (`interrupted`: the server was killed) counts as the most that it could
have used; an attempt at a line of a batch counts nothing then, since it is repeated. Rates count no lines at all.
Requests under way are not included: the limiter holds them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from registry.storage.database import Database
from tenants.keys.table import lines, rotation_chain
from tenants.ledger.pruning import first_kept_hour
from tenants.ledger.rows import BATCH, HOUR
from tenants.limits.limiter import UTC, Amounts, PastRequest
from tenants.limits.records import MINUTE, Limit, period_of
from tenants.limits.table import LimitTable
from tenants.storage.tables import HOURS, LEDGER

LATE_SECONDS = 60
"""A row counts for the period after its own if it began so shortly before: clocks may differ."""


@dataclass(frozen=True, slots=True)
class SpendingHistory:
    recent: Sequence[PastRequest]
    """The oldest first."""
    spent: Mapping[str, int]
    """Spending by a limit's id."""


def history_of(
    database: Database, limits: Sequence[Limit], zones: Mapping[str, ZoneInfo], now: float
) -> SpendingHistory:
    """Raises Unavailable."""
    with database.read() as connection:
        firsts = lines(connection)
        spent = {
            limit.id: spent_of(
                connection, limit, rotation_chain(limit.subject, firsts), zones.get(limit.subject, UTC), now
            )
            for limit in limits
            if limit.kind.is_spend
        }
        lately = LEDGER.c.at.between(
            now - 2 * MINUTE, now
        )  # not hours of what is to come, of a clock that was set back
        query = sa.select(LEDGER).where(lately, LEDGER.c.state != "open", LEDGER.c.source != BATCH)
        recent = [
            PastRequest(row.team, firsts.get(row.key, row.key), row.model, now - row.at, used_of(row))
            for row in connection.execute(query.order_by(LEDGER.c.at))
        ]
    return SpendingHistory(recent, spent)


def used_of(row: "sa.Row[tuple[object, ...]]") -> Amounts:
    """The usage that a row of the ledger counts."""
    if row.state == "interrupted":
        return Amounts(row.reserved_tokens, row.reserved_audio_ms, row.reserved_micro)
    return Amounts(row.prompt_tokens + row.completion_tokens, row.audio_ms, row.cost_micro)


def of_model(column: sa.ColumnElement[str], model: str) -> sa.ColumnElement[bool]:
    """Select rows as `Limit.counts` does. SQLite's LIKE would take 'M@1' for one of 'm'."""
    return (column == model) | (sa.func.substr(column, 1, len(model) + 1) == f"{model}@")


def spent_of(
    connection: sa.Connection,
    limit: Limit,
    line: Sequence[str],
    zone: ZoneInfo,
    now: float,
    until: float | None = None,
) -> int:
    """Money spent in the period around `now`, or in the part before `until`. line: keys that a key's limit is for.

    Sums of whole hours, and rows where they begin or end within one: zones are not all whole hours apart.
    """
    begin, end = period_of(limit.kind, zone, now)
    end_at = end if until is None else until
    whole = -(-begin // HOUR) * HOUR
    last = max(whole, int(end_at) // HOUR * HOUR)
    summed = HOURS.c.cost_micro + HOURS.c.lost_micro
    rows = sa.case((LEDGER.c.state == "interrupted", LEDGER.c.reserved_micro), else_=LEDGER.c.cost_micro)
    total = 0
    for table, amount, where in (
        (HOURS, summed, [HOURS.c.hour >= whole, HOURS.c.hour < last]),
        (LEDGER, rows, [LEDGER.c.at >= begin, LEDGER.c.at < min(whole, end_at)]),
        (LEDGER, rows, [LEDGER.c.at >= last, LEDGER.c.at < end_at]),
    ):
        whose = table.c.team == limit.subject if limit.owner == "team" else table.c.key.in_(line)
        query = sa.select(sa.cast(sa.func.coalesce(sa.func.sum(amount), 0), sa.BigInteger))
        query = query.where(whose, *where)
        if limit.model:
            query = query.where(of_model(table.c.model, limit.model))
        total += connection.execute(query).scalar_one()
    return total


def spent_by_server(
    connection: sa.Connection, limit: Limit, line: Sequence[str], server: str, since: int
) -> int | None:
    """The most that one server may have spent of a budget since its period began; None: its rows were deleted.

    Args:
        line: keys that a key's limit is for.
        server: id of its data directory.
    """
    if first_kept_hour(connection) > since - LATE_SECONDS:
        return None
    amount = sa.case((LEDGER.c.state == "settled", LEDGER.c.cost_micro), else_=LEDGER.c.reserved_micro)
    query = sa.select(sa.cast(sa.func.coalesce(sa.func.sum(amount), 0), sa.BigInteger))
    query = query.where(LEDGER.c.server == server, LEDGER.c.at >= since - LATE_SECONDS)
    query = query.where(LEDGER.c.team == limit.subject if limit.owner == "team" else LEDGER.c.key.in_(line))
    if limit.model:
        query = query.where(of_model(LEDGER.c.model, limit.model))
    return int(connection.execute(query).scalar_one())


def spending_of(database: Database, server: str) -> Callable[[str, int], int | None]:
    """`spent_by_server` by a limit's id and its period's beginning; None: the limit is gone. Raises Unavailable."""
    limits = {limit.id: limit for limit in LimitTable(database).all() if limit.kind.is_spend}

    def spent(id_: str, since: int) -> int | None:
        if (limit := limits.get(id_)) is None:
            return None
        with database.read() as connection:
            line = rotation_chain(limit.subject, lines(connection))
            return spent_by_server(connection, limit, line, server, since)

    return spent
