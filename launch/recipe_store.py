"""Recipes that were added while the server ran: one file each, `id@version.yaml`, in a folder that is ours alone.

A file appears whole or not at all, so a server that is killed at any moment leaves each recipe known or unknown.
"""

import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from registry.errors import Unavailable, Unfit
from registry.recipes.definition import Recipe, Residency
from registry.recipes.loading import load_recipes
from registry.storage.files import sync_folder, unusable


@dataclass(frozen=True, slots=True)
class StoredRecipes:
    """What the folder holds, and what of it could not be read."""

    recipes: tuple[Recipe, ...]
    faults: tuple[str, ...]


class RecipeStore:
    """Blocks. Written by one server at a time: the data directory is locked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tidy(self) -> None:
        """At the start: what a server that was killed had not finished."""
        for half in self.folder.glob(".*.tmp"):
            half.unlink(missing_ok=True)

    def read(self) -> StoredRecipes:
        """Read every recipe. Broken files are reported and do not hide the others.

        Raises Unavailable where the folder cannot be read, since then the added recipes are unknown.
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
            self.folder.parent.stat()  # only below an existing data directory: a moved one must raise
            names = (
                os.listdir(self.folder) if self.folder.exists() else []
            )  # glob() finds nothing where it may not look
        except OSError as error:
            raise Unavailable(unusable(error)) from error
        return [self.folder / name for name in sorted(names) if name.endswith(".yaml") and not name.startswith(".")]

    def file_of(self, recipe_id: str, version: int) -> Path:
        return self.folder / f"{quote(recipe_id, safe='')}@{version}.yaml"

    def write(self, recipe: Recipe, text: str) -> Path:
        """Keep it, also through a loss of power. Raises Unavailable (disk_full)."""
        file = self.file_of(recipe.id, recipe.version)
        try:
            self.folder.mkdir(
                mode=0o700, exist_ok=True
            )  # only below an existing data directory: a moved one must raise
            handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=self.folder)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as stream:
                    stream.write(text)
                    stream.flush()
                    os.fsync(stream.fileno())
                os.replace(name, file)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
            sync_folder(self.folder)
        except OSError as error:
            raise Unavailable(
                f"The recipe cannot be written to {self.folder}: {error.strerror}. Nothing was added.", code="disk_full"
            ) from error
        return file

    def text(self, recipe_id: str, version: int) -> str | None:
        """A recipe's file as it was written, with its reasons."""
        try:
            return self.file_of(recipe_id, version).read_text(encoding="utf-8")
        except OSError:
            return None

    def remove(self, recipe_id: str, versions: Iterable[int]) -> None:
        for version in versions:
            self.file_of(recipe_id, version).unlink(missing_ok=True)
        if self.folder.is_dir():
            sync_folder(self.folder)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Which recipes are served, and under which ids."""

    recipes: tuple[Recipe, ...]
    """The newest version of each model, then former ones as `id@version`."""
    configured: frozenset[str]
    """Ids whose newest version is from the operator's own files."""
    notes: tuple[str, ...] = ()


def arrange(configured: Iterable[Recipe], shelved: Iterable[Recipe]) -> Arrangement:
    """Put the operator's recipes and those of the shelf together. Pure.

    The highest version of a model is the current one; where both have it, the operator's counts. A name that the
    operator gave to something else is taken from the shelf's recipes: those are served, without that alias.
    """
    configured = tuple(configured)
    own = {(recipe.id, recipe.version) for recipe in configured}
    versions: dict[str, dict[int, Recipe]] = {recipe.id: {recipe.version: recipe} for recipe in configured}
    for recipe in shelved:
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
    ours = frozenset(id_ for id_, recipe in current.items() if (id_, recipe.version) in own)
    return Arrangement((*current.values(), *former), ours, tuple(notes))


def former_version(recipe: Recipe) -> Recipe:
    """The recipe as served beside a newer version: under its full name, loaded on demand."""
    staying: Residency = recipe.residency.model_copy(update={"pin": False, "preload": False})
    return recipe.model_copy(
        update={"id": f"{recipe.id}@{recipe.version}", "aliases": (), "adapters": (), "residency": staying}
    )
