"""Answers of a batch that has ended, as files, and its failures by code."""

import json
from collections import Counter
from pathlib import Path

from runtime.cli.commands.batches.transfer import download
from runtime.cli.failures import RefusedError
from runtime.cli.output import note
from runtime.cli.remote.client import Client, Json

LISTED_FAULTS = 10


def errors_path(output: Path) -> Path:
    """The path of the error file, beside the output: out.jsonl, out.errors.jsonl."""
    return output.with_name(f"{output.stem}.errors{output.suffix or '.jsonl'}")


def fetch(client: Client, batch: Json, output: Path, errors: Path) -> Counter[str]:
    """Write both files, where the batch has them. Returns how many lines failed, by code."""
    if batch["output_file_id"] is not None:
        download(client, batch["output_file_id"], output)
    else:
        output.write_bytes(b"")
    if batch["error_file_id"] is None:
        errors.unlink(missing_ok=True)  # of an earlier batch with the same output
        return Counter()
    download(client, batch["error_file_id"], errors)
    with errors.open(encoding="utf-8") as lines:
        return Counter(_code(json.loads(line)) for line in lines)


def _code(line: Json) -> str:
    """The error's own word for what is wrong, else its status."""
    if line.get("error"):
        return str(line["error"]["code"])
    response = line["response"]
    body = response.get("body")
    error = body.get("error") if isinstance(body, dict) else None
    details = error if isinstance(error, dict) else {}
    return str(details.get("code") or details.get("type") or response["status_code"])


def check(batch: Json, failures: Counter[str], errors: Path) -> None:
    """Raise RefusedError for a batch without all of its answers, after a table of the reasons."""
    counts = batch["request_counts"]
    if batch["status"] == "failed":
        raise RefusedError(
            f"Batch {batch['id']} failed: its file has faults. Correct them, and run it again.",
            faults=fault_lines(batch),
            document=batch,
        )
    if failures:
        note(f"{counts['failed']} of {counts['total']} lines failed; they are in {errors}:")
        for code, number in failures.most_common():
            note(f"  {number:>6}  {code}")
    if failures or batch["status"] != "completed":
        raise RefusedError(
            f"Batch {batch['id']} is {batch['status']}: {counts['completed']} of {counts['total']} lines succeeded.",
            document=batch,
        )


def fault_lines(batch: Json) -> list[str]:
    """The first faults of a batch's file, one a line."""
    data = (batch.get("errors") or {}).get("data", [])
    lines = [f"{where(fault)}{fault['code']}: {fault['message']}" for fault in data[:LISTED_FAULTS]]
    more = len(data) - LISTED_FAULTS
    return [*lines, *([f"and {more} more"] if more > 0 else [])]


def where(fault: Json) -> str:
    return "" if fault["line"] is None else f"line {fault['line']}: "
