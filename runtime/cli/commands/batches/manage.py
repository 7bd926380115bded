"""`roundhouse batch`: list, show, watch, cancel, results, deliveries, redeliver."""

import time
from pathlib import Path
from typing import Annotated

import typer

from runtime.cli.commands.batches.files import ErrorFile, batch_faults, check, download, errors_path, fetch
from runtime.cli.commands.batches.run import run
from runtime.cli.commands.batches.waiting import BATCHES, FINAL, duration, follow
from runtime.cli.failures import EXIT_CODES, RefusedError
from runtime.cli.options import DEFAULT_URL, AsJson, Url
from runtime.cli.output import ago, emit, note, pairs, show, table
from runtime.cli.remote.client import Client, Json
from runtime.cli.remote.resource import Resource

Id = Annotated[str, typer.Argument(metavar="BATCH", help="Id of a batch.", show_default=False)]
app = typer.Typer(help="Batches: files of requests, answered from idle capacity.", no_args_is_help=True)
app.command("run", epilog=EXIT_CODES)(run)


def _counts(batch: Json) -> str:
    counts = batch["request_counts"]
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    return f"{counts['completed']} of {counts['total']}{failed}"


def _show(batch: Json) -> None:
    rows = [
        ("batch", batch["id"]),
        ("status", batch["status"]),
        ("lines", _counts(batch)),
        ("endpoint", batch["endpoint"]),
        ("input", batch["input_file_id"]),
        ("output", batch["output_file_id"] or "-"),
        ("errors", batch["error_file_id"] or "-"),
        ("created", ago(batch["created_at"])),
    ]
    more = dict(batch.get("roundhouse") or {})
    if forecast := more.get("forecast"):
        early, likely, late = (duration(forecast[name] - time.time()) for name in ("early", "likely", "late"))
        beyond = ", after the end of its window" if more.get("late") else ""
        rows.append(("forecast", f"{likely} left ({early} to {late}){beyond}"))
    if waits := more.get("waits"):
        rows.append(("waits", str(waits)))
    pairs(rows)
    for line in batch_faults(batch):
        print(f"  {line}")


RESOURCE = Resource(BATCHES, _show)


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=100, help="Newest batches to list.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List batches, newest first.

    Example: roundhouse batch list
    """
    RESOURCE.list(url, as_json, _print_list, limit=limit)


def _print_list(result: Json) -> None:
    rows = [
        [batch["id"], batch["status"], _counts(batch), batch["endpoint"], ago(batch["created_at"])]
        for batch in result["data"]
    ]
    table(["BATCH", "STATUS", "LINES", "ENDPOINT", "CREATED"], rows, right=["LINES"])


@app.command("show")
def show_(batch: Id, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a batch: its progress, its files, and their faults.

    Example: roundhouse batch show batch_1f2e
    """
    RESOURCE.show(url, as_json, batch)


@app.command()
def watch(batch: Id, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Follow a batch until it ends. Ctrl-C leaves it running.

    Example: roundhouse batch watch batch_1f2e
    """
    with Client(url) as client:
        try:
            ended = follow(client, batch, drawn=not as_json)
        except KeyboardInterrupt:
            note(f"\nBatch {batch} continues.")
            raise typer.Exit(130) from None
    show(ended, as_json, _show)


@app.command()
def cancel(batch: Id, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Cancel a batch. Keeps the answers so far.

    Example: roundhouse batch cancel batch_1f2e
    """
    RESOURCE.call(url, as_json, "POST", batch, "cancel")


@app.command()
def results(
    batch: Id,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File for the answers.", show_default="standard output"),
    ] = None,
    errors: ErrorFile = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Download the answers of a batch that has ended. The exit code is 1 if lines failed.

    Example: roundhouse batch results batch_1f2e -o answers.jsonl
    """
    with Client(url) as client:
        ended = client.get(RESOURCE.at(batch))
        if ended["status"] not in FINAL:
            raise RefusedError(
                f"Batch {batch} is {ended['status']}. Wait for it with `roundhouse batch watch {batch}`."
            )
        if output is not None:
            errors = errors or errors_path(output)
        elif ended["output_file_id"] is not None and not as_json:
            download(client, ended["output_file_id"], None)
        failures = fetch(client, ended, output, errors)
    check(ended, failures, errors)
    if as_json:
        emit(ended)


def _show_deliveries(result: Json) -> None:
    rows = [
        [one["id"], one["event_type"], one["state"], str(one["attempts"]), one["url"], one["error"] or "-"]
        for one in result["data"]
    ]
    table(["DELIVERY", "EVENT", "STATE", "ATTEMPTS", "URL", "ERROR"], rows, right=["ATTEMPTS"])


@app.command()
def deliveries(batch: Id, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the deliveries of a batch's end to its callback URL and webhooks.

    Example: roundhouse batch deliveries batch_1f2e
    """
    RESOURCE.call(url, as_json, "GET", batch, "deliveries", display=_show_deliveries)


@app.command()
def redeliver(batch: Id, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Deliver the event of a batch's end again.

    Example: roundhouse batch redeliver batch_1f2e
    """
    RESOURCE.call(url, as_json, "POST", batch, "redeliver", display=_show_deliveries)
