"""All of a server's own names are imported into the fleet, or none of them."""

from pathlib import Path

import pytest

from registry.errors import Conflict
from registry.records import AdapterKey, RouterKey
from registry.state.database import State, look
from registry.state.shared.importing import import_names
from registry.state.shared.recipes import SharedRecipe
from tests.unit.registry.makers import KEY, digest, new, recipe
from tests.unit.registry.shared.rig import Sharers

AUTO = RouterKey("auto")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return the data directory of a server that has been in no fleet."""
    folder = tmp_path / "own"
    with State(folder, clock=lambda: 7.0) as state:
        for number in (1, 2, 3):
            state.adapters.register(KEY, new(number), "prod" if number == 2 else None)
        state.adapters.rollback(KEY)
        state.adapters.pin(KEY)
        state.adapters.register(AdapterKey("m", "gone"), new(9))
        state.adapters.delete(AdapterKey("m", "gone"))
        state.adapters.register(AdapterKey("m", "legal", "team"), new(4), shared=True)
        state.routers.register(AUTO, digest(5), 10, "request", "live")
        state.models.set_alias("fast", "m")
    return folder


def test_names_are_imported_with_their_history(own: Path, fleet: Sharers) -> None:
    server = fleet.server()
    source = look(own)
    imported = import_names(source, server.tables)
    assert imported == ["adapter m:a:default", "adapter m:legal:team", "router auto", "alias fast of model m"]
    server.state.refresh()
    with State(own) as before:
        assert server.state.adapters.all() == before.adapters.all()
        assert server.state.adapters.ever() == before.adapters.ever()
        assert server.state.models.aliases() == before.models.aliases()
    assert server.state.adapters.rollback(KEY).current.number == 1, "the history of current versions was imported"
    assert server.state.adapters.register(AdapterKey("m", "gone"), new(8)).version.tag == "v2"
    source.close()


def test_a_second_import_changes_nothing(own: Path, fleet: Sharers) -> None:
    server, source = fleet.server(), look(own)
    import_names(source, server.tables)
    server.state.refresh()
    assert import_names(source, server.tables) == []
    assert not server.state.refresh(), "no server has anything to read"
    source.close()


def test_all_conflicting_names_are_listed_and_nothing_is_imported(own: Path, fleet: Sharers) -> None:
    server, source = fleet.server(), look(own)
    shared = server.state
    shared.adapters.register(KEY, new(1))
    shared.models.set_alias("fast", "other")
    shared.adapters.register(AdapterKey("m", "auto"), new(6))
    shared.adapters.register(AdapterKey("m", "legal", "team"), new(4))
    shared.adapters.delete(AdapterKey("m", "legal", "team"))
    before = shared.adapters.all()
    with pytest.raises(Conflict) as refused:
        import_names(source, server.tables)
    assert refused.value.code == "names_differ"
    for words in (
        "adapter m:a:default: the fleet has other versions",
        "adapter m:legal:team: the fleet used this name before",
        "router auto: 'auto' is an adapter's name already",
        "alias fast of model m: in the fleet it means other",
    ):
        assert words in refused.value.message
    assert not shared.refresh()
    assert (shared.adapters.all(), shared.models.aliases()) == (before, {"fast": "other"})
    source.close()


def test_added_models_are_imported_unless_they_conflict(own: Path, fleet: Sharers) -> None:
    server, source = fleet.server(), look(own)
    added = [SharedRecipe.of(recipe(id_), f"id: {id_}\n") for id_ in ("m", "legal")]
    with pytest.raises(Conflict, match="recipe legal@1: 'legal' is an adapter's name already"):
        import_names(source, server.tables, added)
    assert "recipe m@1" in import_names(source, server.tables, added[:1])
    assert import_names(source, server.tables, added[:1]) == []
    server.state.refresh()
    assert server.state.recipes is not None
    assert [recipe.text for recipe in server.state.recipes.all()] == ["id: m\n"]
    other = SharedRecipe.of(recipe("m", description="another"), "id: m\n")
    with pytest.raises(Conflict, match="recipe m@1: the fleet has another one"):
        import_names(source, server.tables, [other])
    source.close()
