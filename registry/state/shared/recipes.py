"""Recipes of models that were added at run time, as YAML text, for all servers that share names.

| a recipe of the same model and version | result of adding one                     |
|----------------------------------------|------------------------------------------|
| does not exist                         | it is added                              |
| exists with the same digest            | no-op                                    |
| exists with another digest             | Conflict: two servers changed it at once |

The digest is of the parsed recipe, so comments in its text do not count.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import NamedTuple, Self

import sqlalchemy as sa

from registry.errors import Conflict
from registry.recipes.definition import Recipe
from registry.state.access import TableAccess
from registry.state.shared.tables import RECIPES


class SharedRecipe(NamedTuple):
    """A version of a model's recipe."""

    model: str
    version: int
    digest: str
    text: str
    """YAML, with the reasons for its values."""

    @classmethod
    def of(cls, recipe: Recipe, text: str) -> Self:
        content = recipe.model_dump_json(exclude_defaults=True).encode()
        return cls(recipe.id, recipe.version, f"sha256:{hashlib.sha256(content).hexdigest()}", text)


class RecipeTable:
    """Recipes in memory. Changes block on the database; run them in a thread."""

    def __init__(self, access: TableAccess, clock: Callable[[], float]) -> None:
        self._access, self._clock = access, clock
        self._all = tuple[SharedRecipe, ...]()

    def all(self) -> tuple[SharedRecipe, ...]:
        """Return all recipes by model and version. The same object until one changes."""
        return self._all

    def add(self, recipe: SharedRecipe, names: Iterable[str]) -> None:
        """Add a version.

        Args:
            names: the model's id and aliases, which must not be used otherwise.

        Raises Conflict (name_in_use), Unavailable.
        """
        with self._access.change(self.reload) as db:
            for name in names:
                self._access.check_free(db, name, "a model's id")
            insert_recipe(db, recipe, self._clock())

    def remove(self, model: str, versions: Iterable[int]) -> None:
        with self._access.change(self.reload) as db:
            db.execute(sa.delete(RECIPES).where(RECIPES.c.model == model, RECIPES.c.version.in_(list(versions))))

    def reload(self, db: sa.Connection) -> Callable[[], None]:
        """Read all recipes; see `registry.state.access.Load`."""
        recipes = read_recipes(db)

        def replace() -> None:
            if recipes != self._all:
                self._all = recipes

        return replace


def read_recipes(db: sa.Connection) -> tuple[SharedRecipe, ...]:
    columns = RECIPES.c.model, RECIPES.c.version, RECIPES.c.digest, RECIPES.c.text
    return tuple(SharedRecipe(*row) for row in db.execute(sa.select(*columns).order_by(*columns[:2])))


def insert_recipe(db: sa.Connection, recipe: SharedRecipe, created: float) -> None:
    """Insert a recipe as part of a change. Raises Conflict if its version exists with other content."""
    key = RECIPES.c.model == recipe.model, RECIPES.c.version == recipe.version
    digest = db.execute(sa.select(RECIPES.c.digest).where(*key)).scalar()
    if digest is None:
        db.execute(sa.insert(RECIPES).values(**recipe._asdict(), created=created))
    elif digest != recipe.digest:
        raise Conflict(
            f"Another server of the fleet has just given '{recipe.model}' a version {recipe.version}. Look at it "
            f"(roundhouse models show {recipe.model}), then try again.",
            code="name_in_use",
            param="id",
        )
