"""Transcription and translation of recordings, as OpenAI's audio API.

The model is looked up as soon as its field has arrived: where it stands before the file, an unknown name is answered
without waiting for the upload. The engine reads the recording from a temporary file that lives as long as the request.
"""

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from models.messages import Segment, TranscriptInfo
from registry.errors import EngineFailed, RoundhouseError
from registry.recipes import definition as recipe
from runtime.gateway.core import Chosen, Gateway
from runtime.gateway.prefer import PREFERENCE
from runtime.http import errors as http_errors
from runtime.http.audio.fields import Options, Task, parse
from runtime.http.audio.formats import MEDIA_TYPES, delta, render, usage
from runtime.http.chat.progress import progress_stream
from runtime.http.errors import Dialect
from runtime.http.relay import Served, serving, transcript
from runtime.http.upload import Upload, receive
from runtime.http.working import Working, error_response
from runtime.slots.link import SlotCall


class AudioEndpoints:
    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    def routes(self) -> list[tuple[str, Any, list[str]]]:
        return [
            ("/v1/audio/transcriptions", self.transcriptions, ["POST"]),
            ("/v1/audio/translations", self.translations, ["POST"]),
        ]

    async def transcriptions(self, request: Request) -> Response:
        return Recording(self.gateway, request.url.path, "transcribe")

    async def translations(self, request: Request) -> Response:
        return Recording(self.gateway, request.url.path, "translate")


class Recording(Response):
    """One request with a recording. The upload is part of it, so that one `finally` removes the file in every case."""

    def __init__(self, gateway: Gateway, endpoint: str, task: Task) -> None:
        super().__init__()
        self._gateway, self._endpoint, self._task = gateway, endpoint, task
        self._chosen: Chosen | None = None

    async def __call__(self, scope: Scope, receive_: Receive, send: Send) -> None:
        settings = self._gateway.settings
        request = Request(scope, receive_)
        try:
            async with receive(request, settings.run_dir / "uploads", settings.max_audio, self._on_field) as upload:
                chosen = self._chosen or self._choose(None)
                options = parse(upload.fields, self._task)
                await Working(partial(self._work, chosen, options, upload))(scope, receive_, send)
        except ClientDisconnect:
            return
        except RoundhouseError as error:
            await error_response(error)(scope, receive_, send)

    def _on_field(self, name: str, value: str) -> None:
        if name == "model":
            self._chosen = self._choose(value)

    def _choose(self, name: str | None) -> Chosen:
        return self._gateway.choose(name, recipe.Task.TRANSCRIBE)

    async def _work(self, chosen: Chosen, options: Options, upload: Upload, send: Send) -> Response | None:
        wanted = options.request(str(upload.path), self._gateway.settings.max_audio_seconds)
        async with AsyncExitStack() as stack:
            if options.stream and PREFERENCE.get().progress and not chosen.entry.is_ready:
                send = await stack.enter_async_context(progress_stream(chosen.entry, send, Dialect.OPENAI))
            entered = serving(self._gateway, chosen, self._endpoint, lambda: wanted)
            served, call = await stack.enter_async_context(entered)
            if options.stream:
                await stream(served, call, send)
                return None
            info, segments = await _whole(served, call)
        return Response(
            render(options, info, segments), headers=served.headers(), media_type=MEDIA_TYPES[options.format]
        )


async def _whole(served: Served, call: SlotCall) -> tuple[TranscriptInfo, list[Segment]]:
    info: TranscriptInfo | None = None
    segments: list[Segment] = []
    async for event in transcript(served, call):
        if isinstance(event, TranscriptInfo):
            info = event
        else:
            segments.append(event)
    return _known(info), segments


def _known(info: TranscriptInfo | None) -> TranscriptInfo:
    if info is None:
        raise EngineFailed("The engine ended a transcription without telling how long the recording is.")
    return info


async def stream(served: Served, call: SlotCall, send: Send) -> None:
    """transcript.text.delta per segment, then transcript.text.done, whose text is all deltas put together.

    Headers wait for the first event, so that a broken file still gets its own status. An error after that is the
    last event.
    """
    info: TranscriptInfo | None = None
    said = ""
    open_ = False
    try:
        async for event in transcript(served, call):
            if not open_:
                await _open(send, served)
                open_ = True
            if isinstance(event, TranscriptInfo):
                info = event
                continue
            added = delta(said, event, info.language if info else "")
            if added:
                said += added
                await _event(send, {"type": "transcript.text.delta", "delta": added})
        duration = usage(_known(info))
        await _event(send, {"type": "transcript.text.done", "text": said, "usage": duration}, last=True)
    except RoundhouseError as error:
        if not open_:
            raise
        served.outcome = error.code
        await send({"type": "http.response.body", "body": http_errors.sse(error), "more_body": False})


async def _open(send: Send, served: Served) -> None:
    headers = {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
        **served.headers(),
    }
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": raw})


async def _event(send: Send, data: dict[str, Any], *, last: bool = False) -> None:
    body = b"data: " + msgspec.json.encode(data) + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": not last})
