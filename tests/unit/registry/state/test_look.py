"""Reading the state while a server writes it, or without a server."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from registry.errors import Conflict, NotFound, Unavailable
from registry.state.database import State
from tests.unit.registry.makers import KEY, new


def test_a_read_only_state_sees_commits_and_writes_nothing(tmp_path: Path) -> None:
    with State(tmp_path) as server:
        server.adapters.register(KEY, new(1))
        with State(tmp_path, read_only=True) as look:
            server.adapters.register(KEY, new(2))
            assert look.adapters.get(KEY).current.number == 2
            with pytest.raises(Unavailable):
                look.adapters.register(KEY, new(3))
    with State(tmp_path, read_only=True) as look:
        assert look.adapters.get(KEY).current.number == 2


def test_a_missing_state_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="No server has used"):
        State(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()


def test_another_format_is_refused_and_not_migrated(tmp_path: Path) -> None:
    State(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "state.db")) as db, db:
        db.execute("DROP TABLE state_version")
    with pytest.raises(Conflict, match="an older version"):
        State(tmp_path, read_only=True)
