"""`roundhouse top`: the console's page Now in a terminal."""

import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from runtime.cli.commands.server.logs import seconds, stacked
from runtime.cli.failures import ServerError, ServerUnreachableError
from runtime.cli.options import DEFAULT_URL, AsJson, Url
from runtime.cli.output import console, emit, size
from runtime.cli.remote.client import Client, Json

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

STALLS = {"run": ("●", "green"), "held": ("●", "bright_black"), "swap": ("◐", "yellow")}
DECISIONS = 8


def top(
    once: Annotated[
        bool, typer.Option("--once", help="Show the page once and exit; the default when piped, or with TERM=dumb.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Watch a server: memory, models, adapter places, why requests waited, the last decisions. Ctrl-C quits.

    It reads the same stream as the console's page Now, at the same low cost. With --json each update is one line.
    A key needs the scope `models`.

    Examples: roundhouse top; roundhouse top --once --json | jq .minute.causes
    """
    with Client(url) as client:
        if not (once or as_json) and sys.stdout.isatty() and not console().is_dumb_terminal:
            _watch(client)
        for now in read_snapshots(client):
            if once or not as_json:
                emit(now) if as_json else console().print(page(now))
                return
            print(json.dumps(now, ensure_ascii=False), flush=True)
    raise ServerError("The server is stopping and has ended the stream.")


def _watch(client: Client) -> NoReturn:
    """Watch until Ctrl-C, reconnecting to a restarted server."""
    from rich.live import Live
    from rich.text import Text

    seen = False
    with Live(console=console(), screen=True, auto_refresh=False) as live:
        while True:
            try:
                for now in read_snapshots(client):
                    seen = True
                    live.update(page(now), refresh=True)
            except ServerUnreachableError:
                if not seen:
                    raise
            live.update(Text(f"not connected to {client.url}, trying again", style="yellow"), refresh=True)
            time.sleep(1.0)


def read_snapshots(client: Client) -> Iterator[Json]:
    """Read the stream's snapshots one by one. Raises ServerError if there is no such stream."""
    with client.stream("GET", "/console/events") as response:
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            raise ServerError("This server has no event stream at /console/events. Is it an older Roundhouse?")
        for line in response.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def page(now: Json) -> "Group":
    """Render one snapshot as a page."""
    from rich.console import Group
    from rich.rule import Rule
    from rich.text import Text

    minute = now["minute"]
    head = Text(f"{now['phase']}", style="bold green" if now["phase"] == "ready" else "bold yellow")
    longest = f", the longest for {seconds(now['longest_wait'])}" if now["waiting"] else ""
    head.append(
        f"  up {seconds(now['uptime'])}  {now['running']} running, {now['waiting']} waiting{longest}", "default"
    )
    summary = Text(
        f"last minute: {minute['requests']} requests, {minute['tokens'] / 60:.1f} tokens/s, {minute['swaps']} swaps, "
        f"first byte p90 {seconds(minute['first_p90'])}"
    )
    stores = [_store(store) for store in (*now["devices"], now["host"]) if store]
    rings = [_ring(ring) for ring in now["rings"]]
    parts: list[RenderableType] = [head, summary, Rule("memory", align="left"), *stores, _models(now), *rings]
    parts += [Rule("why requests waited", align="left"), stacked(minute["causes"], 40)]
    if now["shares"]:
        parts += [Text(f"teams: {', '.join(f'{team} {seconds(spent)}' for team, spent in now['shares'].items())}")]
    parts += [Rule("last decisions", align="left"), *_decisions(now)]
    return Group(*parts)


def _store(store: Json) -> "Text":
    from rich.text import Text

    filled = round(40 * min(1.0, store["held"] / max(1, store["budget"])))
    line = Text("█" * filled, style="green").append("░" * (40 - filled), "bright_black")
    name = f"{store['name']} {store['label']}" if store["name"] not in ("", "cpu") else store["label"]
    line.append(f"  {name}: {size(store['held'])} of {size(store['budget'])}", "default")
    return line.append(f"  gone: {store['fault']}", "bold red") if store["fault"] else line


def _models(now: Json) -> "Table":
    from rich.table import Table
    from rich.text import Text

    result = Table(box=None, pad_edge=False, header_style="bold")
    for column, side in (("MODEL", "left"), ("STATE", "left"), ("BYTES", "right"), ("RUN/WAIT", "right"), ("", "left")):
        result.add_column(column, justify="right" if side == "right" else "left")
    for model in now["models"]:
        percent = "" if model["percent"] is None else f" {model['percent']:.0f} %"
        words = model["failure"] or f"{model['phase']} {model['detail']}".strip()
        cells = (
            model["id"],
            f"{model['state']}{percent}{', pinned' if model['pinned'] else ''}",
            size(model["bytes"]) if model["bytes"] else "-",
            f"{model['running']}/{model['waiting']}",
            words,
        )
        result.add_row(*(Text(cell) for cell in cells))
    return result


def _ring(ring: Json) -> "Text":
    """Render the places of a base in order (answering, in place, arriving, free), then the answering adapters."""
    from rich.text import Text

    at = {stall["number"]: stall for stall in ring["stalls"]}
    line = Text(f"{ring['model']}: {len(at)} of {ring['places']} places  ")
    for number in range(min(ring["places"], 128)):
        mark, style = STALLS[at[number]["state"]] if number in at else ("·", "bright_black")
        line.append(mark, style)
    busy = [stall["adapter"] for stall in ring["stalls"] if stall["state"] != "held"]
    line.append(f"  host {ring['host_used']} of {ring['host_places']}")
    return line.append(f"  {', '.join(busy[:6])}", "green") if busy else line


def _decisions(now: Json) -> list["Text"]:
    from rich.text import Text

    if not now["decisions"]:
        return [Text("none yet; models load and adapters move when requests need them", style="dim")]
    lines = []
    for one in now["decisions"][:DECISIONS]:
        line = Text(f"{max(0.0, now['at'] - one['at']):4.0f} s ago  ", style="dim")
        line.append(f"{one['subject']} {one['words']} {one['object']}".strip(), "default")
        lines.append(line.append(f"  {one['more']}", "dim") if one["more"] else line)
    return lines
