"""A stored response, and how its JSON is edited. Knows nothing of the database."""

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
    """The server that runs it."""
    created: float
    expires: float
    running: bool
    input: bytes
    """JSON list of every item that the model was given."""
    answer: bytes
    """The response object as JSON."""


def edit(answer: bytes, changes: Mapping[str, Any]) -> bytes:
    """Replace some fields of a JSON object."""
    return msgspec.json.encode({**_OBJECT.decode(answer), **changes})


def failure(code: str, message: str) -> Mapping[str, Any]:
    """The fields of a failed response. code: one of OpenAI's `ResponseError` codes."""
    return {"status": "failed", "error": {"code": code, "message": message}}


STOPPED = failure("server_error", "The server stopped before this response was complete. Send the request again.")
