"""Recipes of models added at run time, in one store for all servers of a fleet."""

import pytest

from launch.recipe_store import checked_text, recipe_text
from launch.shared_recipes import SharedRecipeStore
from registry.errors import Conflict
from registry.recipes.definition import Recipe
from registry.state.shared.recipes import SharedRecipe
from tests.eventually import eventually
from tests.unit.registry.makers import recipe
from tests.unit.registry.shared.rig import Sharer, Sharers


def store_of(server: Sharer) -> SharedRecipeStore:
    assert server.state.recipes is not None
    return SharedRecipeStore(server.state.recipes)


def write(server: Sharer, recipe: Recipe) -> None:
    store_of(server).write(recipe, checked_text(recipe, notes=["the reason"]))


MODEL = recipe("m", source={"path": "/srv/m"}, aliases=("quick",))


def test_all_servers_read_an_added_recipe_with_its_notes(fleet: Sharers) -> None:
    one, other = fleet.server(), fleet.server().watch()
    write(one, MODEL)
    eventually(lambda: store_of(other).read().recipes == (MODEL,))
    text = store_of(other).text("m", 1)
    assert text is not None
    assert text.startswith("# the reason\n")
    second = MODEL.model_copy(update={"version": 2, "description": "newer"})
    write(one, second)
    eventually(lambda: store_of(other).read().recipes == (MODEL, second))
    store_of(one).remove("m", [1])
    eventually(lambda: store_of(other).read().recipes == (second,))
    assert store_of(fleet.server()).read().recipes == (second,), "a new server reads them"


def test_the_second_of_two_concurrent_changes_is_refused(fleet: Sharers) -> None:
    one, other = fleet.server(), fleet.server()
    write(one, MODEL)
    write(other, MODEL)
    with pytest.raises(Conflict, match="has just given 'm' a version 1") as refused:
        write(other, MODEL.model_copy(update={"description": "another"}))
    assert refused.value.code == "name_in_use"
    other.state.refresh()
    assert store_of(other).read().recipes == (MODEL,)


def test_a_name_that_another_server_has_used_since_is_refused(fleet: Sharers) -> None:
    one, other = fleet.server(), fleet.server()
    one.state.models.set_alias("quick", "n")
    with pytest.raises(Conflict, match="'quick' is a model's alias already"):
        write(other, MODEL)
    write(other, recipe("added", source={"path": "/srv/m"}))
    with pytest.raises(Conflict, match="'added' is a model's id already"):
        one.state.models.set_alias("added", "n")


def test_other_changes_keep_the_same_object_of_recipes(fleet: Sharers) -> None:
    """Models are compared with the recipes only after a change of this object."""
    one, other = fleet.server(), fleet.server()
    write(one, MODEL)
    other.state.refresh()
    assert other.state.recipes is not None
    before = other.state.recipes.all()
    one.state.models.set_alias("fast", "n")
    assert other.state.refresh()
    assert other.state.recipes.all() is before


def test_an_unreadable_recipe_does_not_hide_others(fleet: Sharers) -> None:
    server = fleet.server()
    assert server.state.recipes is not None
    write(server, MODEL)
    for number, text in enumerate(
        ("id: b\n", "kind: no such\n", "", recipe_text(MODEL) + "---\n" + recipe_text(MODEL))
    ):
        server.state.recipes.add(SharedRecipe(f"b{number}", 1, "sha256:0", text), (f"b{number}",))
    found = store_of(server).read()
    assert found.recipes == (MODEL,)
    assert all(any(f"b{number}@1.yaml" in fault for fault in found.faults) for number in range(4)), found.faults


def test_a_server_without_a_fleet_has_no_shared_recipes(fleet: Sharers) -> None:
    from registry.state.database import State

    with State(fleet._folder / "alone") as state:
        assert state.recipes is None
