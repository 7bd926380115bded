"""Answers with the contents of files, read or rendered in parts."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping

from fastapi.responses import StreamingResponse

from batches.output import OutputKind, kind_of, render_line
from batches.records import BatchRecord, FileRecord, Line
from batches.service import BatchService

PAGE_LINES, PAGE_BYTES = 100, 1 << 20
"""Most lines, and bytes of their results, in memory at a time while the client reads."""
JSONL = "application/jsonl"
_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})", re.ASCII)


def file_answer(service: BatchService, file: FileRecord, part: str) -> StreamingResponse:
    """The bytes of an uploaded file, or a part of them. No header has its name, which is the client's."""
    kind = JSONL if file.name.endswith(".jsonl") else "application/octet-stream"
    chosen = byte_range(part, file.size)
    start, end = chosen or (0, file.size)
    return _answer(_stored(service, file, start, end), kind, file.size, chosen, {"content-length": str(end - start)})


async def _stored(service: BatchService, file: FileRecord, start: int, end: int) -> AsyncIterator[bytes]:
    chunks = service.files.content().chunks(file.id, start, end)
    while (data := await asyncio.to_thread(next, chunks, None)) is not None:
        yield data


def byte_range(header: str, size: int) -> tuple[int, int] | None:
    """Start and end of a `Range` header with one part. None means all bytes, also for an unsatisfiable header."""
    match = _RANGE.fullmatch(header)
    if match is None or match.group() == "bytes=-":
        return None
    first, last = match.groups()
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    return (start, end) if start < end else None


def rendered_answer(
    service: BatchService,
    batch: BatchRecord,
    render: Callable[[Line], bytes | None],
    media_type: str = JSONL,
) -> StreamingResponse:
    """The lines of a batch in the order of its input."""
    return _answer(rendered(service, batch, render), media_type, 0, None, {})


async def output_answer(service: BatchService, batch: BatchRecord, kind: OutputKind, part: str) -> StreamingResponse:
    """An output file, or a part of its bytes."""
    if not part:
        return rendered_answer(service, batch, of_kind(kind))
    size = await output_size(service, batch, kind)
    lines, chosen = rendered(service, batch, of_kind(kind)), byte_range(part, size)
    return _answer(lines if chosen is None else _cut(lines, *chosen), JSONL, size, chosen, {})


async def output_size(service: BatchService, batch: BatchRecord, kind: OutputKind) -> int:
    """The size of an output file, which is remembered once the batch has ended: then it no longer changes."""
    if (known := service.output_sizes.get((batch.id, kind))) is not None:
        return known
    size = sum([len(data) async for data in rendered(service, batch, of_kind(kind))])
    if batch.state.is_final:
        service.output_sizes[batch.id, kind] = size
    return size


def _answer(
    data: AsyncIterator[bytes], kind: str, size: int, part: tuple[int, int] | None, headers: Mapping[str, str]
) -> StreamingResponse:
    headers = {**headers, "accept-ranges": "bytes", "x-content-type-options": "nosniff"}
    if part is not None:
        headers["content-range"] = f"bytes {part[0]}-{part[1] - 1}/{size}"
    return StreamingResponse(data, 200 if part is None else 206, headers, kind)


async def _cut(parts: AsyncIterator[bytes], start: int, end: int) -> AsyncIterator[bytes]:
    """The bytes from `start` to `end`, exclusive."""
    place = 0
    async for data in parts:
        piece = data[max(0, start - place) : max(0, end - place)]
        place += len(data)
        if piece:
            yield piece
        if place >= end:
            return


async def rendered(
    service: BatchService, batch: BatchRecord, render: Callable[[Line], bytes | None]
) -> AsyncIterator[bytes]:
    """The text of the lines for which `render` returns any."""
    after = -1
    while True:
        lines = await service.store.read(
            lambda tables, after=after: tables.lines.results(batch.id, after, PAGE_LINES, PAGE_BYTES),  # type: ignore[misc]
            batch.team,
        )
        if not lines:
            return
        after = lines[-1].number
        if data := await asyncio.to_thread(lambda lines=lines: b"".join(filter(None, map(render, lines)))):  # type: ignore[misc]
            yield data


def of_kind(kind: OutputKind) -> Callable[[Line], bytes | None]:
    """Return a function that renders the lines of one of OpenAI's two files."""

    def render(line: Line) -> bytes | None:
        return render_line(line) if kind_of(line) is kind else None

    return render
