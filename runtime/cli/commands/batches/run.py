"""`roundhouse batch run`: from an input file to its answers, despite interruptions on either side."""

import hashlib
import json
import secrets
from pathlib import Path
from typing import Annotated, Any

import typer

from registry.base.json import read_object
from runtime.cli.commands.batches.files import ErrorFile, check, errors_path, fault_lines, fetch, upload
from runtime.cli.commands.batches.waiting import BATCHES, follow
from runtime.cli.failures import RefusedError
from runtime.cli.options import DEFAULT_URL, AsJson, Url
from runtime.cli.output import emit, note
from runtime.cli.remote.client import Client, part

LINES, LINE_BYTES, VALUES = 50_000, 4 << 20, 65_536
"""The default bounds of a server, which checks the file again by its own."""
SERVERS = frozenset(("line_too_large",))
"""Faults that the server decides on, as it may have larger bounds (--max-json, --bounds-factor)."""


def run(
    input_: Annotated[
        Path,
        typer.Argument(metavar="INPUT", help="JSONL in OpenAI's format: one request per line.", show_default=False),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File for the answers, in the input's order.", show_default=False)
    ],
    errors: ErrorFile = None,
    window: Annotated[str, typer.Option(help="Time for the whole batch: 1h to 168h.")] = "24h",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Run a file of requests and wait for the answers. Ctrl-C leaves the batch running; run it again to continue.

    Examples: roundhouse batch run requests.jsonl -o answers.jsonl;
    roundhouse batch run requests.jsonl -o answers.jsonl --window 4h
    """
    endpoint = _check_input(input_)
    errors = errors or errors_path(output)
    if not output.parent.is_dir():
        raise RefusedError(f"There is no folder {output.parent}.")
    mark = _Mark(output.with_name(f".{output.name}.batch"), input_, window)
    with Client(url) as client:
        batch_id = mark.batch_id(client)
        if batch_id is None:
            file = upload(client, input_, "batch", key=mark.key, drawn=not as_json)
            body = {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": window}
            batch_id = str(client.call("POST", BATCHES, json=body, headers={"Idempotency-Key": mark.key})["id"])
            mark.write(batch_id)
            note(f"batch {batch_id}")
        else:
            note(f"continuing batch {batch_id}")
        try:
            batch = follow(client, batch_id, drawn=not as_json)
        except KeyboardInterrupt:
            note(
                f"\nBatch {batch_id} continues without this command. Run it again to wait for the answers, or stop the "
                f"batch with: roundhouse batch cancel {batch_id}."
            )
            raise typer.Exit(130) from None
        failures = fetch(client, batch, output, errors)
        mark.remove()
    check(batch, failures, errors)
    if as_json:
        emit(batch)
    else:
        count = batch["request_counts"]["completed"]
        print(f"{count} answers are in {output}" if count != 1 else f"1 answer is in {output}")


def _check_input(path: Path) -> str:
    """Return the endpoint of the lines. Raises RefusedError with their faults."""
    from batches.check_process import InputJob, InputSummary
    from batches.check_process import check as check_lines
    from batches.records import URLS

    if not path.is_file():
        raise RefusedError(f"There is no file {path}.")
    job = InputJob(path=path, urls=URLS, url=_first_url(path), most_lines=LINES, line_bytes=LINE_BYTES, values=VALUES)
    for answer in check_lines(job):
        if isinstance(answer, InputSummary) and any(fault.code not in SERVERS for fault in answer.faults):
            faults = [(fault.line, fault.code, fault.message) for fault in answer.faults]
            raise RefusedError(
                f"{path} has faults. Nothing was sent.",
                faults=fault_lines(faults, answer.fault_count),
                code=answer.faults[0].code,
            )
    return str(job.url)


def _first_url(path: Path) -> str | None:
    """Return the url of the first line; None if it has none, which the check reports."""
    with path.open("rb") as file:
        line = next((line for line in file if line.strip()), b"")
    try:
        request: Any = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    url = request.get("url") if isinstance(request, dict) else None
    return url if isinstance(url, str) else None


class _Mark:
    """A file next to the output with the id of its batch, so that a second run continues that batch.

    It is written before anything is sent, with an idempotency key, so that repeated calls create one file and one
    batch.
    """

    def __init__(self, path: Path, input_: Path, window: str) -> None:
        with input_.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._path, self._sent = path, f"{digest} {window}"
        earlier = read_object(path)
        is_same = earlier.get("input") == self._sent
        self.key = str(earlier["key"]) if is_same and "key" in earlier else secrets.token_hex(16)
        self._batch = earlier.get("batch") if is_same else None
        self.write(self._batch)

    def batch_id(self, client: Client) -> str | None:
        """Return the batch of an earlier run, if the server still has it."""
        if not isinstance(self._batch, str):
            return None
        try:
            return str(client.get(f"{BATCHES}/{part(self._batch)}")["id"])
        except RefusedError as error:
            if error.status != 404:
                raise
            self.key = secrets.token_hex(16)
            self.write(None)
            return None

    def write(self, batch: str | None) -> None:
        self._path.write_text(json.dumps({"input": self._sent, "key": self.key, "batch": batch}), encoding="utf-8")

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
