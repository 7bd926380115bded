"""Servers of two versions on one database: the older one serves, and can restart on what the newer one migrated.

Only runs with FLEET_UPGRADE=1, with servers of other versions in git worktrees.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tenants.caller import SCOPES
from tenants.keys.records import KeyRequest
from tenants.keys.table import KeyTable
from tenants.ledger.report import Grouping, UsageFilter, used
from tenants.ledger.table import LedgerTable
from tenants.storage.opening import open_tables
from tests.eventually import eventually
from tests.system.fleet.serving import PEPPER, FleetOfServers, fleet, has_postgres, wait_for_models
from tests.system.serving import ROOT, STARTER, Server

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not os.environ.get("FLEET_UPGRADE"), reason="minutes of processor time: FLEET_UPGRADE=1"),
    pytest.mark.skipif(not has_postgres(), reason="apt-get install postgresql"),
]
EMBED: Any = {"model": "starter-embed", "input": "hello"}
RECIPE = STARTER / "starter-embed.yaml"
ROOMS = ("registry/state", "registry/state/shared", "tenants/storage", "batches/storage", "fleet/membership")
TABLES = {
    "registry/state": "adapters", "registry/state/shared": "revision", "tenants/storage": "ledger",
    "batches/storage": "batches", "fleet/membership": "members",
}  # fmt: skip
LATER = """import sqlalchemy as sa
from alembic import op

revision, down_revision, least = "{next}", "{own}", "{own}"


def upgrade() -> None:
    op.add_column("{table}", sa.Column("colour", sa.String(20), nullable=False, server_default="none"))
"""


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def worktree(folder: Path, commit: str) -> Iterator[Path]:
    git("worktree", "add", "--detach", str(folder), commit)
    try:
        yield folder
    finally:
        git("worktree", "remove", "--force", str(folder))


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[FleetOfServers]:
    with fleet(tmp_path / "fleet") as servers:
        yield servers


def ask(server: Server, key: str | None = None) -> str:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    answer = server.http.post("/v1/embeddings", json=EMBED, headers=headers)
    assert answer.status_code == 200, f"{answer.text}\n{server.tail()}"
    return answer.headers.get("x-roundhouse-node", "")


def test_a_server_of_before_the_fleet_serves_beside_it_and_starts_again(
    servers: FleetOfServers, tmp_path: Path
) -> None:
    first = git("log", "--diff-filter=A", "--format=%H", "--", "fleet/__init__.py").splitlines()[-1]
    with worktree(tmp_path / "before", f"{first}^") as before:
        variables = {"ROUNDHOUSE_DATABASE": servers.database, "ROUNDHOUSE_PEPPER": PEPPER, "PYTHONPATH": str(before)}
        env = {**os.environ, **variables}
        command = [sys.executable, "-P", "-m", "runtime.cli.main", "keys", "create", "--team", "default", "--json"]
        command += ["--scopes", "infer,models,usage", "--data-dir", str(tmp_path / "data" / "old")]
        made = subprocess.run(command, cwd=before, env=env, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        key = json.loads(made.stdout)["value"]
        with Server(tmp_path / "data" / "old", [RECIPE], "--slots", "1", env=env, cwd=before) as old:
            ask(old.wait_ready(), key)
            node, front = servers.node("node-1", [RECIPE], "--slots", "1"), servers.front("front-1")
            front.http.headers["Authorization"] = f"Bearer {key}"
            node.wait_ready()
            wait_for_models(front.wait_ready(), "starter-embed")
            assert ask(front) == "node-1"
            with closing(open_tables(tmp_path, servers.database)) as database:
                _, new_key = KeyTable(database, PEPPER.encode()).create(KeyRequest("default", scopes=SCOPES))
                eventually(
                    lambda: old.http.get("/v1/models", headers={"x-api-key": new_key}).status_code == 200, old.tail
                )
                ask(old, new_key)
                assert old.stop() == 0, old.tail()
                old.start()
                ask(old.wait_ready(), key)
                assert ask(front, new_key) == "node-1"
                eventually(lambda: LedgerTable(database, "any").open_rows() == 0)
                (sums,) = used(database, UsageFilter(0, 2**40, (Grouping.TEAM,)))
                assert (sums.names, sums.requests, sums.interrupted) == (("default",), 5, 0)
                assert LedgerTable(database, "any").differences() == []


def make_later(tree: Path) -> None:
    """Make a later version that adds to the tables of every package, and to what servers send one another."""
    for room in ROOMS:
        versions = tree / room / "migrations" / "versions"
        own = max(file.name[:4] for file in versions.glob("[0-9]*.py"))
        text = LATER.format(own=own, next=f"{int(own) + 1:04}", table=TABLES[room])
        (versions / f"{int(own) + 1:04}_later.py").write_text(text)
    for name, before, added in (
        ("fleet/reports.py", "    draining: bool = False\n", '    colour: str = "green"\n'),
        ("runtime/gateway/peers/hop.py", '    adapter: Text = ""\n', '    colour: Text = ""\n'),
        ("runtime/gateway/peers/hop.py", "            id=context.id,\n", '            colour="green",\n'),
    ):
        text = (tree / name).read_text()
        assert text.count(before) == 1
        (tree / name).write_text(text.replace(before, before + added))


def test_a_node_of_this_version_serves_a_later_front_and_starts_again(servers: FleetOfServers, tmp_path: Path) -> None:
    with worktree(tmp_path / "later", "HEAD") as later:
        make_later(later)
        node = servers.node("node-1", [RECIPE], "--slots", "1").wait_ready()
        front = servers.front("front-1", tree=later).wait_ready()
        newer = servers.node("node-2", [RECIPE], "--slots", "1", tree=later).wait_ready()
        wait_for_models(front, "starter-embed")
        wait_for_models(node, "starter-embed")
        for server in (front, node, newer):
            ask(server)
        assert node.stop() == 0, node.tail()
        assert ask(front) == "node-2"
        node.start()
        node.wait_ready()
        assert newer.stop() == 0, newer.tail()
        eventually(lambda: front.http.post("/v1/embeddings", json=EMBED).status_code == 200, front.tail)
        assert ask(front) == "node-1"
