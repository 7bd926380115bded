"""A body with a list of requests becomes an input file, one line a request.

    {"requests": [{"custom_id": "a", "params": {…}}, …], "url": …}   →   {"custom_id":"a","method":"POST",…}\n…

The body is mapped, not read, and what a request holds is a view of it until it is written. So memory grows with the
number of requests only, and whoever sends more of them than fit gets the same answer as for too many.
"""

import itertools
import mmap
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from registry.base.json import NOT_JSON, Values
from registry.errors import TooLarge

LIST = "requests"
REST_BYTES = 1 << 16
"""All other fields of the body together."""
ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ID_LETTERS = 512
_PLACE = re.compile(r"(.*) - at `\$\[(\d+)\]")
"""The part of msgspec's message that names an item of a list."""
_BYTE = re.compile(r"\(byte (\d+)\)$")
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[][{},]', re.DOTALL)
MOST_TOKENS = 5_000_000
"""Texts, brackets and commas of a body that are looked through for the request with the error: a few seconds."""


class SplitJob(msgspec.Struct, frozen=True, kw_only=True, tag="split"):
    """`form`: `messages` has custom_id and params, as Anthropic's; `requests` has body, and custom_id or none.

    `urls`: what the body's `url` may be, where it has one for all requests; else the one of all lines.
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
    """`rest`: the body without its requests. `fault`: what is wrong with it, and then there is no file."""

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
    """Write the lines, and say what else the body holds. Raises OSError."""
    try:
        fields = _fields(job.path)
        listed = fields.pop(LIST, None)
        if sum(memoryview(field).nbytes for field in fields.values()) > REST_BYTES:
            raise _Fault(f"The fields beside '{LIST}' have more than {REST_BYTES} bytes.")
        url = job.urls[0] if job.form == "messages" else _url(fields, job.urls)
        with job.out.open("wb") as out:
            lines = 0 if listed is None else _write(job, listed, url, out)
        return SplitSummary(lines, msgspec.Raw(msgspec.json.encode(fields)))
    except _Fault as fault:
        return SplitSummary(0, fault=fault.message, param=fault.param)
    except MemoryError:
        return SplitSummary(0, fault=_too_many(job), param=LIST)


def _fields(path: Path) -> dict[str, msgspec.Raw]:
    """The fields of a body, as views of it. Raises _Fault."""
    with path.open("rb") as file:
        body = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
    try:
        return _FIELDS.decode(body)
    except RecursionError:
        raise _Fault("The body is nested too deeply.") from None
    except msgspec.ValidationError as error:
        raise _Fault(f"The body is not a JSON object: {error}.") from None
    except NOT_JSON as error:
        found = _BYTE.search(str(error))
        where = _request_at(body, int(found[1]) if found else len(body))
        raise _Fault(f"{where or 'The body'} is not JSON: {error}.", where) from None


def _request_at(body: bytes | mmap.mmap, place: int) -> str:
    """The request that a byte of a body with an error belongs to; empty where it is in none."""
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
    """The body's `url`. Raises _Fault."""
    with suppress(*NOT_JSON):  # also a number that no float holds
        if (url := msgspec.json.decode(fields.get("url", b"null"))) in urls:
            return str(url)
    raise _Fault(f"'url' is one of {', '.join(urls)}.", "url")


def _write(job: SplitJob, listed: msgspec.Raw, url: str, out: BinaryIO) -> int:
    """Write a line for each request. Returns how many. Raises _Fault."""
    try:
        requests: Sequence[_MessagesRequest | _Request] = msgspec.json.decode(listed, type=_KINDS[job.form])
    except NOT_JSON as error:
        found = _PLACE.match(str(error))
        where, text = (f"{LIST}.{found[2]}", found[1]) if found else (LIST, str(error))
        raise _Fault(f"{where}: {text}.", where) from None
    if not requests:
        raise _Fault(f"'{LIST}' is empty: send at least one request.", LIST)
    if len(requests) > job.most:
        raise _Fault(_too_many(job), LIST)
    encoder, ids = msgspec.json.Encoder(), set[str]()
    for number, request in enumerate(requests):
        where = f"{LIST}.{number}"
        custom_id = str(number) if request.custom_id is None else request.custom_id
        _check_id(job, custom_id, ids, f"{where}.custom_id")
        body = _body(job, bytes(request.body), where)
        out.write(encoder.encode(_Line(custom_id, "POST", url, msgspec.Raw(body))) + b"\n")
    return len(requests)


def _body(job: SplitJob, body: bytes, where: str) -> bytes:
    """A request's body on one line. Raises _Fault."""
    if len(body) > job.line_bytes:
        raise _Fault(f"{where} has more than the {job.line_bytes} bytes that it may have.", where)
    if not body.startswith(b"{"):
        name = "params" if job.form == "messages" else "body"
        raise _Fault(f"{where}.{name}: it must be an object.", f"{where}.{name}")
    try:
        Values(job.values).add(body)
    except TooLarge:
        raise _Fault(f"{where}: a request may hold {job.values} lists, objects and texts.", where) from None
    return body.replace(b"\n", b" ").replace(b"\r", b" ")  # JSON has line ends between values only


def _check_id(job: SplitJob, text: str, ids: set[str], where: str) -> None:
    """Raises _Fault for an id that is malformed, or among those before."""
    if job.form == "messages" and not ANTHROPIC_ID.fullmatch(text):
        raise _Fault(f"{where}: it must have 1 to 64 letters, digits, hyphens or underscores.", where)
    if not 0 < len(text) <= ID_LETTERS:
        raise _Fault(f"{where}: it must have 1 to {ID_LETTERS} letters.", where)
    if "\0" in text:
        raise _Fault(f"{where}: it must not hold a NUL character.", where)
    if text in ids:
        raise _Fault(f"{where}: {text[:64]!r} is there twice.", where)
    ids.add(text)


def _too_many(job: SplitJob) -> str:
    return f"A batch may have {job.most} requests: send several batches."
