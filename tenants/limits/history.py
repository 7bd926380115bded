"""Usage of the last minute and of budget periods: the initial values of meters.

A request whose end is not in the ledger (`interrupted`: the server was killed) counts as the most it could have used,
unless it is an attempt at a batch line, which counts nothing because it is repeated. Batch lines never count for rates.
Running requests are not included: the limiter holds their reservations.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from registry.storage.database import Database
from tenants.keys.table import lines, rotation_chains
from tenants.ledger.pruning import first_kept_hour
from tenants.ledger.rows import BATCH, HOUR
from tenants.limits.limiter import UTC, Amounts, PastRequest
from tenants.limits.records import MINUTE, Limit, period_of
from tenants.limits.table import LimitTable
from tenants.storage.tables import HOURS, LEDGER

LATE_SECONDS = 60
"""A row that began this shortly before a period still counts for it, because clocks may differ."""


@dataclass(frozen=True, slots=True)
class SpendingHistory:
    recent: Sequence[PastRequest]
    """Oldest first."""
    spent: Mapping[str, int]
    """Spending by limit id."""


def history_of(
    database: Database, limits: Sequence[Limit], zones: Mapping[str, ZoneInfo], now: float
) -> SpendingHistory:
    """Return the usage from which the meters of `limits` start. Raises Unavailable.

    limits: those of keys under the first key of its rotation chain, as `LimitTable.all` lists them.
    """
    with database.read() as connection:
        firsts = lines(connection)
        chains = rotation_chains(firsts)
        spent = {
            limit.id: spent_of(
                connection, limit, chains.get(limit.subject, [limit.subject]), zones.get(limit.subject, UTC), now
            )
            for limit in limits
            if limit.kind.is_spend
        }
        recently = LEDGER.c.at.between(
            now - 2 * MINUTE, now
        )  # excludes rows in the future, after the clock was set back
        query = sa.select(LEDGER).where(recently, LEDGER.c.state != "open", LEDGER.c.source != BATCH)
        recent = [
            PastRequest(row.team, firsts.get(row.key, row.key), row.model, now - row.at, used_of(row))
            for row in connection.execute(query.order_by(LEDGER.c.at))
        ]
    return SpendingHistory(recent, spent)


def used_of(row: "sa.Row[tuple[object, ...]]") -> Amounts:
    """Return the usage that a ledger row counts for."""
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
    """Return the money spent in the period around `now`, or in its part before `until`.

    line: the keys of the rotation chain that a key's limit covers.

    Sums whole hours, and single rows for partial hours: some time zones differ by fractions of an hour.
    """
    begin, end = period_of(limit.kind, zone, now)
    end_at = end if until is None else until
    whole = -(-begin // HOUR) * HOUR
    last = max(whole, int(end_at) // HOUR * HOUR)
    summed = HOURS.c.cost_micro + HOURS.c.lost_micro
    rows = sa.case((LEDGER.c.state == "interrupted", LEDGER.c.reserved_micro), else_=LEDGER.c.cost_micro)
    total = 0
    for table, amount, at, first, behind in (
        (HOURS, summed, HOURS.c.hour, whole, last),
        (LEDGER, rows, LEDGER.c.at, begin, min(whole, end_at)),
        (LEDGER, rows, LEDGER.c.at, last, end_at),
    ):
        if first >= behind:
            continue
        whose = table.c.team == limit.subject if limit.owner == "team" else table.c.key.in_(line)
        query = sa.select(sa.cast(sa.func.coalesce(sa.func.sum(amount), 0), sa.BigInteger))
        query = query.where(whose, at >= first, at < behind)
        if limit.model:
            query = query.where(of_model(table.c.model, limit.model))
        total += connection.execute(query).scalar_one()
    return total


def spending_of(database: Database, server: str) -> Callable[[str, int], int | None]:
    """Return the most that one server may have spent, by limit id and period start in seconds since the epoch.

    None if the limit is gone, or if the period's rows were deleted. They are read once for all limits, because a fleet
    may have a budget for each key.

    server: id of its data directory. Raises Unavailable.
    """
    limits = {limit.id: limit for limit in LimitTable(database).all() if limit.kind.is_spend}

    @cache
    def sums(since: int) -> Mapping[tuple[str, str], Counter[str]] | None:
        with database.read() as connection:
            is_whole = first_kept_hour(connection) <= since - LATE_SECONDS
            return spent_by_server(connection, server, since) if is_whole else None

    def spent(id_: str, since: int) -> int | None:
        if (limit := limits.get(id_)) is None or (by_subject := sums(since)) is None:
            return None
        by_model = by_subject.get((limit.owner, limit.subject), Counter())
        return sum(amount for model, amount in by_model.items() if limit.counts(model))

    return spent


def spent_by_server(connection: sa.Connection, server: str, since: int) -> Mapping[tuple[str, str], Counter[str]]:
    """Return what a server may have spent since a moment, by model, for each team and each first key of a chain."""
    amount = sa.case((LEDGER.c.state == "settled", LEDGER.c.cost_micro), else_=LEDGER.c.reserved_micro)
    names = LEDGER.c.team, LEDGER.c.key, LEDGER.c.model
    query = sa.select(*names, sa.cast(sa.func.sum(amount), sa.BigInteger)).group_by(*names)
    query = query.where(LEDGER.c.server == server, LEDGER.c.at >= since - LATE_SECONDS)
    sums, firsts = defaultdict[tuple[str, str], Counter[str]](Counter), lines(connection)
    for team, key, model, spent in connection.execute(query):
        sums["team", team][model] += spent
        sums["key", firsts.get(key, key)][model] += spent
    return sums
