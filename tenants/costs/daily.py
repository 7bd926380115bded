"""One day of a team in its time zone, in whole hours: totals, by hour, by model."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from typing import Any
from zoneinfo import ZoneInfo

from registry.base.wording import plain, quoted
from registry.errors import BadRequest, NotFound
from registry.storage.database import Database
from tenants.costs.compare import PriceComparison, ProviderPrice, compared
from tenants.ledger.report import Grouping, UsageFilter, UsageSum, day_of, used
from tenants.ledger.rows import HOUR
from tenants.limits.records import MICRO, Kind, period_of
from tenants.limits.table import LimitTable


@dataclass(frozen=True, slots=True)
class Day:
    team: str
    date: str
    timezone: str
    begin: int
    end: int
    """Seconds since the epoch. The day has 23 or 25 hours when clocks change."""
    currency: str
    total: UsageSum
    hours: list[UsageSum]
    models: list[UsageSum]
    """Sums by model, adapter and class."""
    compared: list[PriceComparison]


def day_of_team(
    database: Database,
    team: str,
    date: str | None,
    currency: str,
    prices: list[ProviderPrice],
    clock: Callable[[], float] = time.time,
) -> Day:
    """Return the usage of a day. date: None for the team's yesterday. Raises BadRequest, NotFound, Unavailable."""
    if date is not None and day_of(date)[0] < 0:
        raise BadRequest("The first day is 1970-01-01.", param="date")
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
    """Return a sum as it is shown: in seconds, and in whole units of money."""
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
        "hours": [{"hour": hour.names[0], **numbers(hour)} for hour in day.hours],
        "models": [
            {"model": model.names[0], "adapter": model.names[1], "service_class": model.names[2], **numbers(model)}
            for model in day.models
        ],
        "compared": [one.fields for one in day.compared],
    }  # fmt: skip


def as_rows(day: Day) -> list[list[Any]]:
    """Return rows for CSV: a header, then one row per model, adapter and class."""
    head = ["team", "date", "currency", "model", "adapter", "service_class", *COLUMNS]
    return [head, *([day.team, day.date, day.currency, *model.names, *numbers(model).values()] for model in day.models)]


WIDTH, HEIGHT, GAP = 720, 140, 2
_STYLE = (
    "body{font:15px system-ui,sans-serif;max-width:80rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;width:100%;font-size:.8rem;font-variant-numeric:tabular-nums}"
    "td,th{padding:.25rem .3rem;text-align:right;border-bottom:1px solid #ddd;overflow-wrap:anywhere}"
    "td:first-child,th:first-child{text-align:left}h2{font-size:1.05rem;margin-top:2rem}"
    "svg{width:100%;max-width:60rem;height:auto}"
    "@media screen and (prefers-color-scheme:dark){body{background:#161616;color:#ddd}td,th{border-color:#444}}"
    # phones and paper are too narrow for 17 columns, so each row becomes a list
    "@media print,(max-width:72rem){table,tbody,tr,td{display:block}th{display:none}tr{margin-bottom:1.5rem;"
    "break-inside:avoid}td,td:first-child{display:flex;justify-content:space-between;gap:1rem;text-align:right}"
    "td::before{content:attr(data-label);color:#767676}svg{break-inside:avoid}}"
    "@media print{body{color:#000;margin:0}}"
)
VALUE = 'font-size="9" text-anchor="middle" fill="#767676"'
_PLOTS = (
    ("requests", "Requests"), ("output_tokens", "Output tokens"), ("input_tokens", "Input tokens"), ("cost", "Cost"),
)  # fmt: skip


def page_of(day: Day) -> str:
    """Return the page as HTML. All texts are escaped because clients choose names of adapters."""
    title = f"{escape(day.team)}, {day.date}"
    total = numbers(day.total)
    head = f"{total['requests']:,} requests, {total['cost']:,.4f} {day.currency}"
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>{title}</title><style>{_STYLE}</style>",
        f"<main><h1>{title}</h1><p>{head}. Hours are in {escape(day.timezone)} time.</p>",
        *(f"<h2>{label} by hour</h2>{_bars(day, name)}" for name, label in _PLOTS),
        "<h2>By model, adapter and class</h2>",
        _table(
            ("model", "adapter", "class", *COLUMNS), ([*model.names, *numbers(model).values()] for model in day.models)
        ),
    ]
    if day.compared:
        rows = [
            [f"{one.provider} {one.model}", one.theirs / 1e6, one.ours / 1e6, one.saving, one.own / 1e6, one.own_saving]
            for one in day.compared
        ]
        columns = ("at", "theirs", "list price here", "saving %", "machine cost here", "saving %")
        parts += ["<h2>The same traffic at other providers</h2>", _table(columns, rows)]
    return "".join(parts) + "</main></html>\n"


def _bars(day: Day, name: str) -> str:
    """Return a bar for each hour. Clock changes repeat or skip one."""
    zone = ZoneInfo(day.timezone)
    values = {int(hour.names[0]): _value(hour, name) for hour in day.hours}
    most = max(values.values(), default=0.0) or 1.0
    hours = range(-(-day.begin // HOUR) * HOUR, day.end, HOUR)
    step = WIDTH / len(hours)
    bars = []
    for index, hour in enumerate(hours):
        value, label, x = values.get(hour, 0.0), f"{datetime.fromtimestamp(hour, zone):%H:%M}", f"{index * step:.1f}"
        height = HEIGHT * value / most
        where = f'x="{x}" y="{HEIGHT - height:.1f}" width="{step - GAP:.1f}" height="{height:.1f}"'
        bars.append(f'<rect {where} fill="#3a7bd5"><title>{label}: {plain(value, ",.6f")}</title></rect>')
        if value:
            middle, top = f"{index * step + (step - GAP) / 2:.1f}", f"{HEIGHT - height - 3:.1f}"
            bars.append(f'<text x="{middle}" y="{top}" {VALUE}>{_short(value)}</text>')
        if index % 6 == 0:
            bars.append(f'<text x="{x}" y="{HEIGHT + 14}" font-size="11" fill="#888">{label}</text>')
    return f'<svg viewBox="0 -12 {WIDTH} {HEIGHT + 30}" role="img" aria-label="{name} by hour">{"".join(bars)}</svg>'


def _short(value: float) -> str:
    """Format in three digits, such as 12.3k: a bar is only four characters wide."""
    for unit in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}T"


def _value(one: UsageSum, name: str) -> float:
    return float(numbers(one)[name] or 0)


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    labels = [escape(column.replace("_", " ")) for column in columns]
    head = "".join(f"<th>{label}</th>" for label in labels)

    def line(row: Sequence[object]) -> str:
        cells = zip(labels, row, strict=True)
        return "".join(f'<td data-label="{label}">{_cell(cell)}</td>' for label, cell in cells)

    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line(row)}</tr>' for row in rows)}</table>"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return plain(value, ",.6f" if abs(value) < 1 else ",.3f")
    return escape(str(value)) or "-"
