"""Makes calls that create something safe to repeat: the header Idempotency-Key, and a hash of the body."""

import hashlib

from fastapi import Request
from pydantic import BaseModel

from registry.errors import BadRequest

HEADER = "Idempotency-Key"
MOST = 255


def idempotency_key(request: Request) -> str:
    """The header's value, empty if absent. Raises BadRequest if it is too long."""
    key = request.headers.get(HEADER, "")
    if len(key) > MOST:
        raise BadRequest(f"An {HEADER} has at most {MOST} characters: send a shorter one.", param=HEADER)
    return key


def body_hash(body: BaseModel) -> str:
    """A hash that is equal for bodies with the same content."""
    return hashlib.sha256(body.model_dump_json().encode()).hexdigest()
