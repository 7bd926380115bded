"""Contents of files as answers, read or rendered in parts."""

import asyncio
from collections.abc import AsyncIterator, Callable

from fastapi.responses import StreamingResponse

from batches.output import OutputKind, kind_of, render_line
from batches.records import BatchRecord, FileRecord, Line
from batches.service import BatchService

PAGE_LINES = 100
"""Lines with their results that are in memory at a time."""
JSONL = "application/jsonl"


def file_answer(service: BatchService, file: FileRecord) -> StreamingResponse:
    """The bytes of an uploaded file. Its name is the client's, and stands in no header."""
    kind = JSONL if file.name.endswith(".jsonl") else "application/octet-stream"
    headers = {"content-length": str(file.size), "x-content-type-options": "nosniff"}
    return StreamingResponse(_stored(service, file), headers=headers, media_type=kind)


async def _stored(service: BatchService, file: FileRecord) -> AsyncIterator[bytes]:
    chunks = service.files.content().chunks(file.id, 0, file.size)
    while (data := await asyncio.to_thread(next, chunks, None)) is not None:
        yield data


def rendered_answer(
    service: BatchService, batch: BatchRecord, render: Callable[[Line], bytes | None], media_type: str = JSONL
) -> StreamingResponse:
    """Lines of a batch in the input's order."""
    return StreamingResponse(rendered(service, batch, render), media_type=media_type)


async def rendered(
    service: BatchService, batch: BatchRecord, render: Callable[[Line], bytes | None]
) -> AsyncIterator[bytes]:
    """Text of the lines that `render` gives one for."""
    after = -1
    while True:
        lines = await service.store.read(
            lambda tables, after=after: tables.lines.results(batch.id, after, PAGE_LINES)  # type: ignore[misc]
        )
        if not lines:
            return
        after = lines[-1].number
        if data := await asyncio.to_thread(lambda lines=lines: b"".join(filter(None, map(render, lines)))):  # type: ignore[misc]
            yield data


def of_kind(kind: OutputKind) -> Callable[[Line], bytes | None]:
    """Renders the lines of one of OpenAI's two files."""

    def render(line: Line) -> bytes | None:
        return render_line(line) if kind_of(line) is kind else None

    return render
