"""The pepper: 256 bits that hashes of keys need and that no copy of the database holds.

It is a file in the data directory that only its owner may read, or the variable ROUNDHOUSE_PEPPER where several
gateways share a database. If it is lost, every key must be made anew.
"""

import contextlib
import os
import secrets
import tempfile
from pathlib import Path

from registry.errors import BadRequest, Unavailable
from registry.storage.files import give, make_private, make_private_file, unusable

FILE = "pepper"
LEAST = 32
"""Characters."""


def load(data_dir: Path, configured: str | None = None) -> bytes:
    """The pepper that was given, else that of the data directory, which is made where there is none.

    Raises BadRequest for one that is too short, Unavailable for a file that cannot be read or made.
    """
    if configured is not None:
        return _checked(configured, "ROUNDHOUSE_PEPPER")
    path = data_dir / FILE
    try:
        make_private(data_dir)
        if not path.exists():
            _make(path)
        make_private_file(path)
        return _checked(path.read_text(encoding="ascii").strip(), str(path))
    except OSError as error:
        raise Unavailable(
            f"No key can be checked without the pepper: {unusable(error, path)}", code="no_pepper"
        ) from None
    except UnicodeDecodeError:
        raise Unavailable(
            f"The pepper of the keys in {path} is damaged. Bring it back from a backup.", code="no_pepper"
        ) from None


def _make(path: Path) -> None:
    """Whole or not at all; of two that make it at once, the first one's stays."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{FILE}-")
    try:
        give(handle, path.parent)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
    finally:
        os.unlink(name)


def _checked(text: str, where: str) -> bytes:
    if len(text) < LEAST:
        raise BadRequest(f"The pepper in {where} is too short: {LEAST} characters at least. Try openssl rand -hex 32.")
    return text.encode()
