"""Every key of a recipe or a provider, from the pydantic models. Raises ValueError for one without a description."""

from collections.abc import Iterator, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le, MinLen
from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo

from docs.tables.markdown import code, size, table
from docs.tables.words import PROVIDER, RECIPE
from registry.recipes.definition import Recipe
from registry.recipes.fields import Seconds
from registry.recipes.provider import Provider

_DURATION = get_args(Seconds)[1]
_SIMPLE = {str: "text", bool: "true or false", int: "whole number", float: "number", ByteSize: "bytes: `512MiB`, `4GB`"}


def fields() -> str:
    """Return the keys of a recipe."""
    return _keys(Recipe, RECIPE)


def provider() -> str:
    """Return the keys of a provider's document."""
    return _keys(Provider, PROVIDER)


def _keys(model: type[BaseModel], words: Mapping[str, str]) -> str:
    """Return key, type, default and meaning. `words` describes fields without a description of their own."""
    left = dict(words)
    rows = []
    for name, field in walk(model):
        reported, ours = field.description, left.pop(name, None)
        if (reported is None) == (ours is None):
            raise ValueError(f"{name}: describe it once, in registry/recipes or in docs/tables/words.py")
        rows.append(
            (code(name), kind(field.annotation, field.metadata), default(field), _sentence(reported or ours or ""))
        )
    if left:
        raise ValueError(f"docs/tables/words.py describes fields that do not exist: {', '.join(left)}")
    return table(("key", "type", "default", "meaning"), rows)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def walk(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield the fields in order, those of nested models by their full key."""
    for name, field in model.model_fields.items():
        inner = list(dict.fromkeys(_models(field.annotation)))
        kind_of = get_origin(_bare(field.annotation))
        many = kind_of is tuple
        if not inner or many or len(inner) > 1:
            yield prefix + name, field
        deeper = prefix + name + ("[]." if many else ".NAME." if kind_of is dict else ".")
        if not (many and len(inner) > 1):
            # the source of an adapter is like the model's own, and kinds of source share keys
            found = {n: f for one in reversed(inner) for n, f in reversed([*walk(one, deeper)])}
            yield from ((n, f) for n, f in reversed(found.items()) if not n.startswith("adapters[].source."))


def _bare(annotation: Any) -> Any:
    """Strip Annotated from a type."""
    return _bare(get_args(annotation)[0]) if get_origin(annotation) is Annotated else annotation


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    bare = _bare(annotation)
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        yield bare
    for part in get_args(bare):
        yield from _models(part)


def kind(annotation: Any, metadata: list[Any]) -> str:
    """A type in words, with its limits."""
    bare, more = _bare(annotation), list(metadata)
    if get_origin(annotation) is Annotated:
        more += get_args(annotation)[1:]
    more += [m for one in more if isinstance(one, FieldInfo) for m in one.metadata]
    if any(one is _DURATION for one in more):
        return "duration: `30s`, `10m`, `2h`"
    if get_origin(bare) in (Union, UnionType):
        parts = [part for part in get_args(bare) if part is not NoneType]
        if any(list(_models(part)) for part in parts):
            return "one of the three kinds below"
        return " or ".join(dict.fromkeys(kind(part, more) for part in parts))
    if get_origin(bare) is Literal:
        return "one of " + ", ".join(code(str(value)) for value in get_args(bare))
    if get_origin(bare) is tuple:
        inner = get_args(bare)[0]
        return "list" if list(_models(inner)) else f"list of {kind(inner, [])}"
    if get_origin(bare) is list:
        return f"list of {kind(get_args(bare)[0], [])}"
    if get_origin(bare) is dict:
        return "map"
    if isinstance(bare, type) and issubclass(bare, Enum):
        return "one of " + ", ".join(code(str(value.value)) for value in bare)
    return _SIMPLE[bare] + _limits(more, bare)


def _limits(metadata: list[Any], bare: Any) -> str:
    if bare is ByteSize:
        return ""
    low = next((m.ge for m in metadata if isinstance(m, Ge)), None)
    high = next((m.le for m in metadata if isinstance(m, Le)), None)
    if low is not None and high is not None:
        return f", {low} to {high}"
    if low is not None:
        return f", {low} or more"
    return ", not empty" if any(isinstance(m, MinLen) for m in metadata) else ""


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value in ("", (), {}):
        return "none"
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, ByteSize):
        return size(value)
    if isinstance(value, tuple):
        return ", ".join(map(code, value))
    if any(one is _DURATION for one in field.metadata):
        return f"{value:g} s"
    return code(str(value.value if isinstance(value, Enum) else value))
