"""What a backup takes along of a server's models, and of one whose state is in PostgreSQL."""

from pathlib import Path

from launch.shelf import Shelf
from registry.recipes.source import PathSource
from registry.state.database import State
from runtime.cli.local.backup import back_up, restore
from tests.unit.registry.makers import KEY, new


def test_what_a_postgresql_has_of_a_server_is_copied(tmp_path: Path, postgres_url: str) -> None:
    data, first = tmp_path / "data", new(1)
    with State(data) as old:
        old.adapters.register(KEY, new(2))  # of the time before it had a PostgreSQL
    with State(data, url=postgres_url) as state:
        state.adapters.register(KEY, first, "prod")
        state.adapters.delete_version(KEY, "v1")
        (data / "store" / first.digest.removeprefix("sha256:")).mkdir(parents=True)
        back_up(data, tmp_path / "copy", pepper=False, url=postgres_url)
        kept = state.adapters.all()
    restore(tmp_path / "copy", tmp_path / "new")
    for url in (None, postgres_url):
        with State(tmp_path / "new", url=url) as again:
            assert again.adapters.all() == kept
            assert again.adapters.get(KEY).current.number == 2


def test_a_merged_model_is_served_where_its_copy_is_restored(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "mine"
    with State(data):
        pass
    (data / "merged" / "base-legal-0123").mkdir(parents=True)
    (data / "merged" / "base-legal-0123" / "model.safetensors").write_bytes(b"weights")
    (data / "merged" / ".base-sql-4567-half").mkdir()
    (data / "recipes").mkdir()
    for name, folder in (("legal", data / "merged" / "base-legal-0123"), ("mine", elsewhere)):
        recipe = f"id: {name}\nversion: 1\ntask: chat\nsource:\n  path: {folder}\nengine: {{name: vllm}}\n"
        (data / "recipes" / f"{name}@1.yaml").write_text(recipe)
    (data / "recipes" / "broken@1.yaml").write_text("source: [")
    back_up(data, tmp_path / "copy", pepper=False)
    restore(tmp_path / "copy", tmp_path / "new")
    found = {one.id: one.source for one in Shelf(tmp_path / "new" / "recipes").read().recipes}
    legal, mine = found["legal"], found["mine"]
    assert isinstance(legal, PathSource)
    assert Path(legal.path).resolve() == tmp_path / "new" / "merged" / "base-legal-0123"
    assert (Path(legal.path) / "model.safetensors").read_bytes() == b"weights"
    assert mine == PathSource(path=str(elsewhere))
    assert [one.name for one in (tmp_path / "new" / "merged").iterdir()] == ["base-legal-0123"], "not what is half made"
