"""Fit the fields of objects to the shapes that vendors specify."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from cachetools import LRUCache

from registry.errors import BadRequest

NULL = msgspec.Raw(b"null")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECTS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_USUAL: LRUCache[tuple[object, bytes], msgspec.Raw] = LRUCache(4 << 20, lambda made: 2 * len(made))
"""Cache of fitted lists, by decoder and original bytes."""
_EVENT_NAME, _DATA = b"event: ", b"\ndata: "

Overrides = Mapping[str, msgspec.Raw]
"""Values by field that replace vLLM's in an answer, such as the model's name and the service class."""
NOTHING: Overrides = {}
OVERRIDDEN = frozenset({"model", "request_id", "service_tier"})
"""Fields that every vendor's answers may have overridden."""
Fault = Callable[[], BadRequest | None]
"""Explains a failure of the engine on demand; returns None if it is the engine's own fault."""


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """The shape of an object, or of each object of a list."""

    nullable: frozenset[str] = frozenset()
    """Fields that stay if they are null. All others are removed."""
    always: Mapping[str, msgspec.Raw] = field(default_factory=dict)
    """Fields that must be present, with their values if vLLM leaves them out."""
    overrides: frozenset[str] = frozenset()
    """Fields that `Overrides` replace if present."""
    inner: Mapping[str, "ObjectShape"] = field(default_factory=dict)
    kinds: Mapping[bytes, "ObjectShape"] = field(default_factory=dict)
    """Shapes to use instead of this one, by the JSON of the field `type`."""
    usual: msgspec.json.Decoder[Any] | None = None
    """Decodes a list of such objects into structs without nulls in half the time, but refuses unknown fields. For lists
    that clients make long.
    """
    removed: frozenset[str] = frozenset()
    """Fields that are removed whatever their value."""


def fit(data: msgspec.Raw | bytes, shape: ObjectShape, overrides: Overrides = NOTHING) -> Any:
    """Return an object to encode instead of `data`. One call for all objects, because calls dominate the cost."""
    match memoryview(data)[:1]:
        case b"[":
            if shape.usual is not None:
                return _fit_usual(bytes(data), shape)
            try:
                return [_fit_fields(item, shape, overrides) for item in _OBJECTS.decode(data)]
            except msgspec.ValidationError:  # a list of several kinds
                return [fit(one, shape, overrides) for one in _LIST.decode(data)]
        case b"{":
            return _fit_fields(_OBJECT.decode(data), shape, overrides)
        case _:
            return data


def _fit_usual(data: bytes, shape: ObjectShape) -> msgspec.Raw:
    """Fit a list that a client sends with each request and that several events of each answer repeat."""
    assert shape.usual is not None
    if (known := _USUAL.get((shape.usual, data))) is None:
        try:
            shaped_list = shape.usual.decode(data)
        except msgspec.ValidationError:
            shaped_list = fit(data, replace(shape, usual=None))
        known = msgspec.Raw(msgspec.json.encode(shaped_list))
        with suppress(ValueError):  # larger than the cache
            _USUAL[shape.usual, data] = known
    return known


def _fit_fields(fields: dict[str, Any], shape: ObjectShape, overrides: Overrides) -> dict[str, Any]:
    if shape.kinds:
        shape = shape.kinds.get(bytes(fields.get("type", NULL)), shape)
    result = {name: value for name, value in fields.items() if value != NULL or name in shape.nullable}
    for name in shape.removed & result.keys():
        del result[name]
    for name, inner in shape.inner.items():
        if (value := result.get(name, NULL)) != NULL:
            result[name] = fit(value, inner, overrides)
    for name, value in shape.always.items():
        result.setdefault(name, value)
    for name in shape.overrides & result.keys() & overrides.keys():
        result[name] = overrides[name]
    return result


def fit_events(
    data: bytes, whole: ObjectShape, of_event: Callable[[bytes], ObjectShape | None], overrides: Overrides
) -> bytes:
    """Fit a complete answer, or complete events. `of_event`: returns an event's shape by name; None for unchanged."""
    if not data.startswith(_EVENT_NAME):
        return msgspec.json.encode(fit(data, whole, overrides)) if data.startswith(b"{") else data
    return b"\n\n".join([_fit_event(one, of_event, overrides) for one in data.split(b"\n\n")])


def _fit_event(event: bytes, of_event: Callable[[bytes], ObjectShape | None], overrides: Overrides) -> bytes:
    name, separator, data = event.removeprefix(_EVENT_NAME).partition(_DATA)
    shape = of_event(name) if separator else None
    if shape is None:
        return event
    return _EVENT_NAME + name + _DATA + msgspec.json.encode(fit(msgspec.Raw(data), shape, overrides))
