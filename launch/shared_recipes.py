"""Recipes that were added at run time and are shared by the servers of a fleet. Only they import it."""

from collections.abc import Iterable

from launch.recipe_store import StoredRecipes
from registry.errors import Unfit
from registry.recipes.definition import Recipe
from registry.recipes.loading import parse_recipe
from registry.state.shared.recipes import RecipeTable, SharedRecipe


class SharedRecipeStore:
    """A `RecipeStore` in the database. Reads come from memory."""

    def __init__(self, table: RecipeTable) -> None:
        self._table = table

    def read(self) -> StoredRecipes:
        """Read every recipe, and report those that only a newer version can read."""
        recipes, faults = list[Recipe](), list[str]()
        for shared in self._table.all():
            try:
                recipes.append(parse_recipe(shared.text, f"{shared.model}@{shared.version}.yaml"))
            except Unfit as unfit:
                faults += unfit.faults
        return StoredRecipes(tuple(recipes), tuple(faults))

    def write(self, recipe: Recipe, text: str) -> None:
        self._table.add(SharedRecipe.of(recipe, text), (recipe.id, *recipe.aliases))

    def text(self, recipe_id: str, version: int) -> str | None:
        texts = (shared.text for shared in self._table.all() if (shared.model, shared.version) == (recipe_id, version))
        return next(texts, None)

    def remove(self, recipe_id: str, versions: Iterable[int]) -> None:
        self._table.remove(recipe_id, versions)
