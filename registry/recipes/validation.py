"""One YAML document to a recipe, with every fault in it and not only those that are seen first."""

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from registry.recipes.definition import Recipe
from registry.recipes.fault_words import Loc, clean_loc, quote_value, words
from registry.recipes.fields import Strict
from registry.recipes.parsers import parser_faults
from registry.recipes.provider import Provider
from registry.recipes.router import RouterSpec
from registry.recipes.yaml_nodes import Document, Fault

MODEL = "model"
KINDS: Mapping[str, type[Strict]] = {MODEL: Recipe, "provider": Provider, "router": RouterSpec}


def kind_of(data: object) -> object:
    """The kind that is written. A document that is no mapping counts as a model."""
    return data.get("kind", MODEL) if isinstance(data, dict) else MODEL


def schema_of(data: object) -> type[Strict] | None:
    """None: there is no such kind."""
    kind = kind_of(data)
    return KINDS.get(kind) if isinstance(kind, str) else None


ENGINE_FOR = {
    "chat": "vllm",
    "embed": "sentence-transformers",
    "rerank": "sentence-transformers",
    "transcribe": "faster-whisper",
}
# Good values in the place of bad ones, so that the checks behind them run too. Their line is kept: nothing moves.
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


def validate(document: Document) -> tuple[Strict | None, list[Fault]]:
    """What the document describes, or None and its faults in the order of the file."""
    schema = schema_of(document.data)
    if schema is None:
        text = f"'kind' cannot be {quote_value(kind_of(document.data))}; write one of: {', '.join(KINDS)}"
        return None, [document.fault(("kind",), text)]
    data = copy.deepcopy(document.data)
    if isinstance(data, dict):
        data.pop("kind", None)
    return _model(document, data) if schema is Recipe else _other(document, data, schema)


def _other(document: Document, data: Any, schema: type[Strict]) -> tuple[Strict | None, list[Fault]]:
    try:
        return schema.model_validate(data), []
    except ValidationError as refused:
        errors = [e for e in refused.errors(include_url=False) if e["type"] != "invalid_key"]
        faults = dict.fromkeys(document.fault(clean_loc(e), words(e, schema)) for e in errors)
        return None, sorted(faults, key=lambda fault: fault.line)


def _model(document: Document, data: Any) -> tuple[Recipe | None, list[Fault]]:
    """The recipe of a model.

    Pydantic checks a mapping as a whole only after all its fields are good. So the bad ones are replaced and the
    document is checked again, until nothing new comes up.
    """
    parsers = (document.fault(("engine", "flags", key), text) for key, text in parser_faults(document.data))
    faults: dict[Fault, None] = dict.fromkeys(parsers)
    for _ in range(PASSES):
        try:
            recipe = Recipe.model_validate(data)
        except ValidationError as refused:
            errors = [e for e in refused.errors(include_url=False) if e["type"] != "invalid_key"]
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
    """Make this fault go away. False: there is no way, stop here."""
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
    """What was taken out must not make a fault of its own."""
    engine = data.setdefault("engine", {})
    tasks = {name: task for task, name in ENGINE_FOR.items()}
    task = data.setdefault("task", tasks.get(engine.get("name"), "chat"))
    engine.setdefault("name", ENGINE_FOR.get(task, "vllm"))
    if "memory" in mended:  # the adapters themselves have been checked by now, but their places may be gone
        data.pop("adapters", None)


def _at(data: Any, loc: Loc) -> object:
    for part in loc:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data
