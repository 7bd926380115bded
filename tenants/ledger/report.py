"""Usage from hourly sums: by team, key, model, adapter, class, endpoint and time."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from registry.base.wording import quoted
from registry.errors import BadRequest, NotFound
from registry.storage.database import Database
from tenants.ledger.table import SUMS
from tenants.storage.tables import HOURS, TEAMS

DAY = 86_400
MAX_ROWS = 10_000
"""Most rows in an answer."""


class Grouping(StrEnum):
    """What sums can be grouped by."""

    TEAM = "team"
    KEY = "key"
    MODEL = "model"
    ADAPTER = "adapter"
    CLASS = "class"
    ENDPOINT = "endpoint"
    HOUR = "hour"
    DAY = "day"


_COLUMNS: dict[Grouping, sa.ColumnElement[Any]] = {
    Grouping.TEAM: HOURS.c.team,
    Grouping.KEY: HOURS.c.key,
    Grouping.MODEL: HOURS.c.model,
    Grouping.ADAPTER: HOURS.c.adapter,
    Grouping.CLASS: HOURS.c.service_class,
    Grouping.ENDPOINT: HOURS.c.endpoint,
    Grouping.HOUR: HOURS.c.hour,
    Grouping.DAY: HOURS.c.hour - HOURS.c.hour % DAY,
}


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """begin, end: seconds since the epoch; hours that start between them count whole. team: None for all."""

    begin: int
    end: int
    by: tuple[Grouping, ...] = ()
    team: str | None = None


@dataclass(frozen=True, slots=True)
class UsageSum:
    """Usage of one group. `names` are the values of the groupings, in order; times are seconds since the epoch."""

    names: tuple[str | int, ...]
    requests: int
    interrupted: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    audio_ms: int
    queue_ms: int
    total_ms: int
    pairs: int
    device_us: int
    cold_ms: int
    cost_micro: int
    own_micro: int
    lost_micro: int
    """Highest possible cost of interrupted requests."""
    accepted: int
    rejected: int


def used(database: Database, filters: UsageFilter) -> list[UsageSum]:
    """Return sums in the order of their names, exactly one without groupings. Raises BadRequest, Unavailable."""
    columns = [_COLUMNS[by].label(f"by_{by}") for by in filters.by]
    sums = [sa.cast(sa.func.coalesce(sa.func.sum(HOURS.c[name]), 0), sa.BigInteger) for name in SUMS]
    query = sa.select(*columns, *sums).where(HOURS.c.hour >= filters.begin, HOURS.c.hour < filters.end)
    if filters.team is not None:
        query = query.where(HOURS.c.team == filters.team)
    query = query.group_by(*columns).order_by(*columns).limit(MAX_ROWS + 1)
    with database.read() as connection:
        rows = connection.execute(query).all()
    if len(rows) > MAX_ROWS:
        raise BadRequest(f"That is more than {MAX_ROWS:,} rows. Ask for less time or fewer groups.", param="group_by")
    size = len(columns)
    return [UsageSum(tuple(row[:size]), *row[size:]) for row in rows]


def check_team(database: Database, team: str) -> None:
    """Raise NotFound if a team neither exists nor has usage. Otherwise its sums would be zero, as if it were idle."""
    is_team, has_usage = TEAMS.c.id == team, HOURS.c.team == team
    with database.read() as connection:
        query = sa.select(sa.or_(sa.exists().where(is_team), sa.exists().where(has_usage)))
        exists = connection.execute(query).scalar()
    if not exists:
        raise NotFound(f"There is no team {quoted(team)}.", code="team_not_found", param="team_id")


def parse_groupings(words: Sequence[str]) -> tuple[Grouping, ...]:
    """Parse groupings from words, which may contain commas. Raises BadRequest."""
    names = [word.strip() for text in words for word in text.split(",") if word.strip()]
    try:
        return tuple(dict.fromkeys(Grouping(word) for word in names))
    except ValueError:
        raise BadRequest(f"Usage can be grouped by {', '.join(Grouping)}.", param="group_by") from None


_LAST = 10_000_000_000
"""The largest time that users may give, in seconds since the epoch."""


def day_of(text: str, param: str = "date") -> tuple[int, int]:
    """Return the beginning and end of a day. Raises BadRequest."""
    try:
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            raise ValueError
        day = date.fromisoformat(text)
        begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
        return int(begin.timestamp()), int((begin + timedelta(days=1)).timestamp())
    except (ValueError, OverflowError):
        raise BadRequest(f"{quoted(text)} is not a day, such as 2026-11-23.", param=param) from None


def moment_of(text: str, param: str) -> int:
    """Return the beginning of a day, or a time in seconds. Raises BadRequest."""
    if text.isascii() and text.isdigit():
        if len(text) > len(str(_LAST)) or int(text) > _LAST:
            raise BadRequest("Times are seconds since 1970, not milliseconds.", param=param)
        return int(text)
    return day_of(text, param)[0]


def span(day: str | None, begin: str | None, end: str | None, now: float) -> tuple[int, int]:
    """Return the span of a day, or from `begin` to `end`. Either defaults to today. Raises BadRequest."""
    if day is not None:
        if begin is not None or end is not None:
            raise BadRequest("Give a date, or from and to.", param="date")
        return day_of(day)
    today, tomorrow = day_of(datetime.fromtimestamp(now, UTC).date().isoformat())
    first = today if begin is None else moment_of(begin, "from")
    last = tomorrow if end is None else moment_of(end, "to")
    if last <= first:
        if end is None:
            raise BadRequest("'from' is in the future: give an earlier time, or 'to' as well.", param="from")
        if begin is None:
            raise BadRequest("'to' must be after the beginning of today: give 'from' as well.", param="to")
        raise BadRequest("'to' must be after 'from'.", param="to")
    return first, last
