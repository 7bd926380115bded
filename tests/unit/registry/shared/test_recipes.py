"""Recipes of models that were added at run time: one shelf for all servers that share names."""

import pytest

from launch.recipe_store import checked_text, recipe_text
from launch.shared_recipes import SharedRecipeStore
from registry.errors import Conflict
from registry.recipes.definition import Recipe
from registry.state.shared.recipes import SharedRecipe
from tests.eventually import eventually
from tests.unit.registry.makers import recipe
from tests.unit.registry.shared.rig import Sharer, Sharers


def shelf(server: Sharer) -> SharedRecipeStore:
    assert server.state.recipes is not None
    return SharedRecipeStore(server.state.recipes)


def keep(server: Sharer, one: Recipe) -> None:
    shelf(server).write(one, checked_text(one, notes=["why it is so"]))


MODEL = recipe("m", source={"path": "/srv/m"}, aliases=("quick",))


def test_what_one_server_adds_all_read_with_its_reasons(fleet: Sharers) -> None:
    one, other = fleet.server(), fleet.server().watch()
    keep(one, MODEL)
    eventually(lambda: shelf(other).read().recipes == (MODEL,))
    text = shelf(other).text("m", 1)
    assert text is not None
    assert text.startswith("# why it is so\n")
    second = MODEL.model_copy(update={"version": 2, "description": "newer"})
    keep(one, second)
    eventually(lambda: shelf(other).read().recipes == (MODEL, second))
    shelf(one).remove("m", [1])
    eventually(lambda: shelf(other).read().recipes == (second,))
    assert shelf(fleet.server()).read().recipes == (second,), "a server that starts reads them"


def test_of_two_changes_of_one_model_at_once_the_second_is_refused(fleet: Sharers) -> None:
    one, other = fleet.server(), fleet.server()
    keep(one, MODEL)
    keep(other, MODEL)
    with pytest.raises(Conflict, match="has just given 'm' a version 1") as refused:
        keep(other, MODEL.model_copy(update={"description": "another"}))
    assert refused.value.code == "name_in_use"
    other.state.refresh()
    assert shelf(other).read().recipes == (MODEL,)


def test_a_name_that_another_server_gave_away_since_is_refused(fleet: Sharers) -> None:
    one, other = fleet.server(), fleet.server()
    one.state.models.set_alias("quick", "n")
    with pytest.raises(Conflict, match="'quick' is a model's alias already"):
        keep(other, MODEL)
    keep(other, recipe("added", source={"path": "/srv/m"}))
    with pytest.raises(Conflict, match="'added' is a model's id already"):
        one.state.models.set_alias("added", "n")


def test_other_changes_leave_the_recipes_the_same_object(fleet: Sharers) -> None:
    """So that models are compared with them only when one has changed."""
    one, other = fleet.server(), fleet.server()
    keep(one, MODEL)
    other.state.refresh()
    assert other.state.recipes is not None
    before = other.state.recipes.all()
    one.state.models.set_alias("fast", "n")
    assert other.state.refresh()
    assert other.state.recipes.all() is before


def test_a_recipe_that_this_version_cannot_read_keeps_no_other_away(fleet: Sharers) -> None:
    server = fleet.server()
    assert server.state.recipes is not None
    keep(server, MODEL)
    for number, text in enumerate(
        ("id: b\n", "kind: no such\n", "", recipe_text(MODEL) + "---\n" + recipe_text(MODEL))
    ):
        server.state.recipes.add(SharedRecipe(f"b{number}", 1, "sha256:0", text), (f"b{number}",))
    found = shelf(server).read()
    assert found.recipes == (MODEL,)
    assert all(any(f"b{number}@1.yaml" in fault for fault in found.faults) for number in range(4)), found.faults


def test_a_server_without_a_fleet_shares_none(fleet: Sharers) -> None:
    from registry.state.database import State

    with State(fleet._folder / "alone") as state:
        assert state.recipes is None
