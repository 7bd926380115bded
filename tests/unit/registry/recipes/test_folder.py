"""The recipes that are part of the release."""

from pathlib import Path

import pytest

from registry.catalog import Catalog
from registry.recipes.definition import Task
from registry.recipes.loading import load_recipes, remarks

RECIPES = Path(__file__).parents[4] / "recipes"
SETS = sorted(path.name for path in RECIPES.iterdir() if path.is_dir())


def test_all_sets_are_tested() -> None:
    assert SETS == ["h200", "node-8x80gb", "real", "single-gpu-80gb", "starter"]
    assert {recipe.id for recipe in load_recipes(RECIPES / "real")} == {"minilm", "smollm2", "whisper-tiny-en"}


@pytest.mark.parametrize("name", [name for name in SETS if name != "real"])
def test_a_set_is_valid_and_has_every_task(name: str) -> None:
    recipes = load_recipes(RECIPES / name)
    assert {recipe.task for recipe in recipes} == set(Task)
    assert remarks(recipes) == (), "every hub revision is a commit"
    catalog = Catalog(recipes)
    for alias, task in (("chat", Task.CHAT), ("embed", Task.EMBED), ("rerank", Task.RERANK),
                        ("transcribe", Task.TRANSCRIBE)):  # fmt: skip
        assert catalog.resolve(alias, task).recipe.id == catalog.aliases[alias]
    chat = catalog.resolve("chat").recipe
    assert len(chat.adapters) == 20
    assert chat.memory.adapters.device >= 20, "twenty adapters fit into one batch"
