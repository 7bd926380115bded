"""`roundhouse fleet status`, `nodes`, `drain` and `undrain` against a server's answers."""

import json
from typing import Any

from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_server import Answer, FakeServer

MEMBER: dict[str, Any] = {
    "object": "fleet.member", "name": "node-1", "role": "node", "state": "up", "boot": 3, "version": "0.1.0",
    "address": "https://10.0.0.5:8443", "report_seconds": 0.4,
    "devices": [{"device": "cpu", "label": "cpu", "budget_bytes": 2**30, "used_bytes": 2**29}],
    "models": [
        {
            "model": "starter-chat", "revision": "1f2e", "state": "ready", "ready": 1, "running": 2, "waiting": 1,
            "start_seconds": 0.0,
        }
    ],
}  # fmt: skip
FRONT = {**MEMBER, "name": "front-1", "role": "front", "report_seconds": None, "devices": [], "models": []}
FLEET: dict[str, Any] = {
    "object": "fleet", "name": "models", "server": "front-1", "role": "front", "boot": 1,
    "certificate_ends": "2027-02-26 06:00", "is_joined": True, "nodes": 1, "fronts": 1, "dropped_headers": 0,
    "ignored_reports": {"old": 2}, "members": [MEMBER, FRONT],
}  # fmt: skip


def test_the_status_is_printed(run: Run, server: FakeServer) -> None:
    server.on("GET", "/v1/fleet", Answer(FLEET))
    printed = run("fleet", "status")
    assert printed.exit_code == 0, printed.stderr
    assert "front-1, a front" in printed.stdout
    assert "2 old" in printed.stdout
    assert json.loads(run("fleet", "status", "--json").stdout) == FLEET


def test_each_server_has_a_line(run: Run, server: FakeServer) -> None:
    server.on("GET", "/v1/fleet", Answer(FLEET))
    header, node, front = run("fleet", "nodes").stdout.splitlines()
    assert header.split() == ["NAME", "ROLE", "STATE", "REPORT", "MEMORY", "MODELS", "RUNNING", "WAITING"]
    assert node.split() == [
        "node-1", "node", "up", "0.4", "s", "512.0", "MiB", "of", "1.0", "GiB", "starter-chat", "2", "1"
    ]  # fmt: skip
    assert front.split() == ["front-1", "front", "up", "-", "-", "-", "0", "0"]


def test_a_node_is_drained_and_undrained(run: Run, server: FakeServer) -> None:
    server.on("POST", "/v1/fleet/nodes/node-1/drain", Answer(FLEET))
    server.on("POST", "/v1/fleet/nodes/node-1/undrain", Answer(FLEET))
    assert run("fleet", "drain", "node-1", "--force").exit_code == 0
    assert run("fleet", "undrain", "node-1").exit_code == 0
    assert [(request.path, request.query) for request in server.received] == [
        ("/v1/fleet/nodes/node-1/drain", "force=true"), ("/v1/fleet/nodes/node-1/undrain", "")
    ]  # fmt: skip
