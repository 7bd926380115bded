"""What a key looks like: `rh-` id `_` secret checksum.

| part     | letters and digits | what for                                                        |
|----------|--------------------|-----------------------------------------------------------------|
| id       | 8                  | finds the row; stands in logs and lists                         |
| secret   | 43                 | 256 random bits                                                 |
| checksum | 6                  | CRC-32 of what is before it: finds typing errors                |

Stored is an HMAC-SHA256 of the whole text with a pepper that is not in the database. A random key needs no slow hash:
who stole the table could not try 2^256 of them, and each request would wait for it.
"""

import hmac
import re
import secrets
import zlib
from typing import NamedTuple

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID, _SECRET, _SUM = 8, 43, 6
_FORM = re.compile(rf"rh-([0-9A-Za-z]{{{_ID}}})_[0-9A-Za-z]{{{_SECRET + _SUM}}}\Z", re.ASCII)
PREFIX = "rh-"


class NewKey(NamedTuple):
    id: str
    text: str
    """Displayed once, to the client that created the key."""


def make() -> NewKey:
    id_ = "".join(secrets.choice(ALPHABET) for _ in range(_ID))
    head = f"{PREFIX}{id_}_{_base62(secrets.randbits(256), _SECRET)}"
    return NewKey(id_, head + _checksum(head))


def id_of(text: str) -> str | None:
    """The id in a well-formed key; None for what is none, or was not written down rightly."""
    match = _FORM.match(text)
    if match is None or not hmac.compare_digest(text[-_SUM:], _checksum(text[:-_SUM])):
        return None
    return match[1]


def digest(pepper: bytes, text: str) -> bytes:
    """What is kept of a key."""
    return hmac.digest(pepper, text.encode(), "sha256")


def _checksum(text: str) -> str:
    return _base62(zlib.crc32(text.encode()), _SUM)


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))
