"""The format of keys: `rh-` id `_` secret checksum.

| part     | letters and digits | purpose                                                         |
|----------|--------------------|-----------------------------------------------------------------|
| id       | 8                  | finds the row; appears in logs and lists                        |
| secret   | 43                 | 256 random bits                                                 |
| checksum | 6                  | CRC-32 of the rest: detects typing errors                       |

The database stores an HMAC-SHA256 of the whole text with a pepper, which is not in the database. A random key needs no
slow hash: a thief of the table could not try 2^256 of them, while each request would wait for it.
"""

import contextlib
import hmac
import os
import re
import secrets
import tempfile
import zlib
from pathlib import Path
from typing import NamedTuple

from registry.errors import BadRequest, Unavailable
from registry.storage.files import give, make_private, make_private_file, unusable

FILE = "pepper"
LEAST = 32
"""Fewest characters of a pepper."""


def load_pepper(data_dir: Path, configured: str | None = None) -> bytes:
    """Return the configured pepper, else that of the data directory, which is created if missing.

    Raises BadRequest if the pepper is too short, Unavailable if the file cannot be read or created.
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
    """Create the file atomically. If two processes create it at once, the first one's stays."""
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
        raise BadRequest(f"The pepper in {where} is too short: it needs {LEAST} characters. Try openssl rand -hex 32.")
    return text.encode()


ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID, _SECRET, _SUM = 8, 43, 6
_FORM = re.compile(rf"rh-([0-9A-Za-z]{{{_ID}}})_[0-9A-Za-z]{{{_SECRET + _SUM}}}\Z", re.ASCII)
PREFIX = "rh-"


class NewKey(NamedTuple):
    id: str
    text: str
    """Shown once, to the client that created the key."""


def make() -> NewKey:
    id_ = "".join(secrets.choice(ALPHABET) for _ in range(_ID))
    head = f"{PREFIX}{id_}_{_base62(secrets.randbits(256), _SECRET)}"
    return NewKey(id_, head + _checksum(head))


def id_of(text: str) -> str | None:
    """Return the id in a key, or None if the key is malformed."""
    match = _FORM.match(text)
    if match is None or not hmac.compare_digest(text[-_SUM:], _checksum(text[:-_SUM])):
        return None
    return match[1]


def digest(pepper: bytes, text: str) -> bytes:
    """Return the stored form of a key."""
    return hmac.digest(pepper, text.encode(), "sha256")


def _checksum(text: str) -> str:
    return _base62(zlib.crc32(text.encode()), _SUM)


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))
