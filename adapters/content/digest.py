"""The digest of a stored adapter. `normalise.py` explains what it depends on."""

import hashlib
import struct
from collections.abc import Iterator

SALT = b"roundhouse adapter 1\n"


def digest_of(config: bytes, tensors: Iterator[bytes]) -> str:
    """Return 'sha256:…' of a canonical config and the bytes of the tensor file."""
    digest = hashlib.sha256(SALT + struct.pack("<Q", len(config)) + config)
    for part in tensors:
        digest.update(part)
    return "sha256:" + digest.hexdigest()
