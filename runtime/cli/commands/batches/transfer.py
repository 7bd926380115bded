"""Files to and from the server."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from runtime.cli.failures import RefusedError
from runtime.cli.remote.client import Client, Json, part
from runtime.cli.remote.progress import bar

FILES = "/v1/files"


def upload(client: Client, path: Path, purpose: str, *, key: str | None = None, drawn: bool = True) -> Json:
    """Send a file. key: makes the call safe to repeat. Raises RefusedError, ServerError."""
    if not path.is_file():
        raise RefusedError(f"There is no file {path}.")
    headers = {} if key is None else {"Idempotency-Key": key}
    with bar(drawn) as progress_bar, progress_bar.open(path) as content:
        return client.call(
            "POST", FILES, data={"purpose": purpose}, files={"file": (path.name, content)}, headers=headers
        )


def download(client: Client, file_id: str, to: Path | None) -> None:
    """Write a file's content to a path, whole or not at all; None: to standard output."""
    with client.stream("GET", f"{FILES}/{part(file_id)}/content") as response, _output(to) as output:
        for data in response.iter_bytes():
            output.write(data)


@contextmanager
def _output(to: Path | None) -> Iterator[IO[bytes]]:
    if to is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with NamedTemporaryFile(dir=to.parent, prefix=f".{to.name}-", delete=False) as half:
        try:
            yield half
            half.flush()
            os.fsync(half.fileno())
            os.replace(half.name, to)
        except BaseException:
            Path(half.name).unlink(missing_ok=True)
            raise
