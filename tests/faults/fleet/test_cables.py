"""A cable is cut in one or both directions during a stream. Its node continues and reads the list of models again.

Only runs with FLEET_FAULTS=1: two nodes, of which the one behind the cable is the planner when it is first cut. The
database is on this side of the cable.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.eventually import PATIENCE, eventually
from tests.faults.fleet.cable import Cable, missing_right
from tests.postgres import postgres_server
from tests.system.fleet.serving import FleetOfServers, has_postgres, wait_for_models
from tests.system.serving import STARTER, Server

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not os.environ.get("FLEET_FAULTS"), reason="minutes of waiting: FLEET_FAULTS=1"),
    pytest.mark.skipif(not has_postgres(), reason="apt-get install postgresql"),
]
CHAT, EMBED = "starter-chat", "starter-embed"
SILENT = "a node does not report"
"""Logged after three seconds without a report, which is when the node's streams end."""
BODY: Any = {
    "model": CHAT, "messages": [{"role": "user", "content": "What is a slot?"}], "ignore_eos": True,
    "max_tokens": 200, "temperature": 0,
}  # fmt: skip


class Rig:
    """Two nodes. `far` is behind the cable and has both models; `near` forwards chat to it."""

    def __init__(self, servers: FleetOfServers, cable: Cable) -> None:
        self.cable = cable
        recipes = [STARTER / f"{name}.yaml" for name in (CHAT, EMBED)]
        self.far = cable.call(lambda: servers.node("far", recipes, "--slots", "2", host=cable.there).wait_ready())
        loaded = self.at_far("POST", f"/v1/models/{CHAT}/load")
        assert loaded.status_code == 200, self.far.tail()
        eventually(lambda: self.at_far("GET", "/v1/fleet/plan").json()["is_leading"], self.far.tail)
        self.near = servers.node("near", recipes[1:], "--slots", "1", host=cable.here).wait_ready()
        wait_for_models(self.near, CHAT)

    def at_far(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request like a client on the far side of the cable."""
        return self.cable.call(lambda: self.far.http.request(method, path, **more))

    def core(self) -> int:
        return self.cable.call(lambda: self.far.core_pid(CHAT))

    def state_of_far(self) -> str | None:
        members = self.near.http.get("/v1/fleet").json()["members"]
        return next((one["state"] for one in members if one["name"] == "far"), None)

    def is_leading(self, server: Server) -> bool:
        return bool(server.http.get("/v1/fleet/plan").json()["is_leading"])

    def embed_on(self) -> list[str]:
        """Return the nodes on which the second model should be and is ready."""
        plan = self.near.http.get("/v1/fleet/plan").json()
        return next(one["ready"] for one in plan["models"] if one["model"] == EMBED)

    def place(self, node: str) -> httpx.Response:
        return self.near.http.put(f"/v1/fleet/placements/{EMBED}", json={"on": [node]})

    def fault(self) -> str:
        return f"{self.near.tail()}\n--- far ---\n{self.far.tail()}"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    if (reason := missing_right()) is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("fleet")
    with ExitStack() as stack:
        cable = stack.enter_context(Cable())
        database = stack.enter_context(postgres_server(listen=cable.here))
        servers = FleetOfServers(folder, f"postgresql+psycopg://tests@{cable.here}/postgres")
        stack.callback(servers.close)
        stack.callback(cable.mend)
        assert database.url
        yield Rig(servers, cable)


@pytest.mark.parametrize(
    "cut", [{}, {"to_here": False}, {"to_there": False}], ids=["both ways", "requests are lost", "answers are lost"]
)
def test_streams_end_and_the_node_goes_on_and_follows_what_was_placed_meanwhile(rig: Rig, cut: dict[str, bool]) -> None:
    assert rig.place("far").status_code == 200
    eventually(lambda: "far" in rig.embed_on() and rig.state_of_far() == "up", rig.fault)
    core, silences = rig.core(), rig.near.log.read_text().count(SILENT)
    with (
        ThreadPoolExecutor(1) as pool,
        rig.near.http.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as stream,
    ):
        assert stream.headers["x-roundhouse-node"] == "far"
        lines = stream.iter_lines()
        assert next(lines).startswith("data: ")
        os.kill(core, signal.SIGSTOP)  # so that it stops in the middle of the answer
        try:
            rest = pool.submit(lambda: [line for line in lines if line.startswith("data: ")])
            rig.cable.cut(**cut)
            began = time.monotonic()
            last = rest.result(PATIENCE)[-1]
            seconds = time.monotonic() - began
        finally:
            os.kill(core, signal.SIGCONT)
    print(f"{cut or 'both ways'}: ended after {seconds:.2f} s")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "node_failed"
    eventually(lambda: rig.near.log.read_text().count(SILENT) > silences, rig.fault)
    refused = rig.near.http.post("/v1/chat/completions", json=BODY)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert rig.at_far("POST", "/v1/chat/completions", json={**BODY, "max_tokens": 4}).status_code == 200
    assert rig.place("near").status_code == 200
    eventually(lambda: rig.is_leading(rig.near) and "near" in rig.embed_on(), rig.fault)

    rig.cable.mend()
    eventually(lambda: rig.state_of_far() == "up", rig.fault)
    answer = rig.near.http.post("/v1/chat/completions", json={**BODY, "max_tokens": 4})
    assert (answer.status_code, answer.headers["x-roundhouse-node"]) == (200, "far"), answer.text
    eventually(lambda: rig.embed_on() == ["near"], rig.fault)
    assert rig.core() == core, "its engine was kept"
    assert not rig.at_far("GET", "/v1/fleet/plan").json()["is_leading"], "one plans"
