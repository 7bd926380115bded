"""The service class that answered, where vendors' clients look for it."""

import re
from collections.abc import Mapping

from msgspec import Raw

_CHAT = re.compile(rb'("object":"chat\.completion(?:\.chunk)?",)')
ANTHROPICS = {"priority": b"priority", "default": b"standard", "flex": b"batch"}


def in_chat(data: bytes, tier: str) -> bytes:
    """tier: as OpenAI calls it. A string in an answer has its quotes escaped, so that this piece is found in none."""
    return _CHAT.sub(rb'\1"service_tier":"' + tier.encode() + b'",', data)


def overrides(path: str, tier: str) -> Mapping[str, Raw]:
    """The field that tells it in Messages and Responses; empty: it is not to be told."""
    word = ANTHROPICS.get(tier, b"") if path == "/v1/messages" else tier.encode()
    return {"service_tier": Raw(b'"' + word + b'"')} if word else {}
