"""A body with a list of requests becomes an input file: one line a request, read from the disk piece by piece.

    {"requests": [{"custom_id": "a", "params": {…}}, …], "url": …}   →   {"custom_id":"a","method":"POST",…}\n…

The brackets, commas and colons outside texts are found by their places; what stands between them is then decoded on its
own. So no more than one request is in memory, and all of it is JSON in the end.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from registry.base.json import NOT_JSON, Values
from registry.errors import TooLarge

LIST = "requests"
READ_BYTES = 1 << 20
REST_BYTES = 1 << 16
"""All other fields of the body together."""
ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ID_LETTERS = 512
_MARKS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},:]', re.DOTALL)
"""A whole text; a quote whose text is not all there; a mark."""
_OPEN, _CLOSE = b"[{", b"]}"


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
    params: msgspec.Raw


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


def split(job: SplitJob) -> SplitSummary:
    """Write the lines, and say what else the body holds. Raises OSError."""
    try:
        url = job.urls[0] if job.form == "messages" else _url(job)
        with job.path.open("rb", buffering=0) as body, job.out.open("wb", buffering=READ_BYTES) as out:
            return _Splitter(job, body, out, url).run()
    except _Fault as fault:
        return SplitSummary(0, fault=fault.message, param=fault.param)


def _url(job: SplitJob) -> str:
    """The body's `url`, which may come after its requests. Raises _Fault."""
    with job.path.open("rb", buffering=0) as body:
        rest = msgspec.json.decode(_Splitter(job, body, None, "").run().rest)
    if rest.get("url") not in job.urls:
        raise _Fault(f"'url' is one of {', '.join(job.urls)}.", "url")
    return str(rest["url"])


class _Splitter:
    """out: None to look at the other fields only."""

    def __init__(self, job: SplitJob, body: BinaryIO, out: BinaryIO | None, url: str) -> None:
        self._job, self._body, self._out, self._url = job, body, out, url
        self._handle, self._size = body.fileno(), os.fstat(body.fileno()).st_size
        self._rest: dict[str, msgspec.Raw] = {}
        self._rest_bytes = self._lines = 0
        self._ids: set[str] = set()
        self._decoder: msgspec.json.Decoder[_MessagesRequest] | msgspec.json.Decoder[_Request] = (
            msgspec.json.Decoder(_MessagesRequest) if job.form == "messages" else msgspec.json.Decoder(_Request)
        )
        self._encoder = msgspec.json.Encoder()

    def run(self) -> SplitSummary:
        """Depth 1 is the body, depth 2 the list of requests, or another field's value."""
        depth, start, key, is_list, had_list = 0, 0, None, False, False
        for place, mark in self._marks():
            if depth == 0:
                if mark != b"{" or start:
                    raise _not_json()
                self._check_blank(0, place)
                depth, start = 1, place + 1
            elif depth == 1:
                if mark == b":" and key is None:
                    key, start = self._key(start, place), place + 1
                elif mark in _OPEN:
                    depth, is_list = 2, mark == b"[" and key == LIST
                    if is_list:
                        self._check_blank(start, place)
                        if had_list:
                            raise _Fault(f"'{LIST}' is there twice.", LIST)
                        had_list, start = True, place + 1
                elif mark in b",}":
                    if key is None and (mark == b"," or self._rest or had_list):
                        raise _not_json()
                    self._end_field(key, start, place, is_list)
                    key, start, is_list = None, place + 1, False
                    if mark == b"}":
                        self._check_blank(start, self._size)
                        return self._summary(had_list)
                else:
                    raise _not_json()
            elif depth == 2 and is_list and mark in b",]":
                if mark == b"," or self._lines or not self._is_blank(start, place):
                    self._add(start, place)
                start, depth = place + 1, 1 if mark == b"]" else 2
            elif mark in _OPEN:
                depth += 1
            elif mark in _CLOSE:
                depth -= 1
        raise _not_json()

    def _summary(self, had_list: bool) -> SplitSummary:
        if had_list and not self._lines:
            raise _Fault(f"'{LIST}' is empty: send at least one request.", LIST)
        return SplitSummary(self._lines, msgspec.Raw(self._encoder.encode(self._rest)))

    def _marks(self) -> Iterator[tuple[int, bytes]]:
        """Marks outside texts, with their places. Raises _Fault for a text that is longer than a line."""
        data, base, marks, most = b"", 0, 0, 8 * self._job.values
        while piece := self._body.read(READ_BYTES):
            data += piece
            end = len(data)
            for found in _MARKS.finditer(data):
                first = data[found.start() : found.start() + 1]
                if first != b'"':
                    marks += 1
                    yield base + found.start(), first
                elif len(found[0]) == 1:  # the rest of this text is still to come
                    end = found.start()
                    break
            if len(data) - end > self._job.line_bytes:
                raise _Fault(f"A text is longer than the {self._job.line_bytes} bytes that a request may have.", LIST)
            if marks > most * (self._lines + 1):
                raise _Fault(f"A request may hold {self._job.values} lists, objects and texts.", LIST)
            data, base = data[end:], base + end

    # --- fields -----------------------------------------------------------------------------------------------------
    def _key(self, start: int, end: int) -> str:
        try:
            return msgspec.json.decode(self._read(start, end, REST_BYTES), type=str)
        except NOT_JSON:
            raise _not_json() from None

    def _end_field(self, key: str | None, start: int, end: int, is_list: bool) -> None:
        if key is None or is_list:
            self._check_blank(start, end)
            return
        self._rest_bytes += end - start
        try:
            value = self._read(start, end, REST_BYTES)
            self._rest[key] = msgspec.json.decode(value, type=msgspec.Raw).copy()
        except NOT_JSON:
            raise _not_json() from None
        if self._rest_bytes > REST_BYTES:
            raise _Fault(f"The fields beside '{LIST}' have more than {REST_BYTES} bytes.")

    # --- requests ---------------------------------------------------------------------------------------------------
    def _add(self, start: int, end: int) -> None:
        where = f"{LIST}.{self._lines}"
        if self._lines == self._job.most:
            raise _Fault(f"A batch may have {self._job.most} requests: send several batches.", LIST)
        if self._out is None:
            self._lines += 1
            return
        data = self._read(start, end, self._job.line_bytes, where)
        try:
            Values(self._job.values).add(data)
            request = self._decoder.decode(data)
        except TooLarge:
            raise _Fault(f"{where}: a request may hold {self._job.values} lists, objects and texts.", where) from None
        except RecursionError:
            raise _Fault(f"{where}: it is nested too deeply.", where) from None
        except NOT_JSON as error:
            raise _Fault(f"{where}: {error}.", where) from None
        body = bytes(request.params if isinstance(request, _MessagesRequest) else request.body)
        if not body.startswith(b"{"):
            name = "params" if self._job.form == "messages" else "body"
            raise _Fault(f"{where}.{name}: it must be an object.", f"{where}.{name}")
        line = _Line(self._custom_id(request, where), "POST", self._url, msgspec.Raw(_on_one_line(body)))
        self._out.write(self._encoder.encode(line) + b"\n")
        self._lines += 1

    def _custom_id(self, request: _MessagesRequest | _Request, where: str) -> str:
        text = str(self._lines) if request.custom_id is None else request.custom_id
        where = f"{where}.custom_id"
        if self._job.form == "messages" and not ANTHROPIC_ID.fullmatch(text):
            raise _Fault(f"{where}: it must have 1 to 64 letters, digits, hyphens or underscores.", where)
        if not 0 < len(text) <= ID_LETTERS:
            raise _Fault(f"{where}: it must have 1 to {ID_LETTERS} letters.", where)
        if text in self._ids:
            raise _Fault(f"{where}: {text[:64]!r} is there twice.", where)
        self._ids.add(text)
        return text

    # --- the file ---------------------------------------------------------------------------------------------------
    def _read(self, start: int, end: int, most: int, where: str = "") -> bytes:
        if end - start > most:
            raise _Fault(f"{where or 'A field'} has more than the {most} bytes that it may have.", where)
        return os.pread(self._handle, end - start, start)

    def _is_blank(self, start: int, end: int) -> bool:
        return end - start <= REST_BYTES and not os.pread(self._handle, end - start, start).strip()

    def _check_blank(self, start: int, end: int) -> None:
        if not self._is_blank(start, end):
            raise _not_json()


def _on_one_line(body: bytes) -> bytes:
    """JSON has line ends between values only: in texts they are escaped."""
    return body.replace(b"\n", b" ").replace(b"\r", b" ") if b"\n" in body or b"\r" in body else body


def _not_json() -> _Fault:
    return _Fault("The body is not a JSON object.")
