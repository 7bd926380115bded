"""A recipe as YAML, with the reason of each value above it."""

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from launch.proposal.draft import DraftValue, put
from registry.errors import Unfit
from registry.recipes.definition import Recipe
from registry.recipes.loading import faults_of

WIDTH = 110
MIB = 2**20
SIZES = ("kv_cache", "overhead")
ORDER = ("id", "version", "task", "description", "source", "engine", "dtype", "context_length", "memory", "batching")


def recipe_text(recipe: Recipe, choices: Iterable[DraftValue] = (), notes: Iterable[str] = ()) -> str:
    """One document: what differs from the defaults, and what was chosen."""
    chosen = tuple(choices)
    reasons: dict[str, list[str]] = {}
    for choice in chosen:
        head, _, rest = choice.key.partition(".")
        reasons.setdefault(head, []).append(f"{rest}: {choice.why}" if rest else choice.why)
    lines = [f"# {_line(note)}" for note in notes]
    for key, value in plain(recipe, [choice.key for choice in chosen]).items():
        lines += [f"# {_line(reason)}" for reason in reasons.get(key, ())]
        flow = None if isinstance(value, dict | list) else False
        lines.append(yaml.safe_dump({key: value}, default_flow_style=flow, width=WIDTH, sort_keys=False).rstrip())
    return "\n".join(lines) + "\n"


def checked_text(recipe: Recipe, choices: Iterable[DraftValue] = (), notes: Iterable[str] = ()) -> str:
    """The same for a file that is kept. Raises Unfit with all for which it could not be read again."""
    text = recipe_text(recipe, choices, notes)
    if faults := faults_of(text):
        raise Unfit(f"This is not a recipe: {faults[0]}", faults, code="bad_recipe", param="overrides")
    return text


def plain(recipe: Recipe, chosen: Iterable[str] = ()) -> dict[str, Any]:
    """The values as YAML and JSON have them: those that are no defaults, and those that were chosen."""
    data: dict[str, Any] = recipe.model_dump(mode="json", exclude_defaults=True)
    data["source"] = recipe.source.model_dump(mode="json")
    whole = recipe.model_dump(mode="json")
    for key in chosen:
        value: Any = whole
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            put(data, key, value)
    memory = data.get("memory", {})
    for key in SIZES:
        if isinstance(memory.get(key), int) and memory[key] and not memory[key] % MIB:
            memory[key] = f"{memory[key] // MIB}MiB"
    return {key: data[key] for key in [*(k for k in ORDER if k in data), *(k for k in data if k not in ORDER)]}


def changed(data: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Keys with dots whose values differ, sorted."""
    one, other = _flat(data), _flat(before)
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def _flat(data: Mapping[str, Any], head: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            values |= _flat(value, f"{head}{key}.")
        else:
            values[f"{head}{key}"] = value
    return values


def _line(text: str) -> str:
    """For a comment: what its model's files say may be anything, and YAML takes no control character."""
    return "".join(one if one.isprintable() else "?" for one in " ".join(text.split()))
