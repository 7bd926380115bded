"""Recipes added at run time: files `id@version.yaml`, or in a fleet rows that all servers share.

Files are written atomically, so a killed server leaves no half-written recipe.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import yaml

from launch.proposal.draft import DraftValue, put
from registry.errors import Unavailable, Unfit
from registry.recipes.definition import Recipe, Residency
from registry.recipes.loading import faults_of, load_recipes, parse_recipe
from registry.storage.files import delete_files, unusable, write_text

WIDTH = 110
MIB = 2**20
SIZES = ("kv_cache", "overhead")
ORDER = ("id", "version", "task", "description", "source", "engine", "dtype", "context_length", "memory", "batching")


def recipe_text(recipe: Recipe, choices: Iterable[DraftValue] = (), notes: Iterable[str] = ()) -> str:
    """Write a recipe as YAML: chosen values and those that differ from the defaults."""
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
    """Write a recipe as `recipe_text`. Raises Unfit if it could not be read back."""
    text = recipe_text(recipe, choices, notes)
    if faults := faults_of(text):
        raise Unfit(f"This is not a recipe: {faults[0]}", faults, code="bad_recipe", param="overrides")
    return text


def plain(recipe: Recipe, chosen: Iterable[str] = ()) -> dict[str, Any]:
    """Return plain values for YAML: chosen ones and those that are not defaults."""
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
    """Return the dotted keys whose values differ, sorted."""
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
    """Make a one-line comment, without control characters, which YAML refuses."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))


@dataclass(frozen=True, slots=True)
class StoredRecipes:
    """The stored recipes, and the faults of unreadable ones."""

    recipes: tuple[Recipe, ...]
    faults: tuple[str, ...]


class RecipeStore(Protocol):
    """A store of recipes that were added at run time. All methods block."""

    def read(self) -> StoredRecipes:
        """Read every recipe; broken ones are reported. Raises Unavailable."""
        ...

    def write(self, recipe: Recipe, text: str) -> object:
        """Store a recipe durably. Raises Unavailable, Conflict."""
        ...

    def text(self, recipe_id: str, version: int) -> str | None:
        """Return a recipe's text as it was written, with its reasons."""
        ...

    def remove(self, recipe_id: str, versions: Iterable[int]) -> None:
        """Delete versions of a recipe durably. Raises Unavailable."""
        ...


class RecipeFiles:
    """A `RecipeStore` of files. Only one server writes, as it locks the data directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tidy(self) -> None:
        """Clean up after a killed server, at start."""
        for half in self.folder.glob(".*.tmp"):
            half.unlink(missing_ok=True)

    def read(self) -> StoredRecipes:
        """Read every recipe. Broken files are reported and do not hide the others.

        Raises Unavailable if the folder cannot be read, because then the added recipes are unknown.
        """
        recipes, faults = list[Recipe](), list[str]()
        for file in self._files():
            try:
                recipes += load_recipes(file)
            except Unfit as unfit:
                faults += unfit.faults
        return StoredRecipes(tuple(recipes), tuple(faults))

    def _files(self) -> list[Path]:
        try:
            self.folder.parent.stat()  # raises if the data directory is missing
            names = os.listdir(self.folder) if self.folder.exists() else []  # glob() ignores errors
        except OSError as error:
            raise Unavailable(unusable(error)) from error
        return [self.folder / name for name in sorted(names) if name.endswith(".yaml") and not name.startswith(".")]

    def file_of(self, recipe_id: str, version: int) -> Path:
        return self.folder / f"{quote(recipe_id, safe='')}@{version}.yaml"

    def write(self, recipe: Recipe, text: str) -> Path:
        """Store a recipe. Raises Unavailable (disk_full)."""
        file = self.file_of(recipe.id, recipe.version)
        try:
            write_text(file, text)  # raises if the data directory is missing
        except OSError as error:
            raise Unavailable(
                f"The recipe cannot be written to {self.folder}: {error.strerror}. Nothing was added.", code="disk_full"
            ) from error
        return file

    def text(self, recipe_id: str, version: int) -> str | None:
        """Return a recipe's text as it was written, with its reasons.

        None if it is unreadable or, as after a restore, has a path that is relative to the folder.
        """
        file = self.file_of(recipe_id, version)
        try:
            text = file.read_text(encoding="utf-8")
            return text if [parse_recipe(text, file.name)] == list(load_recipes(file)) else None
        except (OSError, UnicodeDecodeError, Unfit):
            return None

    def remove(self, recipe_id: str, versions: Iterable[int]) -> None:
        delete_files(self.file_of(recipe_id, version) for version in versions)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The served recipes."""

    recipes: tuple[Recipe, ...]
    """The newest version of each model, then former ones as `id@version`."""
    notes: tuple[str, ...] = ()


def arrange(configured: Iterable[Recipe], stored: Iterable[Recipe]) -> Arrangement:
    """Combine the operator's recipes with the stored ones. Pure.

    The highest version of a model is the current one; if both have it, the operator's is used. A stored recipe
    loses an alias that the operator uses for something else.
    """
    configured = tuple(configured)
    own = {(recipe.id, recipe.version) for recipe in configured}
    versions: dict[str, dict[int, Recipe]] = {recipe.id: {recipe.version: recipe} for recipe in configured}
    for recipe in stored:
        versions.setdefault(recipe.id, {}).setdefault(recipe.version, recipe)
    current = {id_: by_version[max(by_version)] for id_, by_version in versions.items()}
    notes: list[str] = []
    taken = {*current, *(alias for r in current.values() if (r.id, r.version) in own for alias in r.aliases)}
    for id_, recipe in current.items():
        if (id_, recipe.version) not in own:
            aliases = tuple(alias for alias in recipe.aliases if alias not in taken)
            taken |= set(aliases)
            if aliases != recipe.aliases:
                dropped = ", ".join(sorted(set(recipe.aliases) - set(aliases)))
                notes.append(f"'{id_}' is served without its alias {dropped}, which another recipe has")
                current[id_] = recipe.model_copy(update={"aliases": aliases})
    former = [
        former_version(recipe)
        for id_, by_version in versions.items()
        for version, recipe in sorted(by_version.items())
        if version != current[id_].version
    ]
    return Arrangement((*current.values(), *former), tuple(notes))


def former_version(recipe: Recipe) -> Recipe:
    """Return the recipe as a former version, with its full name and loaded on demand."""
    residency: Residency = recipe.residency.model_copy(update={"pin": False, "preload": False})
    return recipe.model_copy(
        update={"id": f"{recipe.id}@{recipe.version}", "aliases": (), "adapters": (), "residency": residency}
    )
