"""`roundhouse logs`: the history of one request."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.options import DEFAULT_URL, AsJson, Url
from runtime.cli.output import console, emit, pairs
from runtime.cli.remote.client import Client, Json, part

if TYPE_CHECKING:
    from rich.text import Text

COLOURS = {
    "queue": "bright_black",
    "load": "blue",
    "swap": "yellow",
    "prefill": "cyan",
    "decode": "green",
    "provider": "magenta",
}
"""Colour of each cause of waiting, in display order."""
WIDTH = 48
MICRO = 1_000_000


def logs(
    request_id: Annotated[
        str, typer.Argument(metavar="REQUEST_ID", help="The X-Request-Id of its answer.", show_default=False)
    ],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show the history of one request: its end, where its time went, why it was routed there, and its cost.

    The server has the last 1,000 requests in memory, and all of them in its ledger if it has one. Texts are not stored.

    Example: roundhouse logs req-0123456789abcdef01234567
    """
    with Client(url) as client:
        result = client.get(f"/v1/requests/{part(request_id)}")
    if as_json:
        emit(result)
        return
    record, ledger = result["record"], result["ledger"]
    if record is not None:
        pairs(_record(record))
        if record["causes"]:
            print()
            _waterfall(record["causes"])
        if record["route"]:
            print()
            pairs(_route(record["route"]))
    for row in ledger:
        print()
        pairs(_row(row))


def _record(record: Json) -> list[tuple[str, str]]:
    answered = record["model"] + (f":{record['adapter']} {record['digest'][:19]}" if record["adapter"] else "")
    at = f", at {record['provider']}" if record["provider"] else ""
    error = f" {record['code']}" if record["code"] else ""
    return [
        ("request", record["id"]),
        ("ended", f"{_when(record['at'])}, {record['end']} {record['status'] or ''}{error}"),
        ("team, class", f"{record['team']}, {record['service_class']}"),
        ("endpoint", record["endpoint"]),
        ("requested", record["asked"] or "-"),
        ("answered by", f"{answered or '-'}{at}"),
        ("tokens", f"{record['prompt_tokens']} in, {record['completion_tokens']} out"),
        *([("audio", f"{record['audio_seconds']:.1f} s")] if record["audio_seconds"] else []),
        ("first byte", seconds(record["first"])),
        ("total", seconds(record["total"])),
    ]


def _route(route: Json) -> list[tuple[str, str]]:
    score = "" if route["score"] is None else f" {route['score']:.3f}"
    return [
        ("router", route["router"]),
        ("chose", f"{route['target']}, {route['reason']}{score}"),
        ("scores", ", ".join(f"{name} {value:.3f}" for name, value in route["scores"].items()) or "none"),
        ("also near", ", ".join(route["alternatives"]) or "none"),
        *((f"saw {name}", what) for name, what in route["saw"].items()),
    ]


def _row(row: Json) -> list[tuple[str, str]]:
    feedback = {None: "no feedback", True: "accepted", False: "rejected"}[row["accepted"]]
    return [
        ("ledger", f"attempt {row['attempt']}, {row['state']}, began {_when(row['at'])}"),
        ("key", row["key"] or "none"),
        ("version", f"{row['model']}@{row['revision']}" + (f" {row['adapter']}" if row["adapter"] else "")),
        ("tokens", f"{row['prompt_tokens']} in ({row['cached_tokens']} cached), {row['completion_tokens']} out"),
        ("machine", f"{row['device_us'] / MICRO:.3f} s, cold start {row['cold_ms'] / 1e3:.1f} s"),
        ("cost", f"{row['cost_micro'] / MICRO:.6f}, by the machine's price {row['own_micro'] / MICRO:.6f}"),
        ("reserved", f"{row['reserved_tokens']} tokens, {row['reserved_micro'] / MICRO:.6f}"),
        ("answer", feedback),
    ]


def _waterfall(causes: Mapping[str, float]) -> None:
    whole = sum(causes.values()) or 1.0
    out, at = console(), 0.0
    for name, spent in causes.items():
        out.print(_bar(name, spent, at / whole, spent / whole))
        at += spent


def _bar(name: str, spent: float, start: float, share: float) -> "Text":
    """Return a line of the waterfall, whose bar starts where its time began."""
    from rich.text import Text

    before = min(WIDTH - 1, round(start * WIDTH))
    width = min(WIDTH - before, max(1, round(share * WIDTH))) if spent > 0 else 0
    line = Text(f"{name:<10}{seconds(spent):>9}  {' ' * before}")
    line.append("█" * width, style=COLOURS.get(name, ""))
    return line


def stacked(causes: Mapping[str, float], width: int) -> "Text":
    """Return a bar of all causes, followed by their names and times."""
    from rich.text import Text

    whole, line = sum(causes.values()), Text()
    for name, spent in causes.items():
        line.append("█" * round(width * spent / whole) if whole else "", style=COLOURS.get(name, ""))
    for name, spent in causes.items():
        if spent > 0:
            line.append(f"  {name} ", style=COLOURS.get(name, "")).append(seconds(spent))
    return line if whole else Text("no request ended in the last minute", style="dim")


def seconds(value: float | None) -> str:
    """Format a duration, such as 12.3 ms, 1.2 s or 3 min."""
    if value is None:
        return "-"
    if value < 0.99995:  # what is more is rounded to 1.0 s
        return f"{value * 1e3:.1f} ms"
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min"


def _when(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
