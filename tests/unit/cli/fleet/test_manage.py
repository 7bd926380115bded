"""`roundhouse fleet status`, `nodes`, `drain` and `undrain` against a server's answers."""

import json
from typing import Any

from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_server import Answer, FakeServer

MEMBER: dict[str, Any] = {
    "object": "fleet.member", "name": "node-1", "role": "node", "state": "up", "boot": 3, "version": "0.1.0",
    "address": "https://10.0.0.5:8443", "report_seconds": 0.4, "clock_offset_seconds": 0.01, "is_clock_off": False,
    "devices": [{"device": "cpu", "label": "cpu", "budget_bytes": 2**30, "used_bytes": 2**29}],
    "models": [
        {
            "model": "starter-chat", "revision": "1f2e", "state": "ready", "ready": 1, "running": 2, "waiting": 1,
            "start_seconds": 0.0,
        }
    ],
}  # fmt: skip
FRONT = {
    **MEMBER,
    "name": "front-1",
    "role": "front",
    "report_seconds": None,
    "clock_offset_seconds": None,
    "devices": [],
    "models": [],
}
FLEET: dict[str, Any] = {
    "object": "fleet", "name": "models", "server": "front-1", "role": "front", "boot": 1,
    "certificate_ends": "2027-02-26 06:00", "is_joined": True, "nodes": 1, "fronts": 1, "dropped_headers": 0,
    "ignored_reports": {"old": 2}, "epoch": 7, "is_followed": True, "members": [MEMBER, FRONT],
}  # fmt: skip


def test_the_status_is_printed(run: Run, server: FakeServer) -> None:
    server.on("GET", "/v1/fleet", Answer(FLEET))
    printed = run("fleet", "status")
    assert printed.exit_code == 0, printed.stderr
    assert "front-1, a front" in printed.stdout
    assert "2 old" in printed.stdout
    assert "agree with the database" in printed.stdout
    assert json.loads(run("fleet", "status", "--json").stdout) == FLEET


def test_the_status_names_servers_whose_clocks_are_wrong(run: Run, server: FakeServer) -> None:
    early = {**MEMBER, "clock_offset_seconds": 600.2, "is_clock_off": True}
    late = {**FRONT, "clock_offset_seconds": -7.0, "is_clock_off": True}
    server.on("GET", "/v1/fleet", Answer({**FLEET, "members": [early, late]}))
    printed = " ".join(run("fleet", "status").stdout.split())
    assert "node-1 is 600 s ahead of the database; front-1 is 7 s behind the database. Correct them." in printed


def test_a_server_that_could_not_renew_its_lease_has_not_joined(run: Run, server: FakeServer) -> None:
    server.on("GET", "/v1/fleet", Answer({**FLEET, "is_joined": False}))
    printed = " ".join(run("fleet", "status").stdout.split())
    assert "joined no, because its database does not answer, or another server has its name" in printed


def test_each_server_is_printed_on_a_line(run: Run, server: FakeServer) -> None:
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


PLAN: dict[str, Any] = {
    "object": "fleet.plan", "epoch": 4, "is_followed": True, "is_leading": False,
    "models": [
        {
            "model": "starter-chat", "nodes": ["node-1"], "ready": ["node-1"], "bytes": 2**29, "demand": 0.25,
            "replicas": 2, "on": ["node-1"], "unplaced": "no node has room for it.", 
            "problems": {"node-3": "no folder"},
        }
    ],
    "moves": [{"model": "starter-chat", "node": "node-2", "action": "load", "why": "hand"}],
}  # fmt: skip


def test_the_plan_says_where_a_model_is_and_why_not_on_other_nodes(run: Run, server: FakeServer) -> None:
    server.on("GET", "/v1/fleet/plan", Answer(PLAN))
    header, row, move = run("fleet", "plan").stdout.splitlines()
    assert header.split()[:5] == ["MODEL", "NODES", "READY", "BYTES", "DEMAND"]
    assert row.split() == [
        "starter-chat", "node-1", "node-1", "512.0", "MiB", "0.25", "2", "node-1", "no",
        "node", "has", "room", "for", "it.", "node-3:", "no", "folder",
    ]  # fmt: skip
    assert move == "now: load starter-chat on node-2 (hand)"
    server.on("GET", "/v1/fleet/plan", Answer({**PLAN, "is_followed": False}))
    assert "older than what" in run("fleet", "plan").stdout


def test_a_model_is_placed_by_hand_and_released(run: Run, server: FakeServer) -> None:
    server.on("PUT", "/v1/fleet/placements/starter-chat", Answer(PLAN))
    server.on("DELETE", "/v1/fleet/placements/starter-chat", Answer(PLAN))
    assert run("fleet", "place", "starter-chat", "--replicas", "2", "--on", "node-1").exit_code == 0
    assert json.loads(server.received[-1].body) == {"replicas": 2, "on": ["node-1"]}
    assert run("fleet", "place", "starter-chat", "--release").exit_code == 0
    assert server.received[-1].method == "DELETE"


def test_a_choice_and_the_signal_are_explained(run: Run, server: FakeServer) -> None:
    choice = {
        "object": "fleet.choice", "model": "starter-chat", "adapter": "uppercase", "revision": "1f2e",
        "digest": "sha256:1", "nodes": ["node-1", "node-2"], "tries": ["node-2", "node-1"], "reason": "adapter",
        "candidates": [{"node": "node-2", "start_seconds": 0.0, "adapter_seconds": 0.05, "work": 3.0}],
    }  # fmt: skip
    server.on("GET", "/v1/fleet/explain/uppercase", Answer(choice))
    printed = run("fleet", "explain", "uppercase").stdout
    assert "node-2, then node-1" in printed
    assert printed.splitlines()[-1].split() == ["node-2", "0.000", "0.050", "3"]
    signal = {
        "object": "fleet.signal", "nodes": 2, "needed_nodes": 3,
        "models": [{"model": "starter-chat", "ready": 2, "demand": 1.75, "needed": 3}],
    }  # fmt: skip
    server.on("GET", "/v1/fleet/signal", Answer(signal))
    first, *_, last = run("fleet", "signal").stdout.splitlines()
    assert first == "nodes: 2, needed: 3"
    assert last.split() == ["starter-chat", "2", "1.75", "3"]
