"""A stream that starts before its model is there: SSE comments tell the progress of the load."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Message, Send

from registry.errors import RoundhouseError
from runtime.http import errors as http_errors
from runtime.http.errors import Dialect
from runtime.residency.entry import ModelEntry

EVERY_SECONDS = 0.5


@asynccontextmanager
async def progress_stream(entry: ModelEntry, send: Send, dialect: Dialect) -> AsyncIterator[Send]:
    """Open an SSE stream at once; gives the `send` through which the answer goes on in it.

    Until the answer's first message a comment (a line that clients skip) tells phase and percent twice a second. The
    status line has left, so an error becomes the stream's last event.
    """
    head = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    comments = asyncio.create_task(_comments(entry, send))
    failed = False

    async def stop() -> None:
        comments.cancel()
        await asyncio.wait({comments})

    async def answer(message: Message) -> None:
        nonlocal failed
        if not comments.done():
            await stop()
        if message["type"] == "http.response.start":
            failed = message["status"] >= 400
            return
        body = message.get("body", b"")
        if body and failed:  # an error body instead of a stream: it becomes an event
            body = b"data: " + body + b"\n\n"
        await send({**message, "body": body})

    try:
        yield answer
    except RoundhouseError as error:
        await stop()
        await send({"type": "http.response.body", "body": http_errors.sse(error, dialect), "more_body": False})
    finally:
        await stop()


async def _comments(entry: ModelEntry, send: Send) -> None:
    while True:
        progress = entry.progress
        ended = (entry.state.value, float(entry.is_ready))
        phase, fraction = (progress.phase, progress.fraction) if progress else ended
        text = f": {entry.id} {phase} {fraction:.0%}\n\n"
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        await asyncio.sleep(EVERY_SECONDS)
