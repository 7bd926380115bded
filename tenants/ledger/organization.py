"""What was used as OpenAI's administration asks for it: pages of buckets of an hour or a day. A team is a project."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from registry.errors import BadRequest
from registry.storage.database import Database
from tenants.ledger.report import DAY, MAX_ROWS
from tenants.ledger.rows import COUNTS, HOUR
from tenants.storage.tables import HOURS

WIDTHS: Mapping[str, tuple[int, int, int]] = {"1h": (HOUR, 24, 168), "1d": (DAY, 7, 31)}
"""Of a bucket: its seconds, and how many are on a page by default and at most."""
TIERS = {"critical": "priority", "interactive": "default", "batch": "flex"}
"""Our classes as OpenAI's clients call them."""
_TIER = sa.case(TIERS, value=HOURS.c.service_class)
GROUPS: Mapping[str, sa.ColumnElement[Any]] = {
    "project_id": HOURS.c.team,
    "api_key_id": HOURS.c.key,
    "model": HOURS.c.model,
    "batch": HOURS.c.source == "batch",
    "service_tier": _TIER,
}
_ADAPTER = sa.case((HOURS.c.adapter == "", ""), else_=":" + HOURS.c.adapter)
COST_GROUPS: Mapping[str, sa.ColumnElement[Any]] = {
    "project_id": HOURS.c.team,
    "api_key_id": HOURS.c.key,
    "line_item": HOURS.c.model + _ADAPTER,
}
COST_WIDTHS = {"1d": (DAY, 7, 180)}
_SUMS = ("requests", *COUNTS)


@dataclass(frozen=True, slots=True)
class Asked:
    """One page. Empty filters let everything through.

    Attributes:
        begin, end: seconds since the epoch; buckets are whole, in UTC.
        page: the beginning of its first bucket; None: of the first page.
        endpoints: whose requests count.
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
    """By project, key and line item (model and adapter), by the day."""
    line_items: tuple[str, ...] = ()

    @property
    def groups(self) -> Mapping[str, sa.ColumnElement[Any]]:
        return COST_GROUPS if self.costs else GROUPS

    @property
    def widths(self) -> Mapping[str, tuple[int, int, int]]:
        return COST_WIDTHS if self.costs else WIDTHS


@dataclass(frozen=True, slots=True)
class Bucket:
    begin: int
    end: int
    results: list[dict[str, Any]]
    """What was grouped by, and sums by the ledger's names."""


@dataclass(frozen=True, slots=True)
class Page:
    buckets: list[Bucket]
    next: int | None
    """The beginning of the next page's first bucket."""


def page_of(database: Database, asked: Asked) -> Page:
    """Empty buckets are there too. Raises BadRequest, Unavailable."""
    seconds, count = _bounds(asked)
    first = (asked.begin if asked.page is None else asked.page) // seconds * seconds
    starts = range(first, asked.end, seconds)
    shown = starts[:count]
    found: dict[int, list[dict[str, Any]]] = {start: [] for start in shown}
    if shown:
        for row in _rows(database, asked, seconds, shown[0], shown[-1] + seconds):
            found[row.pop("bucket")].append(row)
    buckets = [Bucket(start, start + seconds, results) for start, results in found.items()]
    return Page(buckets, starts[count] if len(starts) > count else None)


def _bounds(asked: Asked) -> tuple[int, int]:
    if asked.width not in asked.widths:
        raise BadRequest(f"bucket_width is {' or '.join(asked.widths)} here.", param="bucket_width")
    if unknown := [name for name in asked.group_by if name not in asked.groups]:
        raise BadRequest(f"group_by is of {', '.join(asked.groups)}; not {unknown[0][:40]!r}.", param="group_by")
    if asked.end <= asked.begin:
        raise BadRequest("end_time must be after start_time.", param="end_time")
    seconds, usual, most = asked.widths[asked.width]
    if asked.limit is not None and not 1 <= asked.limit <= most:
        raise BadRequest(f"limit is 1 to {most} for buckets of {asked.width}.", param="limit")
    return seconds, asked.limit or usual


def _rows(database: Database, asked: Asked, seconds: int, first: int, last: int) -> list[dict[str, Any]]:
    bucket = (HOURS.c.hour - HOURS.c.hour % seconds).label("bucket")
    groups = [asked.groups[name].label(name) for name in asked.group_by]
    sums = [sa.cast(sa.func.sum(HOURS.c[name]), sa.BigInteger).label(name) for name in _SUMS]
    query = sa.select(bucket, *groups, *sums).where(HOURS.c.hour >= first, HOURS.c.hour < last)
    filters: Sequence[tuple[sa.ColumnElement[Any], tuple[str, ...]]] = (
        (HOURS.c.endpoint, asked.endpoints), (HOURS.c.team, asked.projects), (HOURS.c.key, asked.keys),
        (HOURS.c.model, asked.models), (COST_GROUPS["line_item"], asked.line_items),
    )  # fmt: skip
    for column, values in filters:
        if values:
            query = query.where(column.in_(values))
    if asked.batch is not None:
        query = query.where((HOURS.c.source == "batch") == asked.batch)
    query = query.group_by(bucket, *groups).order_by(bucket, *groups).limit(MAX_ROWS + 1)
    with database.read() as connection:
        rows = [dict(row._mapping) for row in connection.execute(query)]
    if len(rows) > MAX_ROWS:
        raise BadRequest(f"That is more than {MAX_ROWS:,} results. Ask for fewer buckets, or by less.", param="limit")
    return rows
