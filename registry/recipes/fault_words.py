"""What is wrong in a recipe, in words that say what to write instead."""

import difflib
from collections.abc import Iterator, Mapping
from typing import get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from registry.base.wording import quoted
from registry.names import MODEL_RULE, NAME_RULE
from registry.recipes.definition import Recipe

Loc = tuple[int | str, ...]

EXAMPLES: Mapping[str, str] = {
    "id": "id: my-model",
    "version": "version: 1",
    "task": "task: chat",
    "source": "source: {path: my-folder}",
    "engine": "engine: {name: vllm}",
    "engine.name": "name: vllm",
    "name": "name: my-adapter",
    "revision": "revision: main",
    "protocol": "protocol: openai",
    "base_url": "base_url: https://api.example.com/v1",
    "models": "models: [{name: a-model}]",
}
DURATIONS = (
    "idle_timeout", "sleep_timeout", "min_resident", "drain_deadline", "max_wait",
    "connect", "first_byte", "between_bytes", "whole",
)  # fmt: skip

MARKS = ("<path>", "<package>", "<hub>")
"""Behind 'source', pydantic tells which kind of source it read."""

# Faults that a check of a whole mapping found: the key to point at.
POINTS: Mapping[str, Loc] = {
    "engine_task": ("engine", "name"),
    "adapters_places": ("adapters",),
    "adapter_places": ("memory", "adapters", "host"),
    "window_padded": ("window", "padded"),
    "window_task": ("window",),
    "provider_http": ("base_url",),
    "provider_models": ("models",),
    "provider_task": ("models",),
}


FOREIGN_KEYS: Mapping[str, str] = {
    **{
        name: f"vLLM's '{name}' is '{ours}' here"
        for name, ours in (
            ("model", "source"), ("max_model_len", "context_length"), ("max_num_seqs", "batching.max_requests"),
            ("max_num_batched_tokens", "batching.max_tokens"), ("kv_cache_memory_bytes", "memory.kv_cache"),
            ("served_model_name", "aliases"), ("max_loras", "memory.adapters.device"),
            ("max_cpu_loras", "memory.adapters.host"), ("max_lora_rank", "memory.adapters.max_rank"),
            ("enable_lora", "memory.adapters.device"), ("lora_modules", "adapters"),
            ("gpu_memory_utilization", "memory.kv_cache', in bytes: '--device-memory"),
        )
    },
    **{
        name: f"vLLM's '{name}' goes below 'engine.flags'"
        for name in ("tool_call_parser", "reasoning_parser", "chat_template", "enable_auto_tool_choice", "quantization",
                     "tensor_parallel_size")
    },
    "num_ctx": "Ollama's 'num_ctx' is 'context_length' here",
    "device": "which device is the server's to know: roundhouse serve --device",
    "host": "where to listen is the server's to know: roundhouse serve --host",
    "port": "where to listen is the server's to know: roundhouse serve --port",
}  # fmt: skip
"""Keys of other servers' settings, and where they go."""


SECRETS = ("api_key", "key", "token", "secret")


def clean_loc(error: ErrorDetails) -> Loc:
    """The keys and list positions that lead to the fault, without pydantic's marks for kinds of a union."""
    location = error["loc"]
    loc = tuple(p for i, p in enumerate(location) if not (p in MARKS and location[i - 1] == "source"))
    if loc[:2] == ("engine", "flags"):
        loc = loc[:3]
    return POINTS.get(error["type"], loc)


def words(error: ErrorDetails, schema: type[BaseModel] = Recipe) -> str:
    """One fault, with what to write instead."""
    loc, kind, value = clean_loc(error), error["type"], quote_value(error["input"])
    path = _dotted(loc)
    limits = error.get("ctx", {})
    key = loc[-1] if loc else ""
    if loc[:2] == ("engine", "flags") and len(loc) == 3:
        return f"'{path}' cannot be {value}; write true or false, a number, text, or a list of texts"
    if key in DURATIONS and kind not in ("greater_than", "greater_than_equal", "extra_forbidden"):
        return f"'{path}' cannot be {value}; write a duration such as 30s, 10m or 2h"
    if key == "key_env" and kind != "extra_forbidden":
        return (
            f"'{path}' is no name of a variable; write one such as OPENAI_API_KEY: "
            "the key itself is never written into a recipe"
        )
    match kind:
        case "extra_forbidden":
            return _unknown_key(loc, schema)
        case "missing":
            example = EXAMPLES.get(path) or EXAMPLES.get(str(key)) or f"{key}: ..."
            return f"'{path}' is missing; write '{example}'"
        case "literal_error" | "enum":
            return f"'{path}' cannot be {value}; write {limits['expected']}"
        case "byte_size" | "byte_size_unit":
            return f"'{path}' cannot be {value}; write a size such as 512MiB or 4GB"
        case "string_pattern_mismatch":
            return f"'{path}' cannot be {value}; {MODEL_RULE if '/' in str(limits['pattern']) else NAME_RULE}"
        case "string_type":
            return f"'{path}' cannot be {value}; write text, in quotes if it looks like a number or a date"
        case "string_too_short":
            return f"'{path}' is empty; write its text"
        case "int_type" | "int_parsing" | "int_from_float":
            return f"'{path}' cannot be {value}; write a whole number"
        case "float_type" | "float_parsing" | "finite_number":
            return f"'{path}' cannot be {value}; write a number"
        case "bool_type" | "bool_parsing":
            return f"'{path}' cannot be {value}; write true or false"
        case "greater_than_equal":
            return f"'{path}' cannot be {value}; write {limits['ge']} or more"
        case "greater_than":
            return f"'{path}' cannot be {value}; write more than {limits['gt']}"
        case "less_than_equal":
            return f"'{path}' cannot be {value}; write {limits['le']} or less"
        case "model_type" | "dict_type":
            if not loc:
                return f"a recipe cannot be {value}; write keys and values, beginning with 'id: my-model'"
            if path in EXAMPLES:
                return f"'{path}' cannot be {value}; write it with its keys, such as '{EXAMPLES[path]}'"
            left_out = "it" if isinstance(key, int) else f"'{key}'"
            return f"'{path}' cannot be {value}; write its keys below it, or leave {left_out} out"
        case "tuple_type" | "list_type":
            return f"'{path}' cannot be {value}; write a list, such as [a, b]"
        case _:  # our own checks say what to write
            return f"'{path}': {error['msg']}" if path else error["msg"]


def _unknown_key(loc: Loc, schema: type[BaseModel]) -> str:
    key, here = str(loc[-1]), _dotted(loc[:-1])
    if key in SECRETS:
        return f"unknown key '{_dotted(loc)}'; write 'key_env', the name of the environment variable that holds the key"
    if schema is Recipe and key in FOREIGN_KEYS:
        return f"unknown key '{_dotted(loc)}'; {FOREIGN_KEYS[key]}"
    models = dict(_models(schema, ""))
    known_keys = _known_keys(models, loc[:-1])
    if close := difflib.get_close_matches(key, known_keys, n=1):
        return f"unknown key '{_dotted(loc)}'; write '{close[0]}'"
    for where, model in models.items():
        if key in model.model_fields and where not in ("", here):
            return f"unknown key '{_dotted(loc)}'; write it below '{where}'"
    for where, model in models.items():
        if close := difflib.get_close_matches(key, model.model_fields, n=1, cutoff=0.8):
            return f"unknown key '{_dotted(loc)}'; write '{close[0]}' below '{where}'"
    position = f"below '{here}'" if here else "here"
    return f"unknown key '{_dotted(loc)}'; the keys {position} are {', '.join(known_keys)}"


def _known_keys(models: Mapping[str, type[BaseModel]], loc: Loc) -> list[str]:
    """Keys of the mapping at `loc`; for a source those of all its kinds."""
    where = _dotted(tuple(part for part in loc if isinstance(part, str)))
    if where.endswith("source"):
        return ["path", "package", "inside", "hub", "revision"]
    return list(models[where].model_fields) if where in models else []


def _models(model: type[BaseModel], where: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every mapping of a recipe, with the keys that lead to it."""
    yield where, model
    for name, field in model.model_fields.items():
        inner = [field.annotation, *get_args(field.annotation)]
        if name != "source":
            for kind in inner:
                if isinstance(kind, type) and issubclass(kind, BaseModel):
                    yield from _models(kind, f"{where}.{name}".lstrip("."))


def _dotted(loc: Loc) -> str:
    """('adapters', 0, 'name') as adapters[0].name."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")


def quote_value(value: object) -> str:
    """A value as faults quote it."""
    if value is None:
        return "empty"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping of keys"
    if isinstance(value, list | tuple):
        return "a list"
    return str(value)[:100]
