"""A node and a front while their PostgreSQL hangs, and a browser whose front is killed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from registry.storage.database import Database
from tenants.caller import SCOPES
from tenants.keys.records import KeyRequest
from tenants.keys.table import KeyTable
from tenants.ledger.table import LedgerTable
from tenants.storage.opening import open_tables
from tests.eventually import eventually
from tests.postgres import standing_still
from tests.system.fleet.serving import PEPPER, FleetOfServers, fleet, has_postgres, wait_for_models
from tests.system.serving import STARTER, Server, free_port

pytestmark = [pytest.mark.real, pytest.mark.skipif(not has_postgres(), reason="apt-get install postgresql")]
EMBED: Any = {"model": "starter-embed", "input": "hello"}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[FleetOfServers]:
    with fleet(tmp_path) as servers:
        yield servers


def test_requests_go_on_and_sessions_outlive_a_front(servers: FleetOfServers, tmp_path: Path) -> None:
    with closing(open_tables(tmp_path, servers.database)) as database:
        secret = _make_key(database)
        port, key = free_port(), tmp_path / "fleet.key"
        key.write_text("the key of a fleet, 32 or longer\n")
        listen = (f"--fleet-listen=127.0.0.1:{port}", f"--fleet-address=http://127.0.0.1:{port}")
        signed = (f"--fleet-key={key}", "--fleet-name")  # instead of with certificates
        recipes = [STARTER / "starter-embed.yaml"]
        node = servers.node("node-1", recipes, "--slots", "1", *listen, *signed, "node-1")
        front = servers.front("front-1", *signed, "front-1").wait_ready()
        for server in (node.wait_ready(), front):
            server.http.headers["Authorization"] = f"Bearer {secret}"
        assert node.http.post("/v1/models/starter-embed/load").status_code == 200, node.tail()
        wait_for_models(front, "starter-embed")
        _ask(front)
        with standing_still(servers.database):
            for _ in range(10):
                _ask(front)
            journalled = ["ledger_journalled"]
            eventually(lambda: node.http.get("/health/ready").json().get("degraded") == journalled, node.tail)
            _check_refusals(front, node)
            _ask(front)
        eventually(lambda: "degraded" not in node.http.get("/health/ready").json(), node.tail)
        (used,) = node.http.get("/v1/usage", params={"group_by": "team", "from": "2026-01-01"}).json()["data"]
        assert (used["team_id"], used["requests"]) == ("search", 12)
        assert LedgerTable(database, "any").differences() == []
        _check_session(front, node, secret)


def _make_key(database: Database) -> str:
    table = KeyTable(database, PEPPER.encode())
    table.create_team("search")
    return table.create(KeyRequest("search", scopes=SCOPES))[1]


def _ask(server: Server) -> None:
    answer = server.http.post("/v1/embeddings", json=EMBED)
    assert (answer.status_code, answer.headers["x-roundhouse-node"]) == (200, "node-1"), answer.text


def _check_refusals(front: Server, node: Server) -> None:
    """Check that shared changes are refused and have no effect. Each waits for the database, so send all at once."""
    added = {"source": "package:models.starter/pack/starter-chat", "id": "added"}
    changes = (
        ("PUT", "/v1/fleet/placements/starter-embed", {"replicas": 1}),
        ("PUT", "/v1/models/starter-embed/aliases/late", None),
        ("POST", "/v1/models", added),
    )
    with ThreadPoolExecutor(2 * len(changes)) as pool:
        sent = [
            pool.submit(server.http.request, method, path, json=body)
            for server in (front, node)
            for method, path, body in changes
        ]
    for refused in (one.result() for one in sent):
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "database_unavailable"), refused.text


def _check_session(front: Server, node: Server, key: str) -> None:
    """Check that a browser stays signed in after the front at which it signed in is killed."""
    signed_in = front.http.post("/console/sign-in", json={"key": key}, headers={"Origin": front.url})
    assert signed_in.status_code == 200, signed_in.text
    cookie = {"Cookie": signed_in.headers["set-cookie"].split(";")[0]}
    for process in front.family():
        process.kill()
    for server in (front, node):
        del server.http.headers["Authorization"]
    assert node.http.get("/v1/status").status_code == 401
    assert node.http.get("/v1/status", headers=cookie).status_code == 200
