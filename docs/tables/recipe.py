"""Every key of a recipe or a provider, from the pydantic models. Raises ValueError for one without a description."""

from collections.abc import Iterator, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from docs.tables.markdown import code, size, table
from registry.byte_size import ByteSize
from registry.recipes.definition import Recipe
from registry.recipes.fields import Seconds
from registry.recipes.provider import Provider

_DURATION = get_args(Seconds)[1]
_SIMPLE = {str: "text", bool: "true or false", int: "whole number", float: "number", ByteSize: "bytes: `512MiB`, `4GB`"}

RECIPE: Mapping[str, str] = {
    "id": "The model's name in requests: 1 to 128 letters, digits, `.`, `_`, `-`, `/`, `:`.",
    "task": "What the model does; it decides which endpoints take it.",
    "source": "Where the weights are.",
    "source.path": "A folder on this machine. A relative path starts at the recipe file's folder.",
    "source.package": "An installed Python package that carries the weights.",
    "source.inside": "The folder inside that package.",
    "source.hub": "A repository on a model hub.",
    "source.file": "One GGUF file of that repository, for chat; it is converted to bfloat16.",
    "source.revision": "Its revision: a commit, or a tag or branch, which is resolved to one.",
    "engine.name": "The library that runs it: `vllm` for chat, `sentence-transformers` for embed and rerank, "
    "`faster-whisper` for transcribe.",
    "engine.flags": "The engine's own flags by their own names, such as `tool_call_parser` of `vllm serve`. Flags with "
    "their own key in a recipe, and flags that would break the server's control of a slot, are refused.",
    "dtype": "Number format of the computation. auto: the engine's choice, but float32 for small chat models on CPUs "
    "that emulate bfloat16, and on a GPU float16 for speech, and for embedding and rerank models stored in float32 "
    "whose answers it does not change.",
    "context_length": "Longest input in tokens (chat: including the answer). None: the model's own limit.",
    "memory.kv_cache": "Bytes for the KV cache of a chat model. None: room for 8 full contexts, at most 4 GiB.",
    "memory.adapters.device": "LoRA adapters that can answer in one batch. 0: the model takes no adapters.",
    "memory.adapters.host": "Adapters kept ready in host memory, including those in places.",
    "memory.adapters.max_rank": "Largest rank that fits into a place.",
    "memory.adapters.on_demand": "Requests may name adapters by a hub's id or an address, which registers them.",
    "memory.adapters.arena": "On a GPU: stage adapters in one piece of pinned memory, in blocks of `max_rank`, instead "
    "of separate blocks whose size is a power of two. Not yet tried on a GPU.",
    "batching.max_requests": "Requests (chat: sequences) in one step of the engine.",
    "batching.max_tokens": "Tokens in one step of the engine; for speech, seconds of its windows, including padding.",
    "queue.max_waiting": "Requests that may wait for this model. More are refused with 429.",
    "queue.max_wait": "Longest wait of a request, which then gets a 503.",
    "residency.pin": "Never evict the model. `PUT`/`DELETE /v1/models/{id}/pin` overrides this and is remembered.",
    "residency.drain_deadline": "How long running requests may continue when the model leaves. Then they end with an "
    "error event.",
    "residency.preload": "Load at start.",
    "aliases": "Further names of the model.",
    "adapters": "Adapters to register at start if their name does not exist yet.",
    "adapters[].name": "1 to 64 letters, digits, `.`, `_`, `-`.",
    "adapters[].source": "As `source` of the model.",
    "adapters[].pin": "Keep it in its place.",
    "expected.load_seconds": "Expected seconds of a load, until one has been measured.",
    "expected.resident": "Bytes of the loaded model on the machine where the recipe was measured.",
    "expected.tokens_per_second": "Output tokens a second on that machine.",
    "expected.note": "Which machine, and how it was measured.",
    "description": "Shown by `GET /v1/models`.",
    "owned_by": "Shown by `GET /v1/models`.",
}
"""Meanings of keys without a description of their own."""
PROVIDER: Mapping[str, str] = {
    "id": "The prefix of its models' names.",
    "protocol": "Whose API it speaks.",
    "models": "Its models.",
    "models[].aliases": "Further names here.",
    "models[].task": "What the model does.",
    "models[].context_length": "Context length in tokens (default: 32,768), whose price limits reserve.",
    "models[].abilities": "What its requests may contain besides text.",
    "models[].description": "Shown in lists.",
    "description": "A note for readers.",
}


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
            raise ValueError(f"{name}: describe it once, in registry/recipes or in docs/tables/recipe.py")
        rows.append(
            (code(name), kind(field.annotation, field.metadata), default(field), _sentence(reported or ours or ""))
        )
    if left:
        raise ValueError(f"docs/tables/recipe.py describes fields that do not exist: {', '.join(left)}")
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
