"""A stored response, and JSON with some fields changed; free of the database."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class StoredResponse:
    id: str
    team: str
    server: str
    """Which server runs it."""
    created: float
    expires: float
    running: bool
    input: bytes
    """JSON list of all items that the model was given."""
    answer: bytes
    """The response as JSON."""


def edit(answer: bytes, changes: Mapping[str, Any]) -> bytes:
    """A JSON object with other values for some of its fields."""
    return msgspec.json.encode({**_OBJECT.decode(answer), **changes})


def failure(code: str, message: str) -> Mapping[str, Any]:
    """What a response that failed says instead. code: one of OpenAI's `ResponseError`."""
    return {"status": "failed", "error": {"code": code, "message": message}}


STOPPED = failure("server_error", "The server stopped before this response was complete. Send the request again.")
