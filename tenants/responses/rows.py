"""A stored response, and how its JSON is edited. Imports no database."""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from registry.base.json import NOT_JSON

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
    """JSON list of all items of the model's input."""
    answer: bytes
    """The response object as JSON."""


def edit(answer: bytes, changes: Mapping[str, Any]) -> bytes:
    """Replace some fields of a JSON object."""
    return msgspec.json.encode({**_OBJECT.decode(answer), **changes})


def item_key(id_: str) -> str:
    """Return the key of an item. Its id may come from another server, with any length and characters."""
    return hashlib.blake2b(id_.encode(errors="replace"), digest_size=16).hexdigest()


class _Answer(msgspec.Struct):
    output: list[msgspec.Raw] = []


class _Item(msgspec.Struct):
    id: str


def output_items(answer: bytes) -> list[tuple[str, bytes]]:
    """Return key and JSON of each item in an answer's output that has an id."""
    items = []
    with suppress(*NOT_JSON):  # another server's answer in another format: its items cannot be named
        for item in msgspec.json.decode(answer, type=_Answer).output:
            with suppress(*NOT_JSON):  # an item without an id
                items.append((item_key(msgspec.json.decode(item, type=_Item).id), bytes(item)))
    return items


SEND_ITSELF = "Send the item itself: in Vercel's AI SDK set providerOptions: {openai: {store: false}}."
"""Advice for a request that names a missing item."""


def failure(code: str, message: str) -> Mapping[str, Any]:
    """Return the fields of a failed response. code: one of OpenAI's `ResponseError` codes."""
    return {"status": "failed", "error": {"code": code, "message": message}}


STOPPED = failure("server_error", "The server stopped before this response was complete. Send the request again.")
