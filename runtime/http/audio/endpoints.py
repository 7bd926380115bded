"""Transcription and translation of recordings, as OpenAI's audio API.

The model is looked up as soon as its field arrives, so an unknown name before the file is answered without waiting for
the upload. The engine reads the recording from a temporary file that exists as long as the request.
"""

import os
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial

import msgspec
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from models import sse
from models.messages import Event, ResponseEnd, Segment, TranscribeRequest, TranscriptInfo, Usage
from registry.errors import EngineFailed, RoundhouseError
from registry.recipes import definition as recipe
from runtime.gateway.core import Gateway
from runtime.gateway.names import ModelRef
from runtime.gateway.request import ClientMessage, Request, UploadedForm
from runtime.gateway.target import Target
from runtime.http import hints
from runtime.http.audio.fields import Task, TranscriptionOptions, parse
from runtime.http.audio.formats import FORM, MEDIA_TYPES, TRANSCRIPT, delta, render, transcript_language
from runtime.http.bodies import parse_object
from runtime.http.dialect import EVENT_STREAM, NO_BUFFERING, Endpoint, Head, ParsedRequest, Parts, whole_answer
from runtime.http.errors import Dialect, error_response
from runtime.http.middleware import context_of, gateway_of
from runtime.http.route import LOAD_STARTED, RouteGroup
from runtime.http.schema import INFERENCE, JSON, STRING
from runtime.http.sending import Answer
from runtime.http.serving import serve_parsed
from runtime.http.upload import receive
from tenants.caller import Scope as KeyScope

TASKS: dict[str, Task] = {"/v1/audio/transcriptions": "transcribe", "/v1/audio/translations": "translate"}
STREAM_HEAD = Head(200, f"{EVENT_STREAM}; charset=utf-8", NO_BUFFERING)


def _parsed(options: TranscriptionOptions, request: TranscribeRequest, model_ref: ModelRef) -> ParsedRequest:
    def rendered(_: Target, events: AsyncIterator[Event]) -> Parts:
        return _stream(events, options.task) if options.stream else _whole(events, options)

    return ParsedRequest(
        model_ref, lambda _: [request], rendered, Dialect.OPENAI, options.stream, left_out=options.left_out
    )


async def _whole(events: AsyncIterator[Event], options: TranscriptionOptions) -> Parts:
    info: TranscriptInfo | None = None
    segments, used = list[Segment](), Usage()
    async for event in events:
        if isinstance(event, TranscriptInfo):
            info = event
        elif isinstance(event, Segment):
            segments.append(event)
        elif isinstance(event, ResponseEnd):
            used = event.usage
    text = render(options, _require_info(info), segments, used)
    async for part in whole_answer(text, MEDIA_TYPES[options.format]):
        yield part


async def _stream(events: AsyncIterator[Event], task: Task) -> Parts:
    """A delta per segment, then transcript.text.done with the complete text.

    The head waits for the first event, so that an unreadable file still gets its own status. Has no usage, since
    OpenAI's events only know usage in tokens.
    """
    info: TranscriptInfo | None = None
    text, opened = "", False
    async for event in events:
        if not isinstance(event, TranscriptInfo | Segment):
            continue
        if not opened:
            yield STREAM_HEAD
            opened = True
        if isinstance(event, TranscriptInfo):
            info = event
            continue
        added = delta(text, event, transcript_language(task, info) if info else "")
        if added:
            text += added
            yield sse.event({"type": "transcript.text.delta", "delta": added})
    _require_info(info)
    yield sse.event({"type": "transcript.text.done", "text": text})


def _require_info(info: TranscriptInfo | None) -> TranscriptInfo:
    if info is None:
        raise EngineFailed("The engine ended a transcription without telling how long the recording is.")
    return info


_route = partial(
    RouteGroup("Audio"),
    scope=KeyScope.INFER,
    is_inference=True,
    answer={
        JSON: TRANSCRIPT,
        **dict.fromkeys(("text/plain", "application/x-subrip", "text/vtt", EVENT_STREAM), STRING),
    },
    body={"multipart/form-data": FORM},
    errors=INFERENCE,
    parameters=("Prefer", "Progress"),
    others=LOAD_STARTED,
)


@_route("POST", "/v1/audio/transcriptions", id="createTranscription", summary="Transcription (OpenAI)")
@_route("POST", "/v1/audio/translations", id="createTranslation", summary="Translation into English (OpenAI)")
async def handle(request: HttpRequest) -> Response:
    return RecordingResponse(request.url.path)


class RecordingResponse(Response):
    """A response that keeps the request's upload, so that one `finally` removes the file."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    async def __call__(self, scope: Scope, receive_: Receive, send: Send) -> None:
        gateway, context = gateway_of(scope), context_of(scope)
        with gateway.record(context, self._path) as request:
            try:
                await self._answer(gateway, request, scope, receive_, send)
            except ClientDisconnect:
                request.client_disconnected()
            except RoundhouseError as error:
                request.failed(error)
                await error_response(error)(scope, receive_, send)

    async def _answer(self, gateway: Gateway, request: Request, scope: Scope, receive_: Receive, send: Send) -> None:
        settings, context = gateway.services.settings, request.context

        def on_field(name: str, value: str) -> None:
            if name == "model":
                gateway.check_name(_model_ref(value), context)

        http_request, folder = HttpRequest(scope, receive_), settings.run_dir / "uploads"
        async with receive(http_request, gateway.services.uploads, folder, settings.max_audio, on_field) as upload:
            request.received()
            request.context = hints.with_size(request.context, upload.path.stat().st_size)
            model_ref = _model_ref(next(iter(upload.fields.get("model", ())), None))
            gateway.check_name(model_ref, context)  # report a missing or unknown name before any other fault
            options = parse(upload.fields, TASKS[self._path])
            form = UploadedForm(upload.fields, upload.path, upload.name)
            request.message = ClientMessage(scope["query_string"].decode("latin-1"), form)
            gateway.start_transcript(request)  # only the answer is text
            parsed = _parsed(options, options.request(str(upload.path), settings.max_audio_seconds), model_ref)
            await Answer(serve_parsed(gateway, request, parsed))(scope, receive_, send)


def json_endpoint(path: str, recording: Callable[[object], str], max_seconds: float, name: str = "file") -> Endpoint:
    """An endpoint that takes the form's fields as JSON.

    recording: returns the path of the recording for the value of the field `name`. Raises RoundhouseError.
    """

    def parse_json(body: bytes, _query: Mapping[str, str]) -> ParsedRequest:
        data = parse_object(body)
        file = recording(data.pop(name, None))
        model = data.get("model")
        fields = {name: [_text(one) for one in _as_list(value)] for name, value in data.items() if value is not None}
        options = parse(fields, TASKS[path])
        return _parsed(options, options.request(file, max_seconds), ModelRef(recipe.Task.TRANSCRIBE, model))

    return Endpoint(path, parse_json, Dialect.OPENAI)


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _text(value: object) -> str:
    """The text of a form field."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


FORM_ENDPOINTS = tuple(json_endpoint(path, lambda _: os.devnull, 0.0) for path in TASKS)
"""Endpoints for explaining a router's choice without a recording."""


def _model_ref(name: str | None) -> ModelRef:
    return ModelRef(recipe.Task.TRANSCRIBE, name)
