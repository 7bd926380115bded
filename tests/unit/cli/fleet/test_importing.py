"""`roundhouse fleet import` on a real PostgreSQL."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from fleet.membership.members import schema_of
from launch.recipe_store import RecipeFiles, recipe_text
from registry.recipes.fields import PathSource
from registry.recipes.loading import parse_recipe
from registry.state.database import State
from registry.state.shared.opening import open_shared
from registry.state.shared.recipes import read_recipes
from tests.unit.cli.conftest import Run
from tests.unit.registry.makers import KEY, new, recipe


@pytest.mark.parametrize("is_remote", [False, True], ids=["file", "postgresql"])
def test_a_servers_names_are_imported_once(run: Run, postgres_url: str, tmp_path: Path, is_remote: bool) -> None:
    data = tmp_path / "data"
    with State(data, url=postgres_url if is_remote else None) as state:
        state.adapters.register(KEY, new(1))
    added = recipe("n", "rerank", source={"package": "models.starter"})
    RecipeFiles(data / "recipes").write(added, recipe_text(added))
    fleet = f"importing{int(is_remote)}"
    words = ("fleet", "import", "--fleet", fleet, "--data-dir", str(data), "--database", postgres_url)
    first = run(*words, "--json")
    assert first.exit_code == 0, first.stderr
    assert json.loads(first.stdout)["taken"] == ["adapter m:a:default", "recipe n@1"]
    again = run(*words)
    assert (again.exit_code, again.stdout) == (0, "")
    assert f"has all names from {data}" in again.stderr
    other = tmp_path / "other"
    with State(other) as state:
        state.adapters.register(KEY, new(2))
    refused = run("fleet", "import", "--fleet", fleet, "--data-dir", str(other), "--database", postgres_url)
    assert refused.exit_code == 1
    assert "Nothing was imported" in refused.stderr


def test_a_merged_model_of_a_restored_server_keeps_its_folder(run: Run, postgres_url: str, tmp_path: Path) -> None:
    """A backup names it by a path from the folder of recipes, which other servers would read from elsewhere."""
    with State(tmp_path):
        store = RecipeFiles(tmp_path / "recipes")
    added = recipe("n", "rerank", source={"path": "../merged/n"})
    store.write(added, recipe_text(added))
    imported = run("fleet", "import", "--fleet", "merged", "--data-dir", str(tmp_path), "--database", postgres_url)
    assert imported.exit_code == 0, imported.stderr
    with closing((shared := open_shared(postgres_url, schema_of("merged"))).database), shared.database.read() as db:
        (found,) = read_recipes(db)
    source = parse_recipe(found.text, "n@1.yaml").source
    assert isinstance(source, PathSource)
    assert Path(source.path).resolve() == tmp_path / "merged" / "n"


def test_a_recipe_that_cannot_be_read_is_named(run: Run, postgres_url: str, tmp_path: Path) -> None:
    with State(tmp_path):
        (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "b@1.yaml").write_text("id: b\n")
    refused = run("fleet", "import", "--fleet", "f", "--data-dir", str(tmp_path), "--database", postgres_url)
    assert refused.exit_code == 1
    assert "b@1.yaml" in refused.stderr
    assert "then import again" in refused.stderr


def test_an_import_that_is_impossible_says_why(run: Run, postgres_url: str, tmp_path: Path) -> None:
    nowhere = run("fleet", "import", "--fleet", "f", "--data-dir", str(tmp_path))
    assert (nowhere.exit_code, "postgresql+psycopg://" in nowhere.stderr) == (2, True)
    none = run("fleet", "import", "--fleet", "f", "--data-dir", str(tmp_path), "--database", postgres_url)
    assert (none.exit_code, "No server has used" in none.stderr) == (1, True)
