"""The keyring of a running server follows the tables."""

import sys
from pathlib import Path

import pytest

from registry.errors import Conflict, Unauthorized
from tenants.caller import EVERYBODY
from tenants.keys import pepper
from tenants.keys.records import Wanted
from tenants.keys.table import KeyTable
from tenants.place import FILE, Place
from tenants.storage.opening import open_tables
from tenants.watch import KeyWatch
from tests.unit.tenants.conftest import PEPPER


async def test_the_first_key_closes_an_open_server_and_a_revoked_one_does_not_open_it(
    tmp_path: Path, url: str | None
) -> None:
    place = Place(tmp_path, url, PEPPER.decode())
    watch = KeyWatch(place)
    await watch.start()
    assert watch.who([]) is EVERYBODY
    tables = open_tables(tmp_path, url)
    table = KeyTable(tables, PEPPER)
    table.create_team("search")
    await watch.look()
    assert watch.who([]) is EVERYBODY, "a team is no key"
    key, text = table.create(Wanted("search"))
    await watch.look()
    assert watch.who([text]).key == key.id
    with pytest.raises(Unauthorized):
        watch.who([])
    table.archive("search", True)
    await watch.look()
    with pytest.raises(Unauthorized, match="archived"):
        watch.who([text])
    table.archive("search", False)
    table.revoke(key.id)
    await watch.look()
    with pytest.raises(Unauthorized, match="revoked"):
        watch.who([text])
    with pytest.raises(Unauthorized):
        watch.who([])
    await watch.close()
    tables.close()


async def test_a_server_that_others_reach_is_open_only_when_it_is_said(tmp_path: Path) -> None:
    closed, opened = (KeyWatch(Place(tmp_path, loopback=False, open=said)) for said in (False, True))
    for watch in (closed, opened):
        await watch.start()
    assert opened.who(["none"]) is EVERYBODY
    with pytest.raises(Unauthorized):
        closed.who(["none"])
    for watch in (closed, opened):
        await watch.close()
    assert list(tmp_path.iterdir()) == [], "who has no keys has no files for them"


async def test_known_keys_go_on_when_the_database_is_gone(tmp_path: Path) -> None:
    tables = open_tables(tmp_path)
    table = KeyTable(tables, pepper.load(tmp_path))
    key, text = table.create(Wanted("default"))
    watch = KeyWatch(Place(tmp_path))
    await watch.start()
    tables.close()
    for file in tmp_path.glob("tenants.db*"):
        file.unlink()
    (tmp_path / "tenants.db").mkdir()
    assert watch.who([text]).key == key.id
    await watch.close()


async def test_a_start_with_another_pepper_fails(tmp_path: Path) -> None:
    tables = open_tables(tmp_path)
    KeyTable(tables, PEPPER)
    tables.close()
    with pytest.raises(Conflict, match="another pepper"):
        await KeyWatch(Place(tmp_path)).start()


def test_a_server_without_keys_makes_no_tables_of_teams(tmp_path: Path) -> None:
    """Nor loads what they need. In a process of its own: what this one has imported says nothing."""
    import subprocess

    code = (
        "import asyncio, sys, pathlib\n"
        "from runtime.gateway import opening\n"
        "from tenants.watch import KeyWatch; from tenants.place import Place\n"
        f"watch = KeyWatch(Place(pathlib.Path({str(tmp_path)!r})))\n"
        "asyncio.run(watch.look())\n"
        "print([name for name in ('tenants.storage.tables', 'alembic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert not (tmp_path / FILE).exists()
