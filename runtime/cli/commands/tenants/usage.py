"""`roundhouse usage`: usage of teams, from the ledger of a data directory."""

import csv
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.failures import RefusedError, UsageError
from runtime.cli.local.keys import Database, DataDir, open_database
from runtime.cli.options import AsJson
from runtime.cli.output import emit, note, table

if TYPE_CHECKING:
    from registry.storage.database import Database as Tables
    from tenants.ledger.report import UsageFilter

Prices = Annotated[
    Path | None,
    typer.Option(
        "--provider-prices",
        envvar="ROUNDHOUSE_PROVIDER_PRICES",
        help="YAML table of providers' prices; see docs/costs.md.",
    ),
]
Currency = Annotated[str, typer.Option("--currency", envvar="ROUNDHOUSE_CURRENCY", help="The server's currency.")]
OneTeam = Annotated[str | None, typer.Option("--team", help="One team.", show_default="all")]
Begin = Annotated[str | None, typer.Option("--from", help="A day, or seconds since the epoch.")]
End = Annotated[str | None, typer.Option("--to", help="Exclusive end of the period, in the format of --from.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
MIN_KEEP, MAX_KEEP = 35, 10_000
"""Days. A month's budget needs the requests of its first and last hour; the maximum stays after 1970."""


def _keep(name: str, text: str) -> Any:
    return typer.Option(name, min=MIN_KEEP, max=MAX_KEEP, help=text, show_default="all stay")


app = typer.Typer(no_args_is_help=True, help="Show the usage of teams, and check the ledger's sums.")


@app.command()
def report(
    team: OneTeam = None,
    day: Annotated[str | None, typer.Option("--date", help="A day in UTC, 2026-11-23.", show_default="today")] = None,
    begin: Begin = None,
    end: End = None,
    by: Annotated[
        str, typer.Option("--by", help="Comma-separated: team, key, model, adapter, class, endpoint, hour, day.")
    ] = "team,model",
    as_csv: AsCsv = False,
    data_dir: DataDir = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Sum up the requests and tokens of teams, in whole hours.

    Examples: roundhouse usage report;
    roundhouse usage report --team search --from 2026-11-01 --to 2026-12-01 --by day,model --csv
    """
    if as_json and as_csv:
        raise UsageError("Choose --json or --csv.")
    with open_database(data_dir, database) as tables:
        from tenants.ledger.report import UsageFilter, check_team, parse_groupings, span, used

        if team is not None:
            check_team(tables, team)
        first, last = span(day, begin, end, time.time())
        question = UsageFilter(first, last, parse_groupings([by]), team)
        result = used(tables, question)
    columns = [
        *question.by, "requests", "interrupted", "input", "cached", "output", "audio s", "queue s", "total s", "cost",
        "own cost", "accepted",
    ]  # fmt: skip
    rows: list[list[Any]] = [
        [
            *one.names, one.requests, one.interrupted, one.prompt_tokens, one.cached_tokens, one.completion_tokens,
            one.audio_ms / 1e3, one.queue_ms / 1e3, one.total_ms / 1e3, one.cost_micro / 1e6, one.own_micro / 1e6,
            one.accepted,
        ]
        for one in result
    ]  # fmt: skip
    if as_json:
        emit({"object": "usage", "start_time": first, "end_time": last, "data": [_named(columns, row) for row in rows]})
    elif as_csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(columns)
        writer.writerows(rows)
    else:
        _table(columns, rows, question)


@app.command()
def daily(
    team: Annotated[str, typer.Argument(metavar="TEAM", help="Id of a team; see roundhouse teams list.")],
    day: Annotated[
        str | None, typer.Option("--date", help="A day in the team's time zone.", show_default="yesterday")
    ] = None,
    as_csv: AsCsv = False,
    as_html: Annotated[bool, typer.Option("--html", help="Print one page of HTML.")] = False,
    prices: Prices = None,
    currency: Currency = "USD",
    data_dir: DataDir = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Print a team's day as JSON: totals, by hour, by model and adapter. The HTML page has plots and is self-contained.

    Examples: roundhouse usage daily search --html > search.html;
    roundhouse usage daily search --date 2026-11-22 --csv
    """
    if as_json + as_csv + as_html > 1:
        raise UsageError("Choose one of --json, --csv and --html.")
    with open_database(data_dir, database) as tables:
        from tenants.costs.compare import read_prices
        from tenants.costs.daily import as_json as as_document
        from tenants.costs.daily import as_rows, day_of_team, page_of

        result = day_of_team(tables, team, day, currency, read_prices(prices) if prices else [])
    if as_html:
        print(page_of(result), end="")
    elif as_csv:
        csv.writer(sys.stdout).writerows(as_rows(result))
    else:
        emit(as_document(result))


@app.command()
def compare(
    prices: Annotated[Path, typer.Argument(metavar="PRICES", help="YAML table of providers' prices; docs/costs.md.")],
    team: OneTeam = None,
    begin: Begin = None,
    end: End = None,
    currency: Currency = "USD",
    data_dir: DataDir = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Show the cost of the same traffic at providers, at each day's prices, and the saving in percent.

    Example: roundhouse usage compare prices.yaml --from 2026-11-01
    """
    with open_database(data_dir, database) as tables:
        from tenants.costs.compare import compared, read_prices
        from tenants.ledger.report import check_team, span

        if team is not None:
            check_team(tables, team)
        first, last = span(None, begin, end, time.time())
        result = compared(tables, read_prices(prices), first, last, team)
    rows = [one.fields for one in result]
    if as_json:
        emit({"object": "usage.comparison", "currency": currency, "data": rows})
        return
    names = ("provider", "model", "theirs", "ours", "saving_percent", "own")
    values = [[row[name] for name in names] for row in rows]
    cells = [[f"{cell:,.4f}" if isinstance(cell, float) else str(cell or "-") for cell in row] for row in values]
    columns = [name.upper().replace("_", " ") for name in names]
    table(columns, cells, right=columns[2:])


@app.command()
def reconcile(data_dir: DataDir = None, database: Database = None, as_json: AsJson = False) -> None:
    """Check that the hourly sums match the ledger's rows. The exit code is 1 if they do not.

    Example: roundhouse usage reconcile
    """
    from dataclasses import asdict

    with open_database(data_dir, database) as tables:
        from tenants.ledger.pruning import first_kept_hour
        from tenants.ledger.table import LedgerTable

        ledger = LedgerTable(tables, "")
        differences, open_rows = ledger.differences(), ledger.open_rows()
        with tables.read() as connection:
            since = first_kept_hour(connection)
    rows = [asdict(difference) for difference in differences]
    result = {"object": "reconciliation", "differences": rows, "open": open_rows, "kept_since": since}
    if as_json and not differences:
        emit(result)
    elif not as_json:
        for one in differences:
            note(f"{_time(one.hour)} {' '.join(filter(None, one.names))}: rows {one.rows}, sums {one.sums}")
        sums = f"sums since {_time(since)}" if since else "sums"
        agree = f"all {sums} agree with their rows" if not differences else f"{len(differences)} {sums} differ"
        print(f"{agree}; {open_rows} requests are running")
    if differences:
        wrong = "The ledger's sums do not match its rows, because its tables were changed from outside."
        raise RefusedError(wrong, document=result)


@app.command()
def prune(
    keep: Annotated[
        int,
        typer.Option(
            "--keep", min=MIN_KEEP, max=MAX_KEEP, help="Keep the requests of this many days.", show_default=False
        ),
    ],
    keep_sums: Annotated[
        int | None, _keep("--keep-sums", "Also delete hourly sums that are older than this many days.")
    ] = None,
    keep_batches: Annotated[
        int | None, _keep("--keep-batches", "Also delete batches that ended more than this many days ago.")
    ] = None,
    keep_keys: Annotated[
        int | None, _keep("--keep-keys", "Also delete keys that were revoked or expired more than this many days ago.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Prune even if the newest request is over a month old.")
    ] = False,
    data_dir: DataDir = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Delete old requests and, with further options, old hourly sums, batches and keys.

    Without --keep-sums all hourly sums stay, so reports, bills and budgets do not change. Afterwards, simulated limits,
    reports of routers and feedback use only the remaining requests, because they need single ones. The server may be
    running.

    Examples: roundhouse usage prune --keep 90;
    roundhouse usage prune --keep 90 --keep-sums 800 --keep-batches 90 --keep-keys 365
    """
    if keep_sums is not None and keep_sums < keep:
        raise UsageError("Sums must be kept as long as their requests: --keep-sums must be at least --keep.")
    with open_database(data_dir, database) as tables:
        from tenants.ledger.pruning import check_clock, first_kept_hour
        from tenants.ledger.pruning import prune as pruned

        now, deleted = time.time(), 0
        if not force:
            check_clock(tables, now)
        for deleted in pruned(tables, now - keep * 86_400):
            if deleted % 100_000 == 0:
                note(f"deleted {deleted:,} requests")
        with tables.read() as connection:
            since = first_kept_hour(connection)
        others = _prune_others(tables, now, keep_sums, keep_batches, keep_keys)
    if as_json:
        counts = {f"deleted_{what}": count for what, count in others.items()}
        emit({"object": "usage.pruned", "deleted": deleted, **counts, "kept_since": since})
    else:
        print(f"deleted {deleted:,} requests; those since {_time(since)} stay")
        for what, count in others.items():
            print(f"deleted {count:,} {what}")


def _prune_others(
    tables: "Tables", now: float, sums: int | None, batches: int | None, keys: int | None
) -> dict[str, int]:
    """Delete what is older than these days. Returns how many of each kind, without those that stay."""
    from batches.storage.opening import has_tables, prepare
    from batches.table import BatchTable
    from tenants.keys.pruning import prune_keys
    from tenants.ledger.pruning import prune_sums

    deleted = {}
    if sums is not None:
        deleted["sums"] = prune_sums(tables, now - sums * 86_400)
    if batches is not None:
        deleted["batches"] = 0
        if has_tables(tables):
            prepare(tables)
            deleted["batches"] = BatchTable(tables).prune(now - batches * 86_400)
    if keys is not None:
        deleted["keys"] = prune_keys(tables, now - keys * 86_400)
    return deleted


def _named(columns: list[str], row: list[Any]) -> dict[str, Any]:
    return {name.replace(" s", "_seconds").replace(" ", "_"): value for name, value in zip(columns, row, strict=True)}


def _table(columns: list[str], rows: list[list[Any]], question: "UsageFilter") -> None:
    times = [index for index, word in enumerate(question.by) if word in ("hour", "day")]
    for row in rows:
        for index in times:
            row[index] = _time(row[index])
    cells = [[_cell(value) for value in row] for row in rows]
    table([column.upper() for column in columns], cells, right=[c.upper() for c in columns[len(question.by) :]])


def _cell(value: object) -> str:
    from registry.base.wording import plain

    if isinstance(value, float):
        return plain(value, ",.6f")
    return f"{value:,}" if isinstance(value, int) else str(value) or "-"


def _time(moment: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment))
