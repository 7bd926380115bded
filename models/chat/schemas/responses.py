"""Responses: vLLM writes every field that it knows as null where it has nothing, and knows fewer than OpenAI."""

import re

import msgspec

from models.chat.schemas import shape
from models.chat.schemas.errors import Fault
from models.chat.schemas.shape import NULL, ObjectShape, Overrides

_ALWAYS = ("access_programs", "error", "incomplete_details", "instructions", "metadata", "temperature", "top_p")


class Tool(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="function"):
    """Given back as it was sent: 128 of them are most of an answer. With an `output_schema`, a client's, they are
    read the other way."""

    name: str
    parameters: msgspec.Raw
    strict: bool | None
    description: str | None = None
    allowed_callers: list[str] | None = None
    async_: bool | None = None
    defer_loading: bool | None = None
    output_schema: None = None


ITEM = ObjectShape(
    nullable=frozenset({"call_id", "code", "environment", "max_output_length", "outputs", "result"}),
    inner={"content": ObjectShape()},
)
RESPONSE = ObjectShape(
    nullable=frozenset(_ALWAYS),
    always=dict.fromkeys(_ALWAYS, NULL),
    overrides=frozenset({"model", "service_tier"}),
    inner={
        "output": ITEM,
        "reasoning": ObjectShape(),
        "text": ObjectShape(inner={"format": ObjectShape()}),
        "tools": ObjectShape(frozenset({"parameters", "strict"}), usual=msgspec.json.Decoder(list[Tool])),
    },
)
EVENT = ObjectShape(
    nullable=frozenset({"annotation", "code", "param"}),
    inner={"item": ITEM, "part": ObjectShape(), "response": RESPONSE},
)


_COMPLETED_LINE = b"event: response.completed\n"
_COMPLETED = re.compile(_COMPLETED_LINE + rb"data: (.*)")


class _Status(msgspec.Struct):
    status: str = ""


class _Ended(msgspec.Struct):
    response: _Status


def fitted(data: bytes, overrides: Overrides, _: Fault) -> bytes:
    """What breaks in a stream of these is raised."""
    fitted = shape.fitted(data, RESPONSE, _of_event, overrides)
    return _COMPLETED.sub(_ended, fitted) if _COMPLETED_LINE in fitted else fitted


def _ended(match: re.Match[bytes]) -> bytes:
    """The last event. Of an answer that was cut OpenAI's has another name, and vLLM's has not."""
    if msgspec.json.decode(match[1], type=_Ended).response.status != "incomplete":
        return match[0]
    event = msgspec.json.decode(match[1], type=dict[str, msgspec.Raw])
    event["type"] = msgspec.Raw(b'"response.incomplete"')
    return b"event: response.incomplete\ndata: " + msgspec.json.encode(event)


def _of_event(name: bytes) -> ObjectShape | None:
    """A piece of text, which is most events, is a string and never null."""
    return None if name.endswith(b".delta") else EVENT
