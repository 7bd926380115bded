"""Parses what clients send: `python -m batches.check_process` reads a job and writes answers, as lines of JSON.

An `InputJob` is answered with `InputPart`s, which hold each line's position in the file, then an `InputSummary`; a
`SplitJob` with one `SplitSummary` (`batches.intake.split`). Clients wrote the file, so it is parsed outside the
gateway, with bounds on memory and time. No parts follow a fault, because the batch fails as a whole.

| a line that                                                  | code                         |
|--------------------------------------------------------------|------------------------------|
| is not a JSON object, not UTF-8, or nested too deeply        | `invalid_json_line`          |
| has more bytes or more values than a body may have           | `line_too_large`             |
| lacks custom_id, method, url or body                         | `missing_required_parameter` |
| has a custom_id that is not a string, or is too long         | `invalid_custom_id`          |
| has the custom_id of an earlier line                         | `duplicate_custom_id`        |
| has a method other than POST                                 | `invalid_method`             |
| has a url other than its batch's, or an unsupported one      | `url_mismatch`, `invalid_url`|

Faults of the whole file: `empty_file`, `too_many_tasks`. A BOM and CRLF are accepted. Blank lines are not counted.
"""

import os
import resource
import signal
import sys
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import msgspec

from batches.intake.split import SplitJob, split
from batches.records import ADAPTER, CUSTOM_ID_LETTERS, BatchFault
from registry.base.json import NOT_JSON, Values
from registry.base.limits import limit
from registry.errors import TooLarge

MEMORY = 384 << 20
"""Bytes of address space. The process itself uses 40 MiB of memory and 200 MiB of address space."""
MOST_FAULTS = 100
READ_BYTES = 1 << 20
PART_LINES, PART_BYTES = 500, 1 << 17
"""A part ends with the line that reaches either bound."""
VALUE_BYTES = 2
"""The least bytes that a value takes in a body, including its comma. Shorter lines need no count."""
NUL = "\0"
"""Refused in names, because PostgreSQL cannot store it in text."""
BOM = b"\xef\xbb\xbf"


class InputJob(msgspec.Struct, frozen=True, kw_only=True, tag="check"):
    """`url`: what each line must name. None for any of `urls`. `seconds`: CPU time."""

    path: Path
    urls: tuple[str, ...]
    url: str | None = None
    most_lines: int
    line_bytes: int
    values: int
    seconds: float = 120.0


class InputLine(msgspec.Struct, frozen=True, array_like=True):
    """The position of a line's body in the file, and the model it names ('' if none), with `ADAPTER` if it has one."""

    custom_id: str
    model: str
    offset: int
    length: int


class InputPart(msgspec.Struct, frozen=True, tag="part"):
    lines: tuple[InputLine, ...]


class InputSummary(msgspec.Struct, frozen=True, tag="summary"):
    """`faults`: the first of `fault_count`. Their line numbers include blank lines, as in editors."""

    lines: int
    faults: tuple[BatchFault, ...]
    fault_count: int


Answer = InputPart | InputSummary


class _Body(msgspec.Struct):
    model: msgspec.Raw = msgspec.Raw(b"")
    adapter_id: msgspec.Raw = msgspec.Raw(b"null")
    lora_name: msgspec.Raw = msgspec.Raw(b"null")
    lora_path: msgspec.Raw = msgspec.Raw(b"null")


class _Line(msgspec.Struct):
    """The raw fields, so that each fault can be reported on its own."""

    custom_id: msgspec.Raw = msgspec.Raw(b"")
    method: msgspec.Raw = msgspec.Raw(b"")
    url: msgspec.Raw = msgspec.Raw(b"")
    body: msgspec.Raw = msgspec.Raw(b"")


_LINE, _BODY = msgspec.json.Decoder(_Line), msgspec.json.Decoder(_Body)
_TEXT = msgspec.json.Decoder(str)


class _Fault(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def encode_job(job: InputJob | SplitJob) -> bytes:
    """Return the job as one line of JSON, including the line end."""
    return (
        msgspec.json.encode(job, enc_hook=lambda value: str(value) if isinstance(value, Path) else int(value)) + b"\n"
    )


def decode_job(line: bytes) -> InputJob | SplitJob:
    """Parse a job. Raises msgspec.DecodeError."""
    return msgspec.json.decode(line, type=InputJob | SplitJob, dec_hook=lambda kind, value: kind(value))


def check(job: InputJob) -> Iterator[Answer]:
    """Yield the parts of a file without faults, then the summary. Raises OSError."""
    reader = _Reader(job)
    faults: list[BatchFault] = []
    part: list[InputLine] = []
    lines = fault_count = size = 0
    with job.path.open("rb", buffering=READ_BYTES) as file:
        for number, offset, line in _lines(file, job.line_bytes):
            if lines == job.most_lines:
                text = f"The file has more than {job.most_lines} lines: split it into several batches."
                faults[MOST_FAULTS - 1 :] = [BatchFault("too_many_tasks", text)]
                fault_count += 1
                break
            lines += 1
            try:
                one = reader.read(line, offset)
            except _Fault as fault:
                fault_count += 1
                part.clear()
                if len(faults) < MOST_FAULTS:
                    faults.append(BatchFault(fault.code, fault.message, number, fault.param))
                continue
            if fault_count:
                continue
            part.append(one)
            size += len(one.custom_id) + 64
            if len(part) == PART_LINES or size >= PART_BYTES:
                yield InputPart(tuple(part))
                part.clear()
                size = 0
    if part:
        yield InputPart(tuple(part))
    if not lines:
        faults.append(BatchFault("empty_file", "The file has no lines: write one request per line."))
        fault_count = 1
    yield InputSummary(lines, tuple(faults), fault_count)


def _lines(file: BinaryIO, most: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield number, offset and bytes of each line that is not blank. None if it is longer than `most` bytes."""
    offset = number = 0
    if file.read(len(BOM)) == BOM:
        offset = len(BOM)
    file.seek(offset)
    while line := file.readline(most + 2):  # allow for a CRLF
        number += 1
        start, offset = offset, offset + len(line)
        is_long = not line.endswith(b"\n") and len(line) == most + 2
        while is_long and (rest := file.readline(READ_BYTES)):
            offset += len(rest)
            if rest.endswith(b"\n"):
                break
        text = line.rstrip(b"\r\n")
        if is_long or len(text) > most:
            yield number, start, None
        elif text and not text.isspace():
            yield number, start, text


class _Reader:
    def __init__(self, job: InputJob) -> None:
        self._job = job
        self._seen: set[bytes] = set()
        """Digests of the ids so far: the ids themselves could be arbitrarily large."""

    def read(self, line: bytes | None, offset: int) -> InputLine:
        """Parse a line and return its position. Raises _Fault."""
        if line is None:
            raise _Fault("line_too_large", f"A line may have {self._job.line_bytes} bytes; this one has more.")
        if len(line) > VALUE_BYTES * self._job.values:
            try:
                Values(self._job.values).add(line)
            except TooLarge:
                text = f"A line may hold {self._job.values} lists, objects and strings; this one holds more."
                raise _Fault("line_too_large", text) from None
        try:
            line.decode()
            fields = _LINE.decode(line)
        except RecursionError:
            raise _Fault("invalid_json_line", "The line is nested too deeply.") from None
        except UnicodeDecodeError:
            raise _Fault("invalid_json_line", "The line is not UTF-8.") from None
        except NOT_JSON as error:
            raise _Fault("invalid_json_line", f"The line is not a JSON object: {error}.") from None
        custom_id = self._custom_id(bytes(fields.custom_id))
        self._check_method(bytes(fields.method))
        self._check_url(bytes(fields.url))
        body = bytes(fields.body)
        model = _model(body)
        mark = blake2b(custom_id.encode(), digest_size=16).digest()
        if mark in self._seen:
            raise _Fault("duplicate_custom_id", f"An earlier line has the custom_id {custom_id[:64]!r}.", "custom_id")
        self._seen.add(mark)
        start = line.index(body)  # an equal text earlier in the line would do as well
        return InputLine(custom_id, model, offset + start, len(body))

    def _custom_id(self, raw: bytes) -> str:
        if not raw or raw in (b"null", b'""'):
            raise _missing("custom_id")
        try:
            text = _TEXT.decode(raw)
        except NOT_JSON:
            raise _Fault("invalid_custom_id", "A custom_id must be a string.", "custom_id") from None
        if len(text) > CUSTOM_ID_LETTERS:
            words = f"A custom_id may have {CUSTOM_ID_LETTERS} characters; this one has {len(text)}."
            raise _Fault("invalid_custom_id", words, "custom_id")
        if NUL in text:
            raise _Fault("invalid_custom_id", "A custom_id must not contain a NUL character.", "custom_id")
        return text

    def _check_method(self, raw: bytes) -> None:
        if raw == b'"POST"':
            return
        if not raw or raw == b"null":
            raise _missing("method")
        raise _Fault("invalid_method", "The method of each line must be POST.", "method")

    def _check_url(self, raw: bytes) -> None:
        if not raw or raw == b"null":
            raise _missing("url")
        try:
            url = _TEXT.decode(raw)
        except NOT_JSON:
            url = ""
        expected = self._job.url
        if expected is not None and url != expected:
            text = f"The batch's endpoint is {expected}, but the line names {url[:64]!r}."
            raise _Fault("url_mismatch", text, "url")
        if url not in self._job.urls:
            raise _Fault("invalid_url", f"A line's url must be one of {', '.join(self._job.urls)}.", "url")


def _model(raw: bytes) -> str:
    """Return the model named in a body, and its adapter. '' if there is none: the line will fail when it runs.

    Raises _Fault.
    """
    if not raw or raw == b"null":
        raise _missing("body")
    try:
        body = _BODY.decode(raw)
    except NOT_JSON:
        raise _Fault("invalid_json_line", "The body must be a JSON object.", "body") from None
    model = _name(body.model)
    adapters = {bytes(one) for one in (body.adapter_id, body.lora_name, body.lora_path)} - {b"null"}
    if not model or len(adapters) != 1:  # two that differ are the line's own error
        return model
    adapter = _name(msgspec.Raw(adapters.pop()))
    return f"{model}{ADAPTER}{adapter}" if adapter else model


def _name(raw: msgspec.Raw) -> str:
    """Return a string, shortened. '' for anything else, and for text that no name may contain."""
    try:
        text = _TEXT.decode(raw)[:256] if raw else ""
    except NOT_JSON:
        return ""
    return "" if NUL in text or ADAPTER in text else text


def _missing(name: str) -> _Fault:
    return _Fault("missing_required_parameter", f"The line has no {name}.", name)


def limit_process(job: InputJob | SplitJob | None = None) -> None:
    """Limit the memory of a process that parses clients' data, and its CPU time once its job is known.

    A body that it maps needs additional address space.
    """
    if job is not None:
        limit(resource.RLIMIT_CPU, max(1, int(job.seconds)))
        if isinstance(job, SplitJob):
            most = MEMORY + job.path.stat().st_size
            limit(resource.RLIMIT_AS, most)
        return
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # including the server's port, which an event loop may leak
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, but the server stops this process
    limit(resource.RLIMIT_CORE, 0, for_good=True)
    limit(resource.RLIMIT_AS, MEMORY)


def main() -> None:
    """Read one job and answer it."""
    limit_process()
    job = decode_job(sys.stdin.buffer.readline())
    limit_process(job)
    encoder = msgspec.json.Encoder()
    for answer in check(job) if isinstance(job, InputJob) else [split(job)]:
        sys.stdout.buffer.write(encoder.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
