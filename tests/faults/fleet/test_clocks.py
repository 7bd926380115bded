"""A node whose clock is ten minutes ahead, and one whose clock is ten minutes behind.

Only runs with FLEET_FAULTS=1.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tenants.caller import SCOPES
from tenants.keys.records import KeyRequest
from tenants.keys.table import KeyTable
from tenants.storage.opening import open_tables
from tenants.storage.tables import LEDGER
from tests.eventually import PATIENCE, eventually
from tests.system.fleet.serving import PEPPER, FleetOfServers, fleet, has_postgres, wait_for_models
from tests.system.serving import ROOT, STARTER, Server

COMPILER = os.environ.get("CC") or "cc"
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not os.environ.get("FLEET_FAULTS"), reason="minutes of processor time: FLEET_FAULTS=1"),
    pytest.mark.skipif(not has_postgres(), reason="apt-get install postgresql"),
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason="there is no C compiler"),
]
EMBED: Any = {"model": "starter-embed", "input": "hello"}
RECIPE = STARTER / "starter-embed.yaml"
WRONG = 3600
"""Seconds. Longer than PATIENCE, so that a key that another server's clock keeps valid fails the test."""
NEAR = 60.0
"""By how much a time may be off, even on a slow machine."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile `clock.c` for LD_PRELOAD."""
    made = tmp_path_factory.mktemp("clock") / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-Wall", "-Werror", "-o", made, source, "-ldl"], check=True)
    return made


def clock(library: Path, seconds: int) -> Mapping[str, str]:
    """Return the environment variables of a process with a wrong time of day."""
    return {"LD_PRELOAD": str(library), "CLOCK_AHEAD": str(seconds)}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[FleetOfServers]:
    with fleet(tmp_path) as servers:
        yield servers


def member(server: Server, name: str) -> Any:
    return next((one for one in server.http.get("/v1/fleet").json()["members"] if one["name"] == name), None)


def test_the_ledger_has_the_databases_time_and_people_are_warned(
    servers: FleetOfServers, library: Path, tmp_path: Path
) -> None:
    with closing(open_tables(tmp_path, servers.database)) as database:
        table = KeyTable(database, PEPPER.encode())
        table.create_team("search")
        made, key = table.create(KeyRequest("search", scopes=SCOPES))
        node = servers.node("node-1", [RECIPE], "--slots", "1", environment=clock(library, WRONG))
        front = servers.front("front-1").wait_ready()
        for server in (node.wait_ready(), front):
            server.http.headers["Authorization"] = f"Bearer {key}"
        wait_for_models(front, "starter-embed")
        began = time.time()
        answer = front.http.post("/v1/embeddings", json=EMBED)
        assert (answer.status_code, answer.headers["x-roundhouse-node"]) == (200, "node-1"), answer.text
        with database.read() as connection:
            (at,) = connection.execute(sa.select(LEDGER.c.at)).scalars()
        assert began - NEAR < at < time.time() + NEAR
        (used,) = node.http.get("/v1/usage", params={"group_by": "team"}).json()["data"]
        assert used["requests"] == 1
        for server in (front, node):
            eventually(lambda server=server: (member(server, "node-1") or {}).get("is_clock_off"), server.tail)  # type: ignore[misc]
        seen = member(front, "node-1")
        assert seen["clock_offset_seconds"] == pytest.approx(WRONG, abs=NEAR)
        assert (seen["state"], member(front, "front-1")["is_clock_off"]) == ("up", False)
        assert 0 < seen["lease_seconds"] <= 10
        assert "ahead" in front.http.get("/console/fleet?part=servers").text
        command = [sys.executable, "-m", "runtime.cli.main", "fleet", "status", "--url", front.url]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "ROUNDHOUSE_API_KEY": key}
        )
        assert "ahead of the database. Correct them." in " ".join(done.stdout.split()), done.stdout + done.stderr
        assert "clock is not the database's" in node.log.read_text()
        assert "clock is not the database's" not in front.log.read_text()
        table.revoke(made.id)
        for server in (front, node):
            eventually(lambda server=server: server.http.post("/v1/embeddings", json=EMBED).status_code == 401)  # type: ignore[misc]


def test_a_server_whose_certificate_is_not_valid_yet_by_its_clock_says_so(
    servers: FleetOfServers, library: Path
) -> None:
    node = servers.node("node-1", [RECIPE], "--slots", "1", environment=clock(library, -WRONG))
    assert node.process.wait(PATIENCE) == 2, node.tail()
    assert "it is not yet valid" in node.tail()
    assert "or this clock is wrong" in node.tail()
