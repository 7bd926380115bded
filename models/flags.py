"""`engine.flags` of a recipe, for engines that know theirs by name and type."""

from collections.abc import Mapping

from registry.errors import EngineFailed
from registry.recipes.definition import Recipe
from registry.recipes.fields import Flag


def flags_of(recipe: Recipe, known: Mapping[str, type]) -> dict[str, Flag]:
    """The recipe's flags. Raises EngineFailed for one that the engine does not know or that has the wrong type."""
    for name, value in recipe.engine.flags.items():
        if name not in known:
            raise EngineFailed(f"engine flag '{name}' is not known; known are {', '.join(sorted(known))}")
        kinds = (int, float) if known[name] is float else (known[name],)
        if not isinstance(value, kinds) or (isinstance(value, bool) and known[name] is not bool):
            raise EngineFailed(f"engine flag '{name}' must be of type {known[name].__name__}")
    return dict(recipe.engine.flags)
