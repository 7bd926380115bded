"""The kinds of fitted models, and how their files are identified; apart, as `model.py` imports numpy."""

import hashlib
from typing import Literal

Kind = Literal["intents", "complexity"]


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
