"""A limit against what the ledger recorded: how many requests it would have refused."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from registry.errors import LimitExceeded
from registry.storage.database import Database
from tenants.caller import Caller
from tenants.keys.lines import line_of, lines
from tenants.limits.history import used_of
from tenants.limits.limiter import Admission, Amounts, Limiter
from tenants.limits.records import Limit
from tenants.storage.tables import LEDGER


@dataclass(frozen=True, slots=True)
class Outcome:
    """first, last: when the first and the last refused one came, in seconds since the epoch."""

    requests: int
    refused: int
    first: float | None = None
    last: float | None = None


def simulate(database: Database, limit: Limit, zone: ZoneInfo, begin: float, end: float) -> Outcome:
    """In the order in which they came; each held what it had reserved until it ended. Raises Unavailable."""
    query = sa.select(LEDGER).where(LEDGER.c.at >= begin, LEDGER.c.at < end)
    if limit.model:
        query = query.where(LEDGER.c.model == limit.model)
    with database.read() as connection:
        if limit.owner == "team":
            query = query.where(LEDGER.c.team == limit.subject)
        else:
            query = query.where(LEDGER.c.key.in_(line_of(limit.subject, lines(connection))))
        rows = connection.execution_options(yield_per=1000).execute(query.order_by(LEDGER.c.at, LEDGER.c.uid))
        return _replayed(rows, limit, zone)


def _replayed(rows: Iterable[Any], limit: Limit, zone: ZoneInfo) -> Outcome:
    now = 0.0
    limiter = Limiter(clock=lambda: round(now * 1e9), wall=lambda: now)
    running: list[tuple[float, int, Admission, Amounts]] = []
    came, refused, first, last = 0, 0, None, None
    for row in rows:
        while running and running[0][0] <= row.at:
            now, _, admission, used = heapq.heappop(running)
            limiter.settle(admission, used)
        now = row.at
        if not came:
            limiter.replace([limit], {limit.subject: zone})
        came += 1
        used = used_of(row)
        most = Amounts(
            max(used.tokens, row.reserved_tokens),
            max(used.audio_ms, row.reserved_audio_ms),
            max(used.money, row.reserved_micro),
        )
        try:
            admission = limiter.admit(Caller(row.team, limit.subject), row.model, most)
            heapq.heappush(running, (row.at + row.total_ms / 1e3, came, admission, used))
        except LimitExceeded:
            refused, first, last = refused + 1, row.at if first is None else first, row.at
    return Outcome(came, refused, first, last)
