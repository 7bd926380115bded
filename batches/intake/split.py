"""Turns a body with a list of requests into an input file, one line per request.

    {"requests": [{"custom_id": "a", "params": {…}}, …], "url": …}   →   {"custom_id":"a","method":"POST",…}\n…

The body is memory-mapped, and requests are views of it until they are written. So memory grows only with the number of
requests, and running out of it is reported as too many requests.
"""

import itertools
import mmap
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from batches.records import CUSTOM_ID_LETTERS
from registry.base.json import NOT_JSON, Values
from registry.errors import TooLarge

LIST = "requests"
REST_BYTES = 1 << 16
"""Most bytes of all other fields of the body, including their names."""
ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PLACE = re.compile(r"(.*) - at `\$\[(\d+)\]")
"""The part of msgspec's message that names a list item."""
_BYTE = re.compile(r"\(byte (\d+)\)$")
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[][{},]', re.DOTALL)
MOST_TOKENS = 5_000_000
"""Most strings, brackets and commas to scan for the request with the error: a few seconds."""


class SplitJob(msgspec.Struct, frozen=True, kw_only=True, tag="split"):
    """`form`: `messages` has custom_id and params, like Anthropic's; `requests` has body, and optionally custom_id.

    `urls`: allowed values of the body's `url`, which applies to all requests; for `messages` the url of all lines.
    """

    path: Path
    out: Path
    form: Literal["messages", "requests"]
    urls: tuple[str, ...]
    most: int
    line_bytes: int
    values: int
    seconds: float = 120.0


class SplitSummary(msgspec.Struct, frozen=True, tag="split"):
    """`rest`: the body without its requests. `fault`: what is wrong; then no file is written."""

    lines: int
    rest: msgspec.Raw = msgspec.Raw(b"{}")
    fault: str = ""
    param: str = ""


class _MessagesRequest(msgspec.Struct, forbid_unknown_fields=True):
    custom_id: str
    body: msgspec.Raw = msgspec.field(name="params")


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    body: msgspec.Raw
    custom_id: str | None = None


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Fault(Exception):
    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.message, self.param = message, param


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_KINDS = {"messages": list[_MessagesRequest], "requests": list[_Request]}


def split(job: SplitJob) -> SplitSummary:
    """Write the lines, and return what else the body contains. Raises OSError."""
    try:
        fields = _fields(job.path)
        requests = fields.pop(LIST, None)
        if sum(len(name.encode()) + memoryview(field).nbytes for name, field in fields.items()) > REST_BYTES:
            raise _Fault(f"The fields other than '{LIST}' have more than {REST_BYTES} bytes.")
        url = job.urls[0] if job.form == "messages" else _url(fields, job.urls)
        with job.out.open("wb") as out:
            lines = 0 if requests is None else _write(job, requests, url, out)
        return SplitSummary(lines, msgspec.Raw(msgspec.json.encode(fields)))
    except _Fault as fault:
        return SplitSummary(0, fault=fault.message, param=fault.param)
    except MemoryError:
        return SplitSummary(0, fault=_too_many(job), param=LIST)


def _fields(path: Path) -> dict[str, msgspec.Raw]:
    """Return the fields of a body, as views of it. Raises _Fault."""
    with path.open("rb") as file:
        body = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
    try:
        return _FIELDS.decode(body)
    except RecursionError:
        raise _Fault("The body is nested too deeply.") from None
    except msgspec.ValidationError as error:
        raise _Fault(f"The body is not a JSON object: {error}.") from None
    except NOT_JSON as error:
        match = _BYTE.search(str(error))
        where = _request_at(body, int(match[1]) if match else len(body))
        raise _Fault(f"{where or 'The body'} is not JSON: {error}.", where) from None


def _request_at(body: bytes | mmap.mmap, place: int) -> str:
    """Return the request that contains the byte at `place` of an invalid body. '' if none does."""
    depth = number = 0
    is_listed, field = False, b""
    for token in itertools.islice(_TOKEN.finditer(body, 0, place), MOST_TOKENS):
        if token[0] in (b"[", b"{"):
            depth += 1
            if depth == 2:
                is_listed, number = field == b'"requests"', 0
        elif token[0] in (b"]", b"}"):
            depth -= 1
        elif token[0] == b"," and depth == 2:
            number += 1
        elif depth == 1:
            field = token[0]
    return f"{LIST}.{number}" if is_listed and depth > 1 else ""


def _url(fields: Mapping[str, msgspec.Raw], urls: tuple[str, ...]) -> str:
    """Return the body's `url`. Raises _Fault."""
    with suppress(*NOT_JSON):  # including a number too large for a float
        if (url := msgspec.json.decode(fields.get("url", b"null"))) in urls:
            return str(url)
    raise _Fault(f"'url' must be one of {', '.join(urls)}.", "url")


def _write(job: SplitJob, listed: msgspec.Raw, url: str, out: BinaryIO) -> int:
    """Write a line for each request. Returns how many. Raises _Fault."""
    try:
        requests: Sequence[_MessagesRequest | _Request] = msgspec.json.decode(listed, type=_KINDS[job.form])
    except NOT_JSON as error:
        match = _PLACE.match(str(error))
        where, text = (f"{LIST}.{match[2]}", match[1]) if match else (LIST, str(error))
        raise _Fault(f"{where}: {text}.", where) from None
    if not requests:
        raise _Fault(f"'{LIST}' is empty: send at least one request.", LIST)
    if len(requests) > job.most:
        raise _Fault(_too_many(job), LIST)
    encoder, ids = msgspec.json.Encoder(), set[str]()
    for number, request in enumerate(requests):
        where = f"{LIST}.{number}"
        custom_id = str(number) if request.custom_id is None else request.custom_id
        if request.custom_id is None and custom_id in ids:
            raise _Fault(f"{where} needs a custom_id, because another request's is its number, '{number}'.", where)
        _check_id(job, custom_id, ids, f"{where}.custom_id")
        body = _body(job, bytes(request.body), where)
        out.write(encoder.encode(_Line(custom_id, "POST", url, msgspec.Raw(body))) + b"\n")
    return len(requests)


def _body(job: SplitJob, body: bytes, where: str) -> bytes:
    """Return a request's body on one line. Raises _Fault."""
    if len(body) > job.line_bytes:
        raise _Fault(f"{where} may have {job.line_bytes} bytes; this one has more.", where)
    if not body.startswith(b"{"):
        name = "params" if job.form == "messages" else "body"
        raise _Fault(f"{where}.{name}: it must be an object.", f"{where}.{name}")
    try:
        Values(job.values).add(body)
    except TooLarge:
        raise _Fault(f"{where}: a request may hold {job.values} lists, objects and strings.", where) from None
    return body.replace(b"\n", b" ").replace(b"\r", b" ")  # JSON has line ends only between values


def _check_id(job: SplitJob, text: str, ids: set[str], where: str) -> None:
    """Check an id. Raises _Fault if it is malformed or a duplicate."""
    if job.form == "messages" and not ANTHROPIC_ID.fullmatch(text):
        raise _Fault(f"{where}: it must have 1 to 64 letters, digits, hyphens or underscores.", where)
    if not 0 < len(text) <= CUSTOM_ID_LETTERS:
        raise _Fault(f"{where}: it must have 1 to {CUSTOM_ID_LETTERS} characters.", where)
    if "\0" in text:
        raise _Fault(f"{where}: it must not contain a NUL character.", where)
    if text in ids:
        raise _Fault(f"{where}: {text[:64]!r} is a duplicate.", where)
    ids.add(text)


def _too_many(job: SplitJob) -> str:
    return f"A batch may have {job.most} requests: send several batches."
