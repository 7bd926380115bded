"""Turn a YAML document into a recipe, or report all its faults and what to write instead."""

import copy
import difflib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from registry import vllm_source
from registry.base.wording import quoted
from registry.names import MODEL_RULE, NAME_RULE
from registry.recipes.definition import Recipe, Task
from registry.recipes.fields import POOL_PATTERN, Strict
from registry.recipes.provider import Provider
from registry.recipes.router import HEADER_PATTERN, LABEL_PATTERN, RouterSpec
from registry.recipes.yaml_nodes import Document, Fault

PARSER_TABLES = {
    "tool_call_parser": ("tool_parser_plugin", "tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER"),
    "reasoning_parser": ("reasoning_parser_plugin", "reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER"),
}
"""Flag to the flag of a plug-in that may add parsers, and the file and name of vLLM's own table."""


def parser_faults(recipe: object) -> Iterator[tuple[str, str]]:
    """Yield key and fault of each flag with a parser that vLLM does not have.

    recipe: as plain values, which need not be valid.
    """
    match recipe:
        case {"engine": {"name": "vllm", "flags": Mapping() as flags}}:
            pass
        case _:
            return
    requested = {str(key).replace("-", "_"): (str(key), value) for key, value in flags.items()}
    for flag, (plugin, file, table) in PARSER_TABLES.items():
        key, name = requested.get(flag, ("", None))
        known_parsers = parsers(file, table)
        if not isinstance(name, str) or not known_parsers or name in known_parsers or plugin in requested:
            continue
        close = difflib.get_close_matches(name, known_parsers, n=1)
        hint = f"write '{close[0]}', or another one of" if close else "write one of"
        yield key, f"'engine.flags.{key}' cannot be '{name}'; {hint}: {', '.join(known_parsers)}"


@cache
def parsers(file: str, table: str) -> tuple[str, ...]:
    """Return the names in one of vLLM's tables, sorted; none if it is not found."""
    return tuple(sorted(vllm_source.table(file, table)))


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
    "connect", "first_byte", "between_bytes", "whole", "stay",
)  # fmt: skip

MARKS = ("<path>", "<package>", "<hub>", "<file>")
"""Marks that pydantic puts after 'source' for the kind of source that it read."""
KEY = "[key]"
"""Mark that pydantic puts after a key that is wrong itself."""
RULES: Mapping[str, str] = {
    HEADER_PATTERN: "write 1 to 64 lower-case letters, digits or '-'",
    POOL_PATTERN: "write 1 to 32 lower-case letters, digits, '_' or '-', and begin with a letter",
    LABEL_PATTERN: "write it without blanks",
}
"""Patterns of headers, pools and labels, in words."""

ADVICE: Mapping[str, str] = {
    **dict.fromkeys(("literal_error", "enum"), "write {expected}"),
    **dict.fromkeys(("byte_size", "byte_size_unit"), "write a size such as 512MiB or 4GB"),
    "string_type": "write text, in quotes if it looks like a number or a date",
    "string_too_long": "write {max_length} characters or fewer",
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "write a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "write a number"),
    "finite_number": "write a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "write true or false"),
    "greater_than_equal": "write {ge} or more",
    "greater_than": "write more than {gt}",
    "less_than_equal": "write {le} or less",
    "less_than": "write less than {lt}",
    **dict.fromkeys(("tuple_type", "list_type"), "write a list, such as [a, b]"),
}
"""Advice for a wrong value, by pydantic's type of the error; its limits are in braces."""

# The key to point at, for faults found by a check of a whole mapping.
POINTS: Mapping[str, Loc] = {
    "engine_task": ("engine", "name"),
    "adapters_places": ("adapters",),
    "adapter_places": ("memory", "adapters", "host"),
    "window_padded": ("window", "padded"),
    "window_task": ("window",),
    "truncate_task": ("truncate",),
    "system_task": ("system",),
    "stop_task": ("stop",),
    "former_flag": ("engine", "flags"),
    "parallel_task": ("parallel",),
    "parallel_sleep": ("residency", "sleep"),
    "parallel_adapters": ("parallel",),
    "provider_http": ("base_url",),
    "provider_models": ("models",),
    "provider_task": ("models",),
}


VLLM_FIELDS: Mapping[str, str] = {
    "model": "source",
    "served_model_name": "id",
    "revision": "source.revision",
    "dtype": "dtype",
    "max_model_len": "context_length",
    "max_num_seqs": "batching.max_requests",
    "max_num_batched_tokens": "batching.max_tokens",
    "kv_cache_memory_bytes": "memory.kv_cache",
    "gpu_memory_utilization": "memory.kv_cache",
    "enable_lora": "memory.adapters.device",
    "max_loras": "memory.adapters.device",
    "max_cpu_loras": "memory.adapters.host",
    "max_lora_rank": "memory.adapters.max_rank",
    "lora_modules": "adapters",
    "enable_sleep_mode": "residency.sleep",
    "tensor_parallel_size": "parallel.tensor",
    "pipeline_parallel_size": "parallel.pipeline",
    "data_parallel_size": "parallel.data",
}
"""vLLM's flags that are fields of a recipe, and these fields."""
FOREIGN_KEYS: Mapping[str, str] = {
    **{name: f"vLLM's '{name}' is '{field}' here" for name, field in VLLM_FIELDS.items() if name != field},
    "parameters": "defaults of sampling go below 'engine.flags': {override_generation_config: {temperature: 0.2}}",
    "template": "a chat template is a file in Jinja, below 'engine.flags': {chat_template: FILE}",
    "num_ctx": "Ollama's 'num_ctx' is 'context_length' here",
    "system_prompt": "LocalAI's 'system_prompt' is 'system' here",
    "stopwords": "LocalAI's 'stopwords' is 'stop' here",
    "auto_truncate": "Text Embeddings Inference's 'auto_truncate' is 'truncate' here",
    "device": "the device is a setting of the server: roundhouse serve --device",
    "host": "the address is a setting of the server: roundhouse serve --host",
    "port": "the port is a setting of the server: roundhouse serve --port",
}
"""Settings of other servers, and where they go in a recipe."""


OF_SOURCES: Mapping[str, str] = {"inside": "package", "revision": "hub", "file": "hub"}
"""Keys of a source that go with another one."""
SECRETS = ("api_key", "key", "token", "secret")


def clean_loc(error: ErrorDetails) -> Loc:
    """Return keys and list positions of a fault, without pydantic's marks for unions."""
    location = error["loc"]
    loc = tuple(p for i, p in enumerate(location) if p != KEY and not (p in MARKS and location[i - 1] == "source"))
    if loc[:2] == ("engine", "flags"):
        loc = loc[:3]
    return POINTS.get(error["type"], loc)


def words(error: ErrorDetails, schema: type[BaseModel] = Recipe) -> str:
    """Describe a fault, and what to write instead."""
    loc, kind, value = clean_loc(error), error["type"], quote_value(error["input"])
    path = _dotted(loc)
    limits = error.get("ctx", {})
    key = loc[-1] if loc else ""
    if loc[:2] == ("engine", "flags") and len(loc) == 3:
        return f"'{path}' cannot be {value}; write true or false, a number, text, a list of texts, or keys and values"
    if key in DURATIONS and kind not in ("greater_than", "greater_than_equal", "extra_forbidden"):
        return f"'{path}' cannot be {value}; write a duration such as 30s, 10m or 2h"
    if key == "key_env" and kind != "extra_forbidden":
        return (
            f"'{path}' is not the name of a variable; write one such as OPENAI_API_KEY: "
            "the key itself is never written into a recipe"
        )
    if advice := ADVICE.get(kind):
        return f"'{path}' cannot be {value}; {advice.format(**limits)}"
    match kind:
        case "extra_forbidden":
            return _unknown_key(loc, schema)
        case "missing":
            example = EXAMPLES.get(path) or EXAMPLES.get(str(key)) or f"{key}: ..."
            return f"'{path}' is missing; write '{example}'"
        case "string_pattern_mismatch":
            pattern = str(limits["pattern"])
            rule = RULES.get(pattern) or (MODEL_RULE if "/" in pattern else NAME_RULE)
            return f"'{path}' cannot be {value}; {rule}"
        case "string_too_short":
            return f"'{path}' is empty; write its text"
        case "too_short":
            return f"'{path}' is an empty list; name at least {limits['min_length']}, or leave it out"
        case "too_long":
            return f"'{path}' has too many entries; write {limits['max_length']} or fewer"
        case "model_type" | "dict_type":
            if not loc:
                return f"a recipe cannot be {value}; write keys and values, beginning with 'id: my-model'"
            if path in EXAMPLES:
                return f"'{path}' cannot be {value}; write it with its keys, such as '{EXAMPLES[path]}'"
            left_out = "it" if isinstance(key, int) else f"'{key}'"
            return f"'{path}' cannot be {value}; write its keys below it, or leave {left_out} out"
        case _:  # our own checks say what to write
            return f"'{path}': {error['msg']}" if path else error["msg"]


def _unknown_key(loc: Loc, schema: type[BaseModel]) -> str:
    key, here = str(loc[-1]), _dotted(loc[:-1])
    if key in SECRETS:
        return f"unknown key '{_dotted(loc)}'; write 'key_env', the name of the environment variable that holds the key"
    models = dict(_models(schema, ""))
    known_keys, plain = _known_keys(models, loc[:-1]), key.replace("-", "_")
    if key in known_keys and key in OF_SOURCES:
        return f"unknown key '{_dotted(loc)}'; it goes with '{OF_SOURCES[key]}'"
    is_ours = any(key in model.model_fields for model in models.values())
    if schema is Recipe and plain in FOREIGN_KEYS and not (is_ours and here not in ("", "engine")):
        return f"unknown key '{_dotted(loc)}'; {FOREIGN_KEYS[plain]}"
    if schema is Recipe and not is_ours and plain in vllm_source.serve_flags():
        return f"unknown key '{_dotted(loc)}'; vLLM's '{plain}' goes below 'engine.flags'"
    if close := difflib.get_close_matches(key.lower(), known_keys, n=1):
        return f"unknown key '{_dotted(loc)}'; write '{close[0]}'"
    for where, model in models.items():
        if key in model.model_fields and where != here:
            return f"unknown key '{_dotted(loc)}'; write it {_below(where)}"
    for where, model in models.items():
        if close := difflib.get_close_matches(key, model.model_fields, n=1, cutoff=0.8):
            return f"unknown key '{_dotted(loc)}'; write '{close[0]}' {_below(where)}"
    position = f"below '{here}'" if here else "here"
    return f"unknown key '{_dotted(loc)}'; the keys {position} are {', '.join(known_keys)}"


def _below(where: str) -> str:
    return f"below '{where}'" if where else "at the top level"


def _known_keys(models: Mapping[str, type[BaseModel]], loc: Loc) -> list[str]:
    """Return the keys of the mapping at `loc`; for a source, those of all kinds."""
    where = _dotted(tuple(part for part in loc if isinstance(part, str)))
    if where.endswith("source"):
        return ["path", "package", "inside", "hub", "revision", *(["file"] if where == "source" else [])]
    model = models.get(where) or models.get(where.rpartition(".")[0])  # below a name that the file chooses, as in pools
    return list(model.model_fields) if model else []


def _models(model: type[BaseModel], where: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield every mapping of a recipe, with its path of keys."""
    yield where, model
    for name, field in model.model_fields.items():
        inner = [field.annotation, *get_args(field.annotation)]
        if name != "source":
            for kind in inner:
                if isinstance(kind, type) and issubclass(kind, BaseModel):
                    yield from _models(kind, f"{where}.{name}".lstrip("."))


def _dotted(loc: Loc) -> str:
    """Write ('adapters', 0, 'name') as adapters[0].name."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")


def quote_value(value: object) -> str:
    """Quote a value for a fault."""
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


MODEL = "model"
KINDS: Mapping[str, type[Strict]] = {MODEL: Recipe, "provider": Provider, "router": RouterSpec}


def kind_of(data: object) -> object:
    """Return the kind that the document states. A document that is not a mapping counts as a model."""
    return data.get("kind", MODEL) if isinstance(data, dict) else MODEL


def schema_of(data: object) -> type[Strict] | None:
    """Return the schema of the document's kind, or None if there is no such kind."""
    kind = kind_of(data)
    return KINDS.get(kind) if isinstance(kind, str) else None


# Valid values that replace bad ones, so that later checks run too. Line numbers do not change.
STAND_INS: dict[str, object] = {
    "id": "x",
    "version": 1,
    "source": {"path": "x"},
    "path": "x",
    "package": "x",
    "hub": "x",
    "revision": "x",
    "aliases": "x",
    "adapters": {"name": "x", "source": {"path": "x"}},
    "name": "x",
}
_LISTS = ("aliases", "adapters")
PASSES = 6


def foreign_file(data: object) -> str | None:
    """Return what is wrong with a document that is another server's configuration; None if it is not."""
    match data:
        case {"model_list": _}:
            server, section = "LiteLLM's proxy", "from-litellms-proxy"
        case {"model_specs": _}:
            server, section = "Xinference", "from-xinference"
        case [{"name": _, "parameters": _} | {"name": _, "backend": _}, *_]:
            server, section = "LocalAI", "from-localai"
        case {"name": _, "parameters": _} | {"name": _, "backend": _}:
            server, section = "LocalAI", "from-localai"
        case {"model": str(), **others} if not {"id", "source"} & others.keys():
            server, section = "vllm serve", "from-vllm-serve"
        case str() if re.match(r"\s*FROM\s", data, re.IGNORECASE):
            server, section = "Ollama", "from-ollama"
        case _:
            return None
    return f"this is a configuration of {server}; docs/migrate.md#{section} says what to write instead"


def validate(document: Document) -> tuple[Strict | None, list[Fault]]:
    """Return the described object, or None and the faults in the order of the file."""
    if foreign := foreign_file(document.data):
        return None, [document.fault((), foreign)]
    schema = schema_of(document.data)
    if schema is None:
        text = f"'kind' cannot be {quote_value(kind_of(document.data))}; write one of: {', '.join(KINDS)}"
        return None, [document.fault(("kind",), text)]
    data = copy.deepcopy(document.data)
    if isinstance(data, dict):
        data.pop("kind", None)
    return _model(document, data) if schema is Recipe else _other(document, data, schema)


def _errors(refused: ValidationError) -> list[ErrorDetails]:
    """Return pydantic's errors, without those that follow from others: it counts only the valid entries of a list."""
    return [
        error
        for error in refused.errors(include_url=False)
        if error["type"] != "invalid_key"
        and not (error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"])
    ]


def _other(document: Document, data: Any, schema: type[Strict]) -> tuple[Strict | None, list[Fault]]:
    try:
        return schema.model_validate(data), []
    except ValidationError as refused:
        errors = _errors(refused)
        faults = dict.fromkeys(document.fault(clean_loc(e), words(e, schema)) for e in errors)
        return None, sorted(faults, key=lambda fault: fault.line)


def _model(document: Document, data: Any) -> tuple[Recipe | None, list[Fault]]:
    """Validate the recipe of a model.

    Pydantic checks a mapping as a whole only after all its fields are valid. So bad fields are replaced and the
    document is checked again, until there are no new faults.
    """
    of_parsers = (document.fault(("engine", "flags", key), text) for key, text in parser_faults(document.data))
    faults: dict[Fault, None] = dict.fromkeys(of_parsers)
    for _ in range(PASSES):
        try:
            recipe = Recipe.model_validate(data)
        except ValidationError as refused:
            errors = _errors(refused)
            faults |= {document.fault(clean_loc(e), words(e)): None for e in errors}
            if not isinstance(data, dict):
                break
            mended = [_mend(data, e) for e in errors]
            if not all(mended):
                break
            _fill_gaps(data, {str(clean_loc(e)[0]) for e in errors})
        else:
            if not faults:
                return recipe, []
            break
    return None, sorted(faults, key=lambda fault: fault.line)


def _mend(data: dict[str, Any], error: ErrorDetails) -> bool:
    """Replace or remove the value at fault. Returns False if that is not possible."""
    loc = clean_loc(error)
    parent = _at(data, loc[:-1])
    if not loc or not isinstance(parent, dict | list):
        return False
    key, name = loc[-1], next((str(part) for part in reversed(loc) if isinstance(part, str)), "")
    stand_in = None if loc[:-1] == ("engine",) else STAND_INS.get(name)
    if isinstance(parent, list):
        if not isinstance(key, int) or key >= len(parent) or stand_in is None:
            return False
        parent[key] = copy.deepcopy(stand_in)
        return True
    if error["type"] == "adapter_places":
        parent["host"] = parent["device"]
    elif stand_in is not None and name not in _LISTS and error["type"] != "extra_forbidden":
        parent[key] = copy.deepcopy(stand_in)
    else:
        parent.pop(key, None)
    return True


def _fill_gaps(data: dict[str, Any], mended: set[str]) -> None:
    """Fill in removed parts, so that they cause no faults of their own."""
    engine = data.setdefault("engine", {})
    name = engine.get("name")
    task = data.setdefault("task", next((task.value for task in Task if name in task.engines), Task.CHAT.value))
    engine.setdefault("name", Task(task).engines[0])
    if "memory" in mended:  # what needs places has been checked by now, but the places may be gone
        data.pop("adapters", None)
        if isinstance(batching := data.get("batching"), dict):
            batching.pop("tokens_while_swapping", None)


def _at(data: Any, loc: Loc) -> object:
    for part in loc:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data
