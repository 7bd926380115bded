"""JSON objects brought into a shape, without a look into what clients and models wrote: that stays byte for byte."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

NULL = msgspec.Raw(b"null")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_EVENT, _DATA = b"event: ", b"\ndata: "


@dataclass(frozen=True, slots=True)
class Shape:
    """Of an object, or of each object of a list."""

    nullable: frozenset[str] = frozenset()
    """Fields that stay when they are null. All others go then."""
    always: Mapping[str, msgspec.Raw] = field(default_factory=dict)
    """Fields that are there in any case, and what they are where vLLM leaves them out."""
    inner: Mapping[str, "Shape"] = field(default_factory=dict)
    kinds: Mapping[bytes, "Shape"] = field(default_factory=dict)
    """By the JSON of the field `type`: the shape in place of this one."""


def shaped(raw: msgspec.Raw, shape: Shape) -> msgspec.Raw:
    data = bytes(raw)
    if data[:1] == b"[":
        return msgspec.Raw(msgspec.json.encode([shaped(one, shape) for one in _LIST.decode(data)]))
    if data[:1] != b"{":
        return raw
    fields = _OBJECT.decode(data)
    if shape.kinds:
        shape = shape.kinds.get(bytes(fields.get("type", NULL)), shape)
    found: dict[str, msgspec.Raw] = {}
    for name, value in fields.items():
        if value == NULL:
            if name in shape.nullable:
                found[name] = value
        elif (inner := shape.inner.get(name)) is not None:
            found[name] = shaped(value, inner)
        else:
            found[name] = value
    for name, value in shape.always.items():
        found.setdefault(name, value)
    return msgspec.Raw(msgspec.json.encode(found))


def fitted(data: bytes, whole: Shape, of_event: Callable[[bytes], Shape | None]) -> bytes:
    """An answer, or whole events of one. `of_event`: the shape of an event of this name; None: it is right as it is."""
    if not data.startswith(_EVENT):
        return bytes(shaped(msgspec.Raw(data), whole)) if data.startswith(b"{") else data
    return b"\n\n".join([_event(one, of_event) for one in data.split(b"\n\n")])


def _event(event: bytes, of_event: Callable[[bytes], Shape | None]) -> bytes:
    name, found, data = event.removeprefix(_EVENT).partition(_DATA)
    shape = of_event(name) if found else None
    return event if shape is None else _EVENT + name + _DATA + bytes(shaped(msgspec.Raw(data), shape))
