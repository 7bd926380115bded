"""A backup of a server whose state is in PostgreSQL."""

from pathlib import Path

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
