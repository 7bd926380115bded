"""Kinds of fitted models, and digests of their files. Separate from `model.py`, which imports numpy."""

import hashlib
from typing import Literal

Kind = Literal["intents", "complexity"]


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
