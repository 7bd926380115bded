"""The service class that answered, where vendors' clients look for it.

A string in an answer has its quotes escaped, so that none of these pieces is found in one.
"""

import re

_CHAT = re.compile(rb'("object":"chat\.completion(?:\.chunk)?",)')
_NULL = b'"service_tier":null'
_RESPONSE = re.compile(rb'"service_tier":(?:null|"[a-z]+")')
ANTHROPICS = {"priority": b"priority", "default": b"standard", "flex": b"batch"}


def told(path: str, data: bytes, tier: str) -> bytes:
    """tier: as OpenAI calls it."""
    word = tier.encode()
    if path == "/v1/chat/completions":
        return _CHAT.sub(rb'\1"service_tier":"' + word + b'",', data)
    if path == "/v1/responses":
        return _RESPONSE.sub(b'"service_tier":"' + word + b'"', data)
    if path == "/v1/messages":
        return data.replace(_NULL, b'"service_tier":"' + ANTHROPICS[tier] + b'"')
    return data
