"""Files and batches in OpenAI's format."""

from collections.abc import Mapping
from typing import Any

from batches.output import OutputKind
from batches.records import BatchRecord, BatchState, FileRecord
from batches.service import OUTPUT_SECONDS

HOUR = 3600
OUTPUT_PURPOSE = "batch_output"
ENDED = {
    BatchState.FAILED: "failed_at",
    BatchState.COMPLETED: "completed_at",
    BatchState.CANCELLED: "cancelled_at",
    BatchState.EXPIRED: "expired_at",
}
"""Final states, with the field for the time when they were reached."""


def file_view(file: FileRecord) -> dict[str, Any]:
    view: dict[str, Any] = {
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": int(file.created),
        "filename": file.name,
        "purpose": file.purpose,
        "status": file.state.value,
    }
    if file.expires is not None:
        view["expires_at"] = int(file.expires)
    if file.details:
        view["status_details"] = file.details
    return view


def output_view(batch: BatchRecord, kind: OutputKind, size: int) -> dict[str, Any]:
    """View an output or error file, which is rendered from the batch's lines."""
    return {
        "id": output_id(batch, kind),
        "object": "file",
        "bytes": size,
        "created_at": int(batch.ended or batch.created),
        "expires_at": int((batch.ended or batch.created) + (batch.output_seconds or OUTPUT_SECONDS)),
        "filename": f"{batch.id}_{kind}.jsonl",
        "purpose": OUTPUT_PURPOSE,
        "status": "processed",
    }


def output_id(batch: BatchRecord, kind: OutputKind) -> str:
    return f"file-{batch.id.rpartition('_')[2]}-{kind}"


def batch_of_output(file_id: str) -> tuple[str, OutputKind] | None:
    """The batch and kind of an output file's id. None for the id of an uploaded file."""
    for kind in OutputKind:
        if file_id.startswith("file-") and file_id.endswith(f"-{kind}"):
            return f"batch_{file_id.removeprefix('file-').removesuffix(f'-{kind}')}", kind
    return None


def has_output(batch: BatchRecord, kind: OutputKind) -> bool:
    """Whether the file exists, which it does once the batch is final and if it has lines."""
    if not batch.state.is_final or batch.state is BatchState.FAILED:
        return False
    return bool(batch.counts.completed if kind is OutputKind.OUTPUT else failed_lines(batch))


def failed_lines(batch: BatchRecord) -> int:
    """The number of lines in the error file."""
    counts = batch.counts
    return counts.failed + counts.cancelled + counts.expired


def batch_view(batch: BatchRecord) -> dict[str, Any]:
    ended = None if batch.ended is None else int(batch.ended)
    times = {field: ended if batch.state is state else None for state, field in ENDED.items()}
    is_rendered = batch.state in (BatchState.COMPLETED, BatchState.EXPIRED)
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": _errors(batch),
        "input_file_id": batch.input_file,
        "completion_window": f"{batch.window // HOUR}h",
        "status": batch.state.value,
        **{
            f"{'error' if kind is OutputKind.ERRORS else 'output'}_file_id": output_id(batch, kind)
            if has_output(batch, kind)
            else None
            for kind in OutputKind
        },
        "created_at": int(batch.created),
        "in_progress_at": _whole(batch.started),
        "expires_at": int(batch.deadline),
        "finalizing_at": ended if is_rendered else None,
        "cancelling_at": _whole(batch.cancelling),
        **times,
        "request_counts": {
            "total": batch.counts.total,
            "completed": batch.counts.completed,
            "failed": failed_lines(batch),
        },
        "usage": _usage(batch),
        "metadata": dict(batch.metadata) or None,
        "roundhouse": details(batch),
    }


def details(batch: BatchRecord) -> dict[str, Any]:
    """Fields that OpenAI's object does not have."""
    fields: dict[str, Any] = {"priority": ("low", "normal", "high")[batch.priority]}
    if not batch.state.is_final:
        fields |= {"forecast": _forecast(batch), "late": batch.is_late}
    if batch.callback:
        fields["callback_url"] = batch.callback
    if batch.waits:
        fields |= {"waits": batch.waits, "waits_until": _whole(batch.waits_until)}
    if batch.names:
        fields["models"] = dict(batch.names)
    if batch.fault_count > len(batch.faults):
        fields["more_errors"] = batch.fault_count - len(batch.faults)
    return fields


def _errors(batch: BatchRecord) -> Mapping[str, Any] | None:
    if not batch.faults:
        return None
    rows = [
        {"code": fault.code, "line": fault.line, "message": fault.message, "param": fault.param}
        for fault in batch.faults
    ]
    return {"object": "list", "data": rows}


def _usage(batch: BatchRecord) -> Mapping[str, Any]:
    usage = batch.usage
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def _forecast(batch: BatchRecord) -> Mapping[str, int] | None:
    """The forecast. None until its models have been measured."""
    forecast = batch.forecast
    if forecast is None:
        return None
    return {name: int(getattr(forecast, name)) for name in ("early", "likely", "late", "made")}


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)
