"""Routers in the state, and data directories from before they had names of their own."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from registry.errors import BadRequest, Conflict, NotFound
from registry.records import AdapterKey, RouterKey
from registry.state.database import FILE, State
from registry.state.tables import DIGESTS
from tests.unit.registry.makers import digest

AUTO = RouterKey("auto")
OLD = Path(__file__).with_name("state-0001.sql")
"""A data directory's state.db when routers were adapters on the base '@routers'."""


def register(state: State, *numbers: int) -> None:
    for number in numbers:
        assert state.routers.register(AUTO, digest(number), 100 + number, "request")


def test_routers_have_versions_aliases_and_rollback(state: State) -> None:
    register(state, 1, 2)
    assert not state.routers.register(AUTO, digest(2), 102, "request"), "the same content is no new version"
    assert state.routers.set_alias(AUTO, "prod", "v1").aliases == {"prod": 1}
    assert state.routers.rollback(AUTO).current.tag == "v1"
    assert state.routers.rollback(AUTO, "v2").current.tag == "v2"
    assert state.routers.remove_alias(AUTO, "prod").aliases == {}
    state.routers.delete(AUTO)
    register(state, 3)
    assert state.routers.get(AUTO).current.tag == "v3", "auto@v1 must never mean other content than before"
    assert (state.adapters.all(), state.adapters.garbage()) == ((), ())


def test_a_router_and_its_alias_are_registered_atomically(state: State) -> None:
    assert state.routers.register(AUTO, digest(1), 101, "request", "prod")
    with pytest.raises(BadRequest, match="must not look like a version"):
        state.routers.register(AUTO, digest(2), 102, "request", "v3")
    assert (state.routers.get(AUTO).current.tag, state.routers.get(AUTO).aliases) == ("v1", {"prod": 1})
    assert state.routers.register(AUTO, digest(2), 102, "request", "prod")
    assert (state.routers.get(AUTO).current.tag, state.routers.get(AUTO).aliases) == ("v2", {"prod": 2})


def test_errors_name_the_router(state: State) -> None:
    register(state, 1)
    state.routers.set_alias(AUTO, "prod", "v1")
    with pytest.raises(NotFound, match="Router 'auto' has no version 'v9'") as unknown:
        state.routers.get(AUTO).version("v9")
    assert unknown.value.code == "router_version_not_found"
    with pytest.raises(NotFound, match="There is no router 'other'") as missing:
        state.routers.rollback(RouterKey("other"))
    assert missing.value.code == "router_not_found"
    with pytest.raises(Conflict, match="Router 'auto' is held by alias 'prod'") as used:
        state.routers.delete(AUTO)
    assert used.value.code == "router_in_use"
    state.routers.delete(AUTO, force=True)
    assert state.routers.all() == ()


def test_an_older_data_directory_keeps_its_routers(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE)) as old:
        old.executescript(OLD.read_text())
    with State(tmp_path) as state:
        router = state.routers.get(AUTO)
        assert [(v.tag, v.digest, v.bytes, v.source) for v in router.versions] == [
            ("v1", digest(11), 300, "request"), ("v2", digest(12), 310, "fitted intents"),
            ("v3", digest(13), 320, "request"),
        ]  # fmt: skip
        assert (router.current.tag, router.aliases, router.created) == ("v2", {"prod": 2}, 1_790_000_000.0)
        assert [state.routers.rollback(AUTO).current.tag for _ in range(3)] == ["v3", "v2", "v1"]
        (adapter,) = state.adapters.all()
        assert (adapter.key, adapter.pinned, adapter.shared) == (AdapterKey("starter-chat", "legal"), True, True)
        assert (adapter.current.digest, adapter.aliases) == (digest(1), {"prod": 1})
        assert state.adapters.ever() == {adapter.key}
        assert state.routers.ever() == {AUTO, RouterKey("gone")}
        state.routers.register(RouterKey("gone"), digest(15), 1, "request")
        assert state.routers.get(RouterKey("gone")).current.tag == "v2", "numbers continue"
        with state._database.read() as connection:
            digests = set(connection.execute(sa.select(DIGESTS.c.digest)).scalars())
        assert digests == {digest(1), digest(14)}, "14 is garbage, as it belonged to a removed router"
    with State(tmp_path, read_only=True) as state:
        assert len(state.routers.all()) == 2
