"""JSON objects brought into a shape, without a look into what clients and models wrote: that stays byte for byte."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from cachetools import LRUCache

NULL = msgspec.Raw(b"null")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECTS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_USUAL: LRUCache[tuple[object, bytes], msgspec.Raw] = LRUCache(4 << 20, lambda made: 2 * len(made))
"""By who reads them: lists as they came, and what became of them."""
_EVENT, _DATA = b"event: ", b"\ndata: "

Overrides = Mapping[str, msgspec.Raw]
"""What stands in an answer in place of what vLLM wrote, by the field: the name of the model, the service class."""
_NOTHING: Overrides = {}


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """Of an object, or of each object of a list."""

    nullable: frozenset[str] = frozenset()
    """Fields that stay when they are null. All others go then."""
    always: Mapping[str, msgspec.Raw] = field(default_factory=dict)
    """Fields that are there in any case, and what they are where vLLM leaves them out."""
    overrides: frozenset[str] = frozenset()
    """Fields that hold what the call tells (`Overrides`), where they are there."""
    inner: Mapping[str, "ObjectShape"] = field(default_factory=dict)
    kinds: Mapping[bytes, "ObjectShape"] = field(default_factory=dict)
    """By the JSON of the field `type`: the shape in place of this one."""
    usual: msgspec.json.Decoder[Any] | None = None
    """Reads a list of such objects as structs that leave out what must not be null; refuses what it does not know. For
    lists that clients make long: half the time."""


def shaped(data: msgspec.Raw | bytes, shape: ObjectShape, overrides: Overrides = _NOTHING) -> Any:
    """What is to be encoded in place of `data`: all of it at once, since a call for each object is what costs."""
    match memoryview(data)[:1]:
        case b"[":
            if shape.usual is not None:
                return _usual(bytes(data), shape)
            try:
                return [_fields(item, shape, overrides) for item in _OBJECTS.decode(data)]
            except msgspec.ValidationError:  # of several kinds
                return [shaped(one, shape, overrides) for one in _LIST.decode(data)]
        case b"{":
            return _fields(_OBJECT.decode(data), shape, overrides)
        case _:
            return data


def _usual(data: bytes, shape: ObjectShape) -> msgspec.Raw:
    """A client sends the same list with each request, and finds it in several events of each answer."""
    assert shape.usual is not None
    if (known := _USUAL.get((shape.usual, data))) is None:
        try:
            shaped_list = shape.usual.decode(data)
        except msgspec.ValidationError:
            shaped_list = shaped(data, replace(shape, usual=None))
        known = msgspec.Raw(msgspec.json.encode(shaped_list))
        with suppress(ValueError):  # larger than all that is kept
            _USUAL[shape.usual, data] = known
    return known


def _fields(fields: dict[str, Any], shape: ObjectShape, overrides: Overrides) -> dict[str, Any]:
    if shape.kinds:
        shape = shape.kinds.get(bytes(fields.get("type", NULL)), shape)
    result = {name: value for name, value in fields.items() if value != NULL or name in shape.nullable}
    for name, inner in shape.inner.items():
        if (value := result.get(name, NULL)) != NULL:
            result[name] = shaped(value, inner, overrides)
    for name, value in shape.always.items():
        result.setdefault(name, value)
    for name in shape.overrides & result.keys() & overrides.keys():
        result[name] = overrides[name]
    return result


def fitted(
    data: bytes, whole: ObjectShape, of_event: Callable[[bytes], ObjectShape | None], overrides: Overrides
) -> bytes:
    """An answer, or whole events of one. `of_event`: the shape of an event of this name; None: it is right as it is."""
    if not data.startswith(_EVENT):
        return msgspec.json.encode(shaped(data, whole, overrides)) if data.startswith(b"{") else data
    return b"\n\n".join([_event(one, of_event, overrides) for one in data.split(b"\n\n")])


def _event(event: bytes, of_event: Callable[[bytes], ObjectShape | None], overrides: Overrides) -> bytes:
    name, separator, data = event.removeprefix(_EVENT).partition(_DATA)
    shape = of_event(name) if separator else None
    if shape is None:
        return event
    return _EVENT + name + _DATA + msgspec.json.encode(shaped(msgspec.Raw(data), shape, overrides))
