"""Added recipes: files that appear whole or not at all, and their precedence among the operator's own."""

from pathlib import Path

import pytest

from launch.proposal.draft import DraftValue
from launch.recipe_store import RecipeFiles, StoredRecipes, arrange, changed, plain, recipe_text
from registry.catalog import Catalog
from registry.errors import NotFound, Unavailable
from registry.recipes.definition import Recipe
from registry.recipes.fields import PathSource
from registry.recipes.loading import parse_recipe


def recipe(id_: str, version: int = 1, aliases: tuple[str, ...] = (), **residency: object) -> Recipe:
    return Recipe.model_validate(
        {"id": id_, "version": version, "task": "rerank", "source": {"package": "p"}, "aliases": aliases,
         "engine": {"name": "sentence-transformers"}, "residency": residency}
    )  # fmt: skip


def keep(store: RecipeFiles, one: Recipe) -> Path:
    return store.write(one, recipe_text(one))


def test_a_stored_recipe_is_read_and_removed(tmp_path: Path) -> None:
    store = RecipeFiles(tmp_path / "recipes")
    assert store.read().recipes == ()
    both = recipe("org/Name:7b"), recipe("org/Name:7b", 2)
    for one in both:
        file = keep(store, one)
        assert file.parent == tmp_path / "recipes", "an id is never a path"
    assert store.read().recipes == both
    assert store.text("org/Name:7b", 2) == recipe_text(both[1])
    store.remove("org/Name:7b", [1])
    assert store.read().recipes == both[1:]
    assert (tmp_path / "recipes").stat().st_mode & 0o777 == 0o700


def test_a_text_with_a_path_from_its_folder_is_not_given_as_it_is(tmp_path: Path) -> None:
    """It would mean another folder elsewhere, as in an export or a fleet."""
    store = RecipeFiles(tmp_path / "recipes")
    file = keep(store, recipe("m").model_copy(update={"source": PathSource(path="../merged/m")}))
    (found,) = store.read().recipes
    assert isinstance(found.source, PathSource)
    assert Path(found.source.path).resolve() == tmp_path / "merged" / "m"
    assert store.text("m", 1) is None
    file.write_bytes(b"caf\xe9")
    assert store.text("m", 1) is None


TEXT = """\
# from a hub?
# from the source's name
id: m
version: 1
task: chat
source: {hub: org/m, revision: main}
engine: {name: vllm}
# kv_cache: 8 requests of 4,096
memory: {kv_cache: 512MiB, overhead: 1000001}
# max_requests: requests at once
batching: {max_requests: 32}
residency: {pin: true}
"""


def test_a_recipes_text_has_chosen_values_with_their_reasons_and_no_other_defaults() -> None:
    one = Recipe.model_validate(
        {
            "id": "m", "version": 1, "task": "chat", "source": {"hub": "org/m", "revision": "main"},
            "engine": {"name": "vllm"}, "memory": {"kv_cache": "512MiB", "overhead": 1_000_001},
            "residency": {"pin": True},
        }
    )  # fmt: skip
    choices = [
        DraftValue("id", "m", "from the source's name"),
        DraftValue("memory.kv_cache", "512MiB", "8 requests\nof 4,096"),
        DraftValue("batching.max_requests", 32, "requests at once"),
    ]
    assert recipe_text(one, choices, ["from a hub\x07"]) == TEXT
    assert parse_recipe(TEXT, "m@1.yaml") == one
    assert changed(plain(one), {**plain(one), "memory": {"kv_cache": "1MiB"}}) == ["memory.kv_cache", "memory.overhead"]


def test_other_files_in_the_folder_are_no_recipes(tmp_path: Path) -> None:
    store = RecipeFiles(tmp_path)
    keep(store, recipe("a"))
    for name in ("notes.txt", ".b@1.yaml"):
        (tmp_path / name).write_text("id: b\n")
    assert store.read() == StoredRecipes((recipe("a"),), ())
    store.remove("a", [1, 7])
    assert store.read() == StoredRecipes((), ())


def test_a_half_written_file_of_a_dead_server_is_ignored(tmp_path: Path) -> None:
    store = RecipeFiles(tmp_path)
    keep(store, recipe("a"))
    (tmp_path / ".half.tmp").write_text("id: b\nvers")
    assert [one.id for one in store.read().recipes] == ["a"]
    store.tidy()
    assert [file.name for file in tmp_path.iterdir()] == ["a@1.yaml"]


def test_a_broken_file_does_not_affect_others(tmp_path: Path) -> None:
    store = RecipeFiles(tmp_path)
    keep(store, recipe("a"))
    (tmp_path / "b@1.yaml").write_text("id: b\n")
    found = store.read()
    assert [one.id for one in found.recipes] == ["a"]
    assert any("b@1.yaml" in fault for fault in found.faults)


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    """Its models would silently not be served, or leave at a reload."""
    (tmp_path / "recipes").write_text("of somebody else")
    with pytest.raises(Unavailable, match="cannot be read or created"):
        RecipeFiles(tmp_path / "recipes").read()
    with pytest.raises(Unavailable, match="cannot be read or created"):
        RecipeFiles(tmp_path / "moved" / "recipes").read()


def test_a_full_disk_is_reported_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("launch.recipe_store.os.replace", full)
    with pytest.raises(Unavailable, match="Nothing was added") as refused:
        keep(RecipeFiles(tmp_path), recipe("a"))
    assert refused.value.code == "disk_full"
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_that_cannot_be_deleted_is_reported(tmp_path: Path) -> None:
    store = RecipeFiles(tmp_path)
    store.file_of("a", 1).mkdir()  # stands for a disk that is mounted for reading only
    with pytest.raises(Unavailable, match=r"a@1\.yaml cannot be deleted: Is a directory") as refused:
        store.remove("a", [1])
    assert refused.value.code == "disk_full"


def test_the_highest_version_is_current_and_the_others_stay_by_their_number() -> None:
    found = arrange([recipe("a", 2)], [recipe("a", 1), recipe("a", 3, ("x",), pin=True, preload=True), recipe("b")])
    assert [(one.id, one.version) for one in found.recipes] == [("a", 3), ("b", 1), ("a@1", 1), ("a@2", 2)]
    stored = [recipe("a", 1, ("y",), pin=True, preload=True), recipe("a", 2)]
    former = next(one for one in arrange([], stored).recipes if one.is_former)
    assert (former.id, former.aliases) == ("a@1", ())
    assert (former.residency.pin, former.residency.preload) == (False, False), "it is loaded on demand"


def test_the_operators_own_files_win_where_both_have_something() -> None:
    found = arrange([recipe("a", 1, ("x",))], [recipe("a", 1, ("z",)), recipe("b", 1, ("x", "y"))])
    assert [(one.id, one.aliases) for one in found.recipes] == [("a", ("x",)), ("b", ("y",))]
    assert "'b' is served without its alias x" in found.notes[0]
    both = arrange([], [recipe("a", 1, ("x",)), recipe("b", 1, ("x",))])
    assert [(one.id, one.aliases) for one in both.recipes] == [("a", ("x",)), ("b", ())]


def test_names_with_a_version_mean_that_version() -> None:
    catalog = Catalog(arrange([], [recipe("a", 1), recipe("a", 2, ("x",)), recipe("a", 4)]).recipes)
    assert catalog.resolve("a").recipe.version == 4
    for name, version in (("a@1", 1), ("a@2", 2), ("a@4", 4)):
        assert catalog.resolve(name).recipe.version == version
    with pytest.raises(NotFound, match="a@1, a@2, a@4") as missing:
        catalog.resolve("a@3")
    assert missing.value.code == "model_version_not_found"


def test_nothing_is_written_where_a_moved_data_directory_was(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No such file"):
        RecipeFiles(tmp_path / "gone" / "recipes").write(recipe("m"), "id: m\n")
    assert not (tmp_path / "gone").exists()
