"""What a document of a recipe file is: its `kind`, model where it says none."""

from collections.abc import Mapping

from registry.recipes.definition import Recipe
from registry.recipes.fields import Strict
from registry.recipes.provider import Provider
from registry.recipes.router import RouterSpec

MODEL = "model"
KINDS: Mapping[str, type[Strict]] = {MODEL: Recipe, "provider": Provider, "router": RouterSpec}


def kind_of(data: object) -> object:
    """The kind that is written. A document that is no mapping counts as a model."""
    return data.get("kind", MODEL) if isinstance(data, dict) else MODEL


def schema_of(data: object) -> type[Strict] | None:
    """None: there is no such kind."""
    kind = kind_of(data)
    return KINDS.get(kind) if isinstance(kind, str) else None
