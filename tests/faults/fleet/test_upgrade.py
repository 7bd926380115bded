"""Servers of two versions on one database: the older one serves, and can restart on what the newer one migrated.

Only runs with FLEET_UPGRADE=1, with servers of a later version in a git worktree.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually
from tests.system.fleet.serving import FleetOfServers, fleet, has_postgres, wait_for_models
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


def git(*words: str) -> None:
    subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True)


@contextmanager
def worktree(folder: Path) -> Iterator[Path]:
    git("worktree", "add", "--detach", str(folder))
    try:
        yield folder
    finally:
        git("worktree", "remove", "--force", str(folder))


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[FleetOfServers]:
    with fleet(tmp_path / "fleet") as servers:
        yield servers


def ask(server: Server) -> str:
    answer = server.http.post("/v1/embeddings", json=EMBED)
    assert answer.status_code == 200, f"{answer.text}\n{server.tail()}"
    return answer.headers.get("x-roundhouse-node", "")


def make_later(tree: Path) -> None:
    """Make a later version that adds to the tables of every package, and to what servers send one another."""
    for room in ROOMS:
        versions = tree / room / "migrations" / "versions"
        own = max(file.name[:4] for file in versions.glob("[0-9]*.py"))
        text = LATER.format(own=own, next=f"{int(own) + 1:04}", table=TABLES[room])
        (versions / f"{int(own) + 1:04}_later.py").write_text(text)
    for name, before, added in (
        ("fleet/reports.py", "    draining: bool = False\n", '    colour: str = "green"\n'),
        ("runtime/gateway/peers/hop.py", '    adapter: Printable = ""\n', '    colour: Text = ""\n'),
        ("runtime/gateway/peers/hop.py", "            id=context.id,\n", '            colour="green",\n'),
    ):
        text = (tree / name).read_text()
        assert text.count(before) == 1
        (tree / name).write_text(text.replace(before, before + added))


def test_a_node_of_this_version_serves_a_later_front_and_starts_again(servers: FleetOfServers, tmp_path: Path) -> None:
    with worktree(tmp_path / "later") as later:
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
