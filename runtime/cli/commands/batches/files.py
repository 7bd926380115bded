"""`roundhouse files`: uploaded files."""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Annotated

import typer

from runtime.cli.failures import RefusedError
from runtime.cli.options import DEFAULT_URL, AsJson, Output, Url
from runtime.cli.output import ago, emit, note, pairs, show, size, table
from runtime.cli.remote.client import Client, Json, part
from runtime.cli.remote.progress import bar
from runtime.cli.remote.resource import Resource

FILES = "/v1/files"


def upload(client: Client, path: Path, purpose: str, *, key: str | None = None, drawn: bool = True) -> Json:
    """Upload a file. key: makes the call safe to repeat. Raises RefusedError or ServerError."""
    if not path.is_file():
        raise RefusedError(f"There is no file {path}.")
    headers = {} if key is None else {"Idempotency-Key": key}
    with bar(drawn) as progress_bar, progress_bar.open(path) as content:
        return client.call(
            "POST", FILES, data={"purpose": purpose}, files={"file": (path.name, content)}, headers=headers
        )


def download(client: Client, file_id: str, to: Path | None) -> None:
    """Write a file's content to a path, completely or not at all; to standard output if None."""
    with client.stream("GET", f"{FILES}/{part(file_id)}/content") as response, _output(to) as output:
        for data in response.iter_bytes():
            output.write(data)


@contextmanager
def _output(to: Path | None) -> Iterator[IO[bytes]]:
    if to is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with NamedTemporaryFile(dir=to.parent, prefix=f".{to.name}-", delete=False) as half:
        try:
            yield half
            half.flush()
            os.fsync(half.fileno())
            os.replace(half.name, to)
        except BaseException:
            Path(half.name).unlink(missing_ok=True)
            raise


ErrorFile = Annotated[
    Path | None, typer.Option(help="File for failed lines.", show_default="next to the output: out.errors.jsonl")
]
Id = Annotated[str, typer.Argument(metavar="FILE", help="Id of a file.", show_default=False)]
app = typer.Typer(help="Files on the server: inputs and outputs of batches.", no_args_is_help=True)


def _show(file: Json) -> None:
    pairs(
        [
            ("file", file["id"]),
            ("name", file["filename"]),
            ("size", size(file["bytes"])),
            ("purpose", file["purpose"]),
            ("status", file["status"]),
            *([("fault", file["status_details"])] if "status_details" in file else []),
        ]
    )


RESOURCE = Resource(FILES, _show)


@app.command("upload")
def upload_(
    path: Annotated[Path, typer.Argument(help="A file on this machine.", show_default=False)],
    purpose: Annotated[str, typer.Option(help="batch, user_data or evals.")] = "batch",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Upload a file. The input of a batch is checked; its status becomes processed or error.

    Example: roundhouse files upload requests.jsonl
    """
    with Client(url) as client:
        file = upload(client, path, purpose, drawn=not as_json)
    show(file, as_json, _show)


@app.command("list")
def list_(
    purpose: Annotated[str | None, typer.Option(help="Only files of this purpose.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Newest files to list.")] = 100,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List uploaded files, newest first.

    Example: roundhouse files list --purpose batch
    """
    RESOURCE.list(url, as_json, _print_list, purpose=purpose, limit=limit)


def _print_list(result: Json) -> None:
    rows = [
        [file["id"], file["filename"], size(file["bytes"]), file["purpose"], file["status"], ago(file["created_at"])]
        for file in result["data"]
    ]
    table(["FILE", "NAME", "SIZE", "PURPOSE", "STATUS", "CREATED"], rows, right=["SIZE"])


@app.command()
def get(file: Id, output: Output = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Download the content of a file. With --json but without --output, show its metadata instead.

    Example: roundhouse files get file-1f2e -o input.jsonl
    """
    with Client(url) as client:
        view = client.get(RESOURCE.at(file))
        if output is not None or not as_json:
            download(client, file, output)
    if as_json:
        emit(view)
    elif output is not None:
        print(f"{file}: written to {output}")


@app.command()
def delete(file: Id, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a file. A running batch keeps its input until it has ended.

    Example: roundhouse files delete file-1f2e
    """
    RESOURCE.call(url, as_json, "DELETE", file, display=lambda view: print(f"{view['id']}: deleted"))


LISTED_FAULTS = 10


def errors_path(output: Path) -> Path:
    """Return the path of the error file next to the output: out.errors.jsonl for out.jsonl."""
    return output.with_name(f"{output.stem}.errors{output.suffix or '.jsonl'}")


def fetch(client: Client, batch: Json, output: Path | None, errors: Path | None) -> Counter[str]:
    """Write the output and error files that have a path. Returns the number of failed lines by code, if it read them.

    A failed batch, whose lines did not run, leaves the files as they are.
    """
    if batch["status"] == "failed":
        return Counter()
    if output is not None:
        if batch["output_file_id"] is not None:
            download(client, batch["output_file_id"], output)
        else:
            output.write_bytes(b"")
    if errors is None:
        return Counter()
    if batch["error_file_id"] is None:
        errors.unlink(missing_ok=True)  # from an earlier batch with the same output
        return Counter()
    download(client, batch["error_file_id"], errors)
    with errors.open(encoding="utf-8") as lines:
        return Counter(_code(json.loads(line)) for line in lines)


def _code(line: Json) -> str:
    """Return the error's code or type, or its status if it has neither."""
    if line.get("error"):
        return str(line["error"]["code"])
    response = line["response"]
    body = response.get("body")
    error = body.get("error") if isinstance(body, dict) else None
    details = error if isinstance(error, dict) else {}
    return str(details.get("code") or details.get("type") or response["status_code"])


def check(batch: Json, failures: Counter[str], errors: Path | None) -> None:
    """Raise RefusedError for a batch without all of its answers, after printing the reasons that `fetch` returned."""
    counts = batch["request_counts"]
    if batch["status"] == "failed":
        raise RefusedError(
            f"Batch {batch['id']} failed because its file has faults. Correct them and run it again.",
            faults=batch_faults(batch),
            document=batch,
        )
    if failures:
        note(f"{counts['failed']} of {counts['total']} lines failed; they are in {errors}:")
        for code, number in failures.most_common():
            note(f"  {number:>6}  {code}")
    if counts["failed"] or batch["status"] != "completed":
        hint = " To see why lines failed, add --errors FILE." if counts["failed"] and errors is None else ""
        raise RefusedError(
            f"Batch {batch['id']} is {batch['status']}: {counts['completed']} of {counts['total']} lines succeeded."
            f"{hint}",
            document=batch,
        )


def batch_faults(batch: Json) -> list[str]:
    """Return the first faults of a batch's file, one per line."""
    faults = (batch.get("errors") or {}).get("data", [])
    return fault_lines([(fault["line"], fault["code"], fault["message"]) for fault in faults], len(faults))


def fault_lines(faults: Sequence[tuple[int | None, str, str]], count: int) -> list[str]:
    """Format the first of `count` faults, each with the number of its line, code and message."""
    lines = [
        f"{'' if number is None else f'line {number}: '}{code}: {message}"
        for number, code, message in faults[:LISTED_FAULTS]
    ]
    return [*lines, *([f"and {count - len(lines)} more"] if count > len(lines) else [])]
