"""A team's day as one page: its plots are SVG inside it, and it fetches nothing."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from zoneinfo import ZoneInfo

from registry.base.wording import plain
from tenants.costs.daily import COLUMNS, Day, numbers
from tenants.ledger.report import UsageSum
from tenants.ledger.rows import HOUR

WIDTH, HEIGHT, GAP = 720, 140, 2
_STYLE = (
    "body{font:15px system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}"
    "td,th{padding:.25rem .5rem;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}"
    "td:first-child,th:first-child{text-align:left}h2{font-size:1.05rem;margin-top:2rem}svg{width:100%;height:auto}"
    "@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}td,th{border-color:#444}}"
)
_PLOTS = (("requests", "Requests"), ("output_tokens", "Tokens made"), ("input_tokens", "Tokens read"), ("cost", "Cost"))


def page_of(day: Day) -> str:
    """Every text in it is escaped: names of adapters are clients' own."""
    title = f"{escape(day.team)}, {day.date}"
    total = numbers(day.total)
    head = f"{total['requests']:,} requests, {total['cost']:,.4f} {day.currency}"
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>',
        f"<h1>{title}</h1><p>{head}. Hours are those of {escape(day.timezone)}.</p>",
        *(f"<h2>{label} by hour</h2>{_bars(day, name)}" for name, label in _PLOTS),
        "<h2>By model, adapter and class</h2>",
        _table(("model", "adapter", "class", *COLUMNS), ([*one.names, *numbers(one).values()] for one in day.models)),
    ]
    if day.compared:
        rows = [
            [f"{one.provider} {one.model}", one.theirs / 1e6, one.ours / 1e6, one.saving, one.own / 1e6, one.own_saving]
            for one in day.compared
        ]
        columns = ("at", "theirs", "list price here", "saving %", "machine cost here", "saving %")
        parts += ["<h2>The same at other providers</h2>", _table(columns, rows)]
    return "".join(parts) + "</html>\n"


def _bars(day: Day, name: str) -> str:
    """A bar for each hour; clock changes repeat or skip one."""
    zone = ZoneInfo(day.timezone)
    values = {int(one.names[0]): _value(one, name) for one in day.hours}
    most = max(values.values(), default=0.0) or 1.0
    hours = range(-(-day.begin // HOUR) * HOUR, day.end, HOUR)
    step = WIDTH / len(hours)
    bars = []
    for index, hour in enumerate(hours):
        value, label, x = values.get(hour, 0.0), f"{datetime.fromtimestamp(hour, zone):%H:%M}", f"{index * step:.1f}"
        height = HEIGHT * value / most
        where = f'x="{x}" y="{HEIGHT - height:.1f}" width="{step - GAP:.1f}" height="{height:.1f}"'
        bars.append(f'<rect {where} fill="#3a7bd5"><title>{label}: {plain(value, ",.6f")}</title></rect>')
        if index % 6 == 0:
            bars.append(f'<text x="{x}" y="{HEIGHT + 14}" font-size="11" fill="#888">{label}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 18}" role="img" aria-label="{name} by hour">{"".join(bars)}</svg>'


def _value(one: UsageSum, name: str) -> float:
    return float(numbers(one)[name] or 0)


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(column.replace('_', ' '))}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if isinstance(value, float) else escape(str(value)) or "-"
