"""Streams multipart uploads to a temporary file, with at most one buffer of it in memory.

Starlette's form parser is not used because LitServe sets its spool limit to sys.maxsize for the whole process, which
would keep uploads in memory, and because it gives no access to fields before the file has arrived.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from registry.bounds import Bounds
from registry.errors import BadRequest, RequestTimedOut, StorageFull, TooLarge, Unavailable
from runtime.gateway.uploads import Uploads, UploadShare
from runtime.http.bodies import too_large_error
from runtime.http.guard.memory import SHARES, owners_of
from runtime.http.middleware import context_of

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

BUFFER = 1 << 20
PIECE = 1 << 15
"""Bytes parsed in one step of the event loop. Data full of near-boundaries is slow to parse."""
RECORDING, SHORTEST = "recording", 1 << 10
"""A recording of fewer bytes than SHORTEST that has no file's name is a text."""

OnField = Callable[[str, str], None]
"""Called with each complete form field. An error that it raises ends the upload."""


@dataclass(slots=True)
class Upload:
    """A received upload. `path` exists until the context of `receive` ends."""

    path: Path
    size: int = 0
    name: str = ""
    """The file name given by the client, without folders. Empty if it gave none."""
    fields: dict[str, list[str]] = field(default_factory=dict)


class _Parts:
    """Callbacks of the streaming parser. Fields go to `fields`, bytes of the file to `pending`."""

    def __init__(self, file_limit: int, bounds: Bounds, on_field: OnField) -> None:
        self._limit, self._bounds, self._on_field = file_limit, bounds, on_field
        self.fields: dict[str, list[str]] = {}
        self.pending = bytearray()
        self.size = 0
        self.files = 0
        self.filename = ""
        self.ended = False
        self._parts = 0
        self._field_bytes = 0
        self._header, self._content = b"", b""
        self._disposition = b""
        self.is_text = False
        """Whether `file` is a field without a file's name, as after curl's -F file=name without the @."""
        self._name = ""
        self._value: bytearray | None = None

    def callbacks(self) -> "MultipartCallbacks":
        return {
            "on_part_begin": self.on_part_begin,
            "on_header_field": self.on_header_field,
            "on_header_value": self.on_header_value,
            "on_header_end": self.on_header_end,
            "on_headers_finished": self.on_headers_finished,
            "on_part_data": self.on_part_data,
            "on_part_end": self.on_part_end,
            "on_end": self.on_end,
        }

    def on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > self._bounds.form_parts:
            raise BadRequest(f"The form has more than {self._bounds.form_parts} parts.", code="invalid_form")
        self._disposition, self._value = b"", None

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._count_field(end - start)
        self._header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_field(end - start)
        self._content += data[start:end]

    def on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._content
        self._header, self._content = b"", b""

    def on_headers_finished(self) -> None:
        kind, options = parse_options_header(self._disposition)
        if kind != b"form-data" or b"name" not in options:
            raise BadRequest("A part of the form has no name.", code="invalid_form")
        self._name = _text(options[b"name"], "a field's name")
        if self._name == "file":
            self.files += 1
            if self.files > 1:
                raise BadRequest("Send one 'file' per request.", param="file")
            self.is_text = b"filename" not in options
            name = options.get(b"filename", b"").decode(errors="replace")
            self.filename = name.replace("\\", "/").rpartition("/")[2]
        elif b"filename" in options:
            name = self._name[:64]
            raise BadRequest(f"Only 'file' may be a file; '{name}' may not: send it as 'file'.", param=name)
        else:
            self._value = bytearray()
            self._count_field(len(self._name))

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._value is not None:
            self._count_field(end - start)
            self._value += data[start:end]
            return
        self.size += end - start
        if self.size > self._limit:
            raise too_large_error(self._limit)
        self.pending += data[start:end]

    def on_part_end(self) -> None:
        if self._value is not None:
            value = _text(bytes(self._value), f"'{self._name}'")
            self.fields.setdefault(self._name, []).append(value)
            self._on_field(self._name, value)

    def on_end(self) -> None:
        self.ended = True

    def _count_field(self, count: int) -> None:
        self._field_bytes += count
        if self._field_bytes > self._bounds.form_bytes:
            raise TooLarge(f"The form's fields are over the limit of {self._bounds.form_bytes} bytes.")


def _text(raw: bytes, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"{what.capitalize()} is not UTF-8.", code="invalid_form") from None


def _parser(request: Request, parts: _Parts) -> MultipartParser:
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise BadRequest(
            "Send the form as multipart/form-data with a boundary, and the bytes of the file in its field 'file'. "
            "Clients write this Content-Type themselves if you set none.",
            code="invalid_form",
        )
    try:
        return MultipartParser(options[b"boundary"], parts.callbacks())
    except FormParserError as error:
        raise BadRequest(f"The form cannot be read: {error}.", code="invalid_form") from None


@asynccontextmanager
async def receive(
    request: Request,
    uploads: Uploads,
    folder: Path,
    limit: int,
    on_field: OnField,
    what: str = RECORDING,
    suffix: str = ".audio",
) -> AsyncIterator[Upload]:
    """Receive the request's form, with its file on disk (mode 0600) until the context ends.

    what: name of the file in the error for a missing one.

    Raises TooLarge as soon as the file is over `limit` bytes, RequestTimedOut for a client that stalls, BadRequest for
    a form that is malformed, cut off, or has no file, QueueFull when all uploads together, or those of the caller's
    team, key or address, are too large (see `guard.memory`), Unavailable when the disk is full (no_space) or down to
    its reserve (storage_full), and any error that `on_field` raises.
    """
    most = limit + uploads.bounds.form_bytes + uploads.bounds.form_parts * 1024
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most:
        raise too_large_error(limit)
    parts = _Parts(limit, uploads.bounds, on_field)
    parser = _parser(request, parts)
    path = folder / f"{secrets.token_hex(16)}{suffix}"
    with share_of(request, uploads, folder) as share:
        try:
            try:
                async with new_file(path, make_folder=True) as file:
                    await _fill(request, parser, parts, file, most, share, uploads.bounds)
            except OSError as error:
                raise Unavailable(
                    f"The upload could not be stored: {os.strerror(error.errno or 0)}.", code="no_space", retry_after=30
                ) from error
            if not parts.files or not parts.size:
                raise BadRequest(f"Send the {what} in the field 'file'; it is missing or empty.", param="file")
            if parts.is_text and what == RECORDING and parts.size < SHORTEST:
                raise BadRequest(
                    "'file' is a text here: send the file itself, with curl as -F file=@name.", param="file"
                )
            yield Upload(path, parts.size, parts.filename, parts.fields)
        finally:
            discard(path)


def share_of(request: Request, uploads: Uploads, folder: Path) -> AbstractContextManager[UploadShare]:
    """The share of an upload in the bounds of all, and of its caller's team, key and address."""
    address = request.client.host if request.client else ""
    owners = owners_of(context_of(request.scope).caller, address)
    return uploads.share(folder, {owner: SHARES[owner[0]] for owner in owners})


@contextmanager
def storage_faults(what: str, consequence: str) -> Iterator[None]:
    """Raise StorageFull for a disk that is full, down to its reserve, or unwritable."""
    try:
        yield
    except Unavailable as error:
        if error.code not in ("no_space", "storage_full"):
            raise
        raise StorageFull(error.message, code="storage_full") from error
    except OSError as error:
        text = f"{what}: {os.strerror(error.errno or 0)}. {consequence}."
        raise StorageFull(text, code="storage_full") from error


def discard(path: Path) -> None:
    """Remove a file that a request leaves, if it is there. The next start removes what a read-only disk keeps."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


@asynccontextmanager
async def new_file(path: Path, *, make_folder: bool = False) -> AsyncIterator[BufferedWriter]:
    """Create a private file, for threads to write and flush. Raises OSError.

    A cancelled request leaves its thread behind, perhaps during a write. The file object's lock makes `close` wait for
    that write, and later ones fail. With a bare descriptor they could go to another client's connection that got the
    same number.
    """
    file = await asyncio.to_thread(_create, path, make_folder)
    try:
        yield file
    finally:
        await asyncio.shield(asyncio.to_thread(file.close))


def _create(path: Path, make_folder: bool) -> BufferedWriter:
    if make_folder:
        path.parent.mkdir(mode=0o700, exist_ok=True)  # not the data directory itself, so that a moved one is noticed
    return open(path, "xb", opener=_private)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


async def _fill(
    request: Request,
    parser: MultipartParser,
    parts: _Parts,
    file: BufferedWriter,
    most: int,
    share: UploadShare,
    bounds: Bounds,
) -> None:
    """Feed the parser and write the file. An OSError can only come from the disk."""
    loop = asyncio.get_running_loop()
    pause = bounds.upload_pause_seconds
    end, size = loop.time() + bounds.upload_seconds, 0
    try:
        async with asyncio.timeout(min(pause, bounds.upload_seconds)) as timeout:
            async for chunk in request.stream():
                size += len(chunk)
                if size > most:
                    raise too_large_error(most)
                share.add(len(chunk))
                for piece in range(0, len(chunk), PIECE):
                    try:
                        parser.write(chunk[piece : piece + PIECE])
                    except FormParserError as error:
                        raise BadRequest(f"The form cannot be read: {error}.", code="invalid_form") from None
                    await asyncio.sleep(0)
                if len(parts.pending) >= BUFFER:
                    await asyncio.to_thread(_write, file, parts)
                    share.written()
                timeout.reschedule(min(end, loop.time() + pause))
    except TimeoutError:
        raise RequestTimedOut(
            f"The upload stopped for {pause:g} s, or took over {bounds.upload_seconds:g} s."
        ) from None
    if not parts.ended:
        raise BadRequest("The form ends before its closing boundary.", code="invalid_form")
    await asyncio.to_thread(_write, file, parts)
    share.written()


def _write(file: BufferedWriter, parts: _Parts) -> None:
    data = bytes(parts.pending)
    parts.pending.clear()
    file.write(data)
    file.flush()
