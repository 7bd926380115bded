"""A team's day, in its zone, in whole hours: totals, by hour, by model."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from registry.base.wording import quoted
from registry.errors import NotFound
from registry.storage.database import Database
from tenants.costs.compare import PriceComparison, ProviderPrice, compared
from tenants.ledger.dates import day_of
from tenants.ledger.report import Grouping, UsageFilter, UsageSum, used
from tenants.limits.records import MICRO, Kind, period_of
from tenants.limits.table import LimitTable


@dataclass(frozen=True, slots=True)
class Day:
    team: str
    date: str
    timezone: str
    begin: int
    end: int
    """Seconds since the epoch: 23 or 25 hours lie between where clocks are changed."""
    currency: str
    total: UsageSum
    hours: list[UsageSum]
    models: list[UsageSum]
    """By model, adapter and class."""
    compared: list[PriceComparison]


def day_of_team(
    database: Database,
    team: str,
    date: str | None,
    currency: str,
    prices: list[ProviderPrice],
    clock: Callable[[], float] = time.time,
) -> Day:
    """date: None is the team's yesterday. Raises BadRequest, NotFound, Unavailable."""
    if date is not None:
        day_of(date)
    zone = LimitTable(database).zones().get(team)
    if zone is None:
        raise NotFound(f"There is no team {quoted(team)}.", code="team_not_found", param="team_id")
    if date is None:
        date = (datetime.fromtimestamp(clock(), zone).date() - timedelta(days=1)).isoformat()
    local = datetime.fromisoformat(f"{date}T12:00:00").replace(tzinfo=zone)
    begin, end = period_of(Kind.DAY, zone, local.timestamp())

    def ask(*by: Grouping) -> list[UsageSum]:
        return used(database, UsageFilter(begin, end, by, team))

    return Day(
        team, date, str(zone), begin, end, currency, ask()[0],
        ask(Grouping.HOUR), ask(Grouping.MODEL, Grouping.ADAPTER, Grouping.CLASS),
        compared(database, prices, begin, end, team) if prices else [],
    )  # fmt: skip


COLUMNS = (
    "requests", "interrupted", "input_tokens", "cached_tokens", "output_tokens", "audio_seconds", "pairs",
    "device_seconds", "queue_seconds", "cost", "own_cost", "accepted", "rejected", "cost_per_accepted",
)  # fmt: skip


def numbers(one: UsageSum) -> dict[str, float | int | None]:
    """A sum as it is shown: seconds, and money in whole units."""
    cost = one.cost_micro / MICRO
    values = (
        one.requests, one.interrupted, one.prompt_tokens, one.cached_tokens, one.completion_tokens, one.audio_ms / 1e3,
        one.pairs, one.device_us / 1e6, one.queue_ms / 1e3, cost, one.own_micro / MICRO, one.accepted, one.rejected,
        cost / one.accepted if one.accepted else None,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def as_json(day: Day) -> dict[str, Any]:
    return {
        "object": "usage.day", "team_id": day.team, "date": day.date, "timezone": day.timezone,
        "currency": day.currency, "total": numbers(day.total),
        "hours": [{"hour": one.names[0], **numbers(one)} for one in day.hours],
        "models": [
            {"model": one.names[0], "adapter": one.names[1], "service_class": one.names[2], **numbers(one)}
            for one in day.models
        ],
        "compared": [one.fields for one in day.compared],
    }  # fmt: skip


def as_rows(day: Day) -> list[list[Any]]:
    """Rows for CSV: a head, then a row by model, adapter and class."""
    head = ["team", "date", "currency", "model", "adapter", "service_class", *COLUMNS]
    return [head, *([day.team, day.date, day.currency, *one.names, *numbers(one).values()] for one in day.models)]
