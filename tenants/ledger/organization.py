"""Usage in the buckets of OpenAI's administration API. A team is a project."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from registry.errors import BadRequest
from registry.storage.database import Database
from tenants.ledger.report import DAY, MAX_ROWS
from tenants.ledger.rows import COUNTS, HOUR, NAMES
from tenants.storage.tables import HOURS, LEDGER

MINUTE = 60
WIDTHS: Mapping[str, tuple[int, int, int]] = {"1m": (MINUTE, 60, 1440), "1h": (HOUR, 24, 168), "1d": (DAY, 7, 31)}
"""Bucket widths: seconds, default and largest number of buckets per page."""
COST_WIDTHS = {"1d": (DAY, 7, 180)}
TIERS = {"critical": "priority", "interactive": "default", "batch": "flex"}
"""Our classes by the names that OpenAI's clients use."""
MOST_READ = 1_000_000
"""Most ledger rows read for a page of minutes, about a second on SQLite. Hours and days read sums."""
_SUMS = ("requests", *COUNTS)
Columns = Mapping[str, sa.ColumnElement[Any]]


def _groups(c: Columns) -> Columns:
    return {
        "project_id": c["team"],
        "api_key_id": c["key"],
        "model": c["model"],
        "batch": c["source"] == "batch",
        "service_tier": sa.case(TIERS, value=c["service_class"]),
    }


def _cost_groups(c: Columns) -> Columns:
    line = c["model"] + sa.case((c["adapter"] == "", ""), else_=":" + c["adapter"])
    return {"project_id": c["team"], "api_key_id": c["key"], "line_item": line}


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """A query for one page. Empty filters match everything.

    Attributes:
        begin, end: seconds since the epoch; buckets are whole, in UTC.
        page: start of its first bucket. None for the first page.
        endpoints: only requests to these count.
    """

    begin: int
    end: int
    width: str = "1d"
    limit: int | None = None
    page: int | None = None
    group_by: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    batch: bool | None = None
    costs: bool = False
    """Return daily sums by project, key and line item (model and adapter)."""
    line_items: tuple[str, ...] = ()

    def groups(self, columns: Columns) -> Columns:
        return _cost_groups(columns) if self.costs else _groups(columns)

    @property
    def widths(self) -> Mapping[str, tuple[int, int, int]]:
        return COST_WIDTHS if self.costs else WIDTHS


@dataclass(frozen=True, slots=True)
class UsageBucket:
    begin: int
    end: int
    results: list[dict[str, Any]]
    """The groups and their sums, under the ledger's names."""


@dataclass(frozen=True, slots=True)
class UsagePage:
    buckets: list[UsageBucket]
    next: int | None
    """Start of the next page's first bucket."""


def page_of(database: Database, query: UsageQuery) -> UsagePage:
    """Return a page of buckets, including empty ones. Raises BadRequest, Unavailable."""
    seconds, count = _bounds(query)
    first = (query.begin if query.page is None else query.page) // seconds * seconds
    starts = range(first, query.end, seconds)
    page_starts = starts[:count]
    by_start: dict[int, list[dict[str, Any]]] = {start: [] for start in page_starts}
    if page_starts:
        for row in _rows(database, query, seconds, page_starts[0], page_starts[-1] + seconds):
            by_start[row.pop("bucket")].append(row)
    buckets = [UsageBucket(start, start + seconds, results) for start, results in by_start.items()]
    return UsagePage(buckets, starts[count] if len(starts) > count else None)


def _bounds(query: UsageQuery) -> tuple[int, int]:
    if query.width not in query.widths:
        raise BadRequest(f"bucket_width is {' or '.join(query.widths)} here.", param="bucket_width")
    groups = query.groups(dict(HOURS.c))
    if unknown := [name for name in query.group_by if name not in groups]:
        raise BadRequest(f"group_by may be {', '.join(groups)}, but not {unknown[0][:40]!r}.", param="group_by")
    if query.end <= query.begin:
        raise BadRequest("end_time must be after start_time.", param="end_time")
    seconds, usual, most = query.widths[query.width]
    if query.page is not None and query.page < query.begin // seconds * seconds:
        raise BadRequest("page must be the next_page of an answer to the same query.", param="page")
    if query.limit is not None and not 1 <= query.limit <= most:
        raise BadRequest(f"limit is 1 to {most} for buckets of {query.width}.", param="limit")
    return seconds, query.limit or usual


def _rows(database: Database, usage_query: UsageQuery, seconds: int, first: int, last: int) -> list[dict[str, Any]]:
    with database.read() as connection:
        c, time = (dict(HOURS.c), HOURS.c.hour) if seconds >= HOUR else _single(database, connection, first, last)
        bucket = (time - time % seconds).label("bucket")
        groups = [usage_query.groups(c)[name].label(name) for name in usage_query.group_by]
        sums = [sa.cast(sa.func.sum(c[name]), sa.BigInteger).label(name) for name in _SUMS]
        query = sa.select(bucket, *groups, *sums).where(time >= first, time < last)
        filters: Sequence[tuple[sa.ColumnElement[Any], tuple[str, ...]]] = (
            (c["endpoint"], usage_query.endpoints), (c["team"], usage_query.projects), (c["key"], usage_query.keys),
            (c["model"], usage_query.models), (_cost_groups(c)["line_item"], usage_query.line_items),
        )  # fmt: skip
        for column, values in filters:
            if values:
                query = query.where(column.in_(values))
        if usage_query.batch is not None:
            query = query.where((c["source"] == "batch") == usage_query.batch)
        query = query.group_by(bucket, *groups).order_by(bucket, *groups).limit(MAX_ROWS + 1)
        rows = [dict(row._mapping) for row in connection.execute(query)]
    if len(rows) > MAX_ROWS:
        raise BadRequest(f"That is more than {MAX_ROWS:,} results. Ask for fewer buckets or groups.", param="limit")
    return rows


def _single(
    database: Database, connection: sa.Connection, first: int, last: int
) -> tuple[Columns, sa.ColumnElement[Any]]:
    """Return ended ledger rows as if each were a sum, and the second of each. Raises BadRequest."""
    at = LEDGER.c.at
    within = sa.select(LEDGER.c.uid).where(at >= first, at < last).limit(MOST_READ + 1)
    if (connection.scalar(sa.select(sa.func.count()).select_from(within.subquery())) or 0) > MOST_READ:
        raise BadRequest(f"That is more than {MOST_READ:,} requests. Ask for fewer buckets.", param="limit")
    second = sa.cast(at if database.is_sqlite else sa.func.floor(at), sa.BigInteger)  # SQLite's cast already truncates
    columns = [LEDGER.c[name] for name in (*NAMES, *COUNTS)]
    ended = sa.select(second.label("second"), sa.literal(1).label("requests"), *columns)
    rows = ended.where(at >= first, at < last, LEDGER.c.state != "open").subquery()
    return dict(rows.c), rows.c.second
