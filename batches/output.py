"""Output and error files, rendered from lines on each read.

No file is written when a batch ends, so none can be missing or incomplete after a crash.

| a line                  | OpenAI's files                                   | Anthropic's results |
|-------------------------|--------------------------------------------------|---------------------|
| ended, status below 400 | output: response                                 | succeeded           |
| ended, status from 400  | errors: response with the status, no error       | errored             |
| ended without a status  | errors: no response, error with the code         | errored             |
| cancelled               | errors: `batch_cancelled`                        | canceled            |
| expired                 | errors: `batch_expired`                          | expired             |
| waiting, running        | in neither                                       | not included        |
"""

from enum import StrEnum
from typing import Literal

import msgspec

from batches.records import Line, LineState
from registry.base.json import NOT_JSON

MESSAGES = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "This request was not executed, because its batch was cancelled.",
    "engine_died": "The model's engine died each time it ran this request.",
    "output_too_large": "The batch's answers exceed their space limit; this one was not stored.",
}
"""Messages of errors without an HTTP answer."""
OTHER_MESSAGE = "This request got no answer."


class OutputKind(StrEnum):
    OUTPUT = "output"
    ERRORS = "errors"


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Error(msgspec.Struct):
    code: str
    message: str


class _Details(msgspec.Struct, omit_defaults=True):
    """Details of a line's answer, in a field that OpenAI does not have."""

    model: str = ""
    adapter: str = ""
    attempts: int = 0


class _OutputLine(msgspec.Struct):
    id: str
    custom_id: str
    response: _Response | None
    error: _Error | None
    roundhouse: _Details


class _Result(msgspec.Struct, omit_defaults=True):
    type: Literal["succeeded", "errored", "canceled", "expired"]
    message: msgspec.Raw | None = None
    error: msgspec.Raw | None = None


class _ResultLine(msgspec.Struct):
    custom_id: str
    result: _Result


_ENCODER = msgspec.json.Encoder()
_RAW = msgspec.json.Decoder(msgspec.Raw)


def kind_of(line: Line) -> OutputKind | None:
    """Return the file that contains a line. None if the line has not ended."""
    if line.state in (LineState.WAITING, LineState.RUNNING):
        return None
    return OutputKind.OUTPUT if _is_success(line) else OutputKind.ERRORS


def render_line(line: Line) -> bytes:
    """Return an ended line as a line of OpenAI's output or error file, including the line end."""
    details = _Details(line.served, line.adapter, line.attempts)
    response, error = None, None
    if line.state is LineState.ENDED and line.status is not None:
        response = _Response(line.status, line.request, _body(line.result))
    else:
        code = _code(line)
        error = _Error(code, MESSAGES.get(code, OTHER_MESSAGE))
    id_ = f"batch_req_{line.batch.rpartition('_')[2]}{line.number:06x}"
    return _on_one_line(_OutputLine(id_, line.custom_id, response, error, details))


def render_result(line: Line) -> bytes:
    """Return an ended line as a line of Anthropic's results, including the line end."""
    match line.state:
        case LineState.CANCELLED:
            result = _Result("canceled")
        case LineState.EXPIRED:
            result = _Result("expired")
        case _ if _is_success(line):
            result = _Result("succeeded", message=_body(line.result))
        case _:
            result = _Result("errored", error=_anthropic_error(line))
    return _on_one_line(_ResultLine(line.custom_id, result))


def _on_one_line(line: _OutputLine | _ResultLine) -> bytes:
    """Return JSON with a line end. Characters that also end lines, for example for `splitlines`, are escaped."""
    data = _ENCODER.encode(line)
    for mark in "\x85\u2028\u2029":
        data = data.replace(mark.encode(), b"\\u%04x" % ord(mark))
    return data + b"\n"


def _is_success(line: Line) -> bool:
    return line.state is LineState.ENDED and line.status is not None and line.status < 400


def _code(line: Line) -> str:
    if line.state is LineState.EXPIRED:
        return "batch_expired"
    return "batch_cancelled" if line.state is LineState.CANCELLED else line.code or "no_answer"


def _body(result: bytes | None) -> msgspec.Raw:
    """Return an answer's body on one line. A body that is not JSON, such as a transcript, becomes a string."""
    data = result or b"null"
    try:
        _RAW.decode(data)
        return msgspec.Raw(msgspec.json.format(data, indent=-1) if b"\n" in data or b"\r" in data else data)
    except NOT_JSON:
        return msgspec.Raw(_ENCODER.encode(data.decode(errors="replace")))


def _anthropic_error(line: Line) -> msgspec.Raw:
    """Return the line's error, which is in Anthropic's format already, or make one."""
    if line.status is not None and line.result:
        return _body(line.result)
    message = MESSAGES.get(_code(line), OTHER_MESSAGE)
    return msgspec.Raw(_ENCODER.encode({"type": "error", "error": {"type": "api_error", "message": message}}))
