"""Two nodes with the starter pack's chat model and a front: adapters spread; a node is killed, stopped, drained."""

import itertools
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from runtime.cli.main import app
from tests.eventually import PATIENCE, eventually
from tests.ports import is_free
from tests.system.fleet.serving import FleetOfServers, fleet, has_postgres, wait_for_models
from tests.system.serving import PACK, STARTER, Server

pytestmark = [pytest.mark.real, pytest.mark.skipif(not has_postgres(), reason="apt-get install postgresql")]
RECIPE = STARTER / "starter-chat.yaml"
LONG_FORM = pytest.mark.skipif(not os.environ.get("FLEET_FAULTS"), reason="half a minute of waiting: FLEET_FAULTS=1")
MOVES = int(os.environ.get("FLEET_MOVES", "10000"))
ALIASES = ("prod", "next", "canary", "test")
"""Aliases that move at the same time, each by one client."""
LONG: Any = {
    "model": "starter-chat", "messages": [{"role": "user", "content": "What is a slot?"}], "ignore_eos": True,
    "max_tokens": 200, "temperature": 0,
}  # fmt: skip


class Rig:
    def __init__(self, servers: FleetOfServers) -> None:
        self.servers = servers
        self.nodes = {name: servers.node(name, [RECIPE], "--slots", "1") for name in ("node-1", "node-2")}
        self.front = servers.front("front-1").wait_ready()
        for node in self.nodes.values():
            node.wait_ready()
            assert node.http.post("/v1/models/starter-chat/load").status_code == 200, node.tail()
        wait_for_models(self.front, "starter-chat")
        self.wait_up("node-1", "node-2")

    def states(self, server: Server | None = None) -> dict[str, str]:
        """Return the servers' states as seen by this server, by default the front."""
        answer = (server or self.front).http.get("/v1/fleet").json()
        return {one["name"]: one["state"] for one in answer["members"]}

    def wait_up(self, *names: str) -> None:
        def ready() -> bool:
            members = {one["name"]: one for one in self.front.http.get("/v1/fleet").json()["members"]}
            return all(
                name in members and members[name]["state"] == "up" and any(m["ready"] for m in members[name]["models"])
                for name in names
            )

        eventually(ready, lambda: f"{self.states()}\n{self.front.tail()}")

    def ask(self, **more: Any) -> httpx.Response:
        return self.front.http.post("/v1/chat/completions", json={**LONG, **more})

    def nodes_of(self, count: int = 12) -> set[str]:
        """Return the nodes that answer `count` different requests."""
        found = set()
        for number in range(count):
            answer = self.ask(max_tokens=4, messages=[{"role": "user", "content": f"say {number}"}])
            assert answer.status_code == 200, answer.text
            found.add(answer.headers["x-roundhouse-node"])
        return found


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with fleet(tmp_path_factory.mktemp("fleet")) as servers:
        yield Rig(servers)


def drained(rig: Rig, node: str, what: str, **query: Any) -> httpx.Response:
    return rig.front.http.post(f"/v1/fleet/nodes/{node}/{what}", params=query)


def test_a_drained_node_gets_nothing_new_and_comes_back(rig: Rig) -> None:
    assert drained(rig, "node-1", "drain").status_code == 200
    own = rig.nodes["node-1"]
    eventually(lambda: rig.states(own)["node-1"] == "draining", own.tail)  # so its next report will say so
    eventually(lambda: rig.nodes_of() == {"node-2"}, lambda: str(rig.states()))
    assert rig.nodes_of() == {"node-2"}
    last = drained(rig, "node-2", "drain")
    assert (last.status_code, last.json()["error"]["code"]) == (409, "last_node")
    assert "--force" in last.json()["error"]["message"]
    assert drained(rig, "node-9", "drain").json()["error"]["code"] == "server_not_found"
    assert drained(rig, "node-1", "undrain").status_code == 200
    eventually(lambda: rig.nodes_of() == {"node-1", "node-2"})


def new_adapter(folder: Path) -> Path:
    """Write an archive of an adapter with the answers of `uppercase` but another digest."""
    shutil.copytree(PACK / "adapters" / "uppercase", folder / "loud", copy_function=shutil.copyfile)
    config = folder / "loud" / "adapter_config.json"
    fields = json.loads(config.read_text())
    config.write_text(json.dumps({**fields, "lora_alpha": fields["lora_alpha"] * 1.125}))
    return Path(shutil.make_archive(str(folder / "loud"), "gztar", folder / "loud"))


def test_an_adapter_registered_through_a_front_answers_on_every_node(rig: Rig, tmp_path: Path) -> None:
    form = {"name": "loud", "base": "starter-chat", "alias": "prod"}
    with new_adapter(tmp_path).open("rb") as file:
        made = rig.front.http.post("/v1/adapters", data=form, files={"file": file})
    assert made.status_code == 201, made.text
    stored = [node.data / "store" / made.json()["digest"].removeprefix("sha256:") for node in rig.nodes.values()]
    assert all(folder.is_dir() for folder in stored), "before the registration was answered"

    def ask(server: Server, model: str) -> httpx.Response:
        body = {**LONG, "model": model, "max_tokens": 8, "messages": [{"role": "user", "content": "good morning"}]}
        return server.http.post("/v1/chat/completions", json=body)

    answers = {name: ask(node, "loud@prod") for name, node in rig.nodes.items()}
    assert {name: one.headers["x-roundhouse-node"] for name, one in answers.items()} == {name: name for name in answers}
    texts = {one.json()["choices"][0]["message"]["content"] for one in (*answers.values(), ask(rig.front, "loud@prod"))}
    assert len(texts) == 1
    assert texts.pop().startswith("GOOD")
    moved = rig.nodes["node-2"].http.put("/v1/adapters/loud/aliases/next", json={"version": "v1"})
    assert moved.status_code == 200, moved.text
    for server in (rig.front, rig.nodes["node-1"]):
        eventually(lambda server=server: ask(server, "loud@next").status_code == 200)  # type: ignore[misc]
    assert rig.nodes["node-1"].http.delete("/v1/adapters/loud", params={"force": True}).status_code == 200
    eventually(lambda: not any(folder.exists() for folder in stored), lambda: str(stored))
    eventually(lambda: ask(rig.front, "loud@prod").status_code == 404)


@LONG_FORM
@pytest.mark.timeout(3600)
def test_a_request_never_sees_half_of_a_moved_alias(rig: Rig) -> None:
    """While every server moves aliases, each answer has the text of the version in its header."""
    texts, ended = {}, threading.Event()
    for source, text in (("uppercase", "GOOD MORNING"), ("rot13", "tbbq zbeavat")):
        body = {"name": "moved", "base": "starter-chat", "source": {"path": str(PACK / "adapters" / source)}}
        made = rig.front.http.post("/v1/adapters", json=body)
        assert made.status_code == 201, made.text
        texts[made.json()["digest"]] = text
    servers = (rig.front, *rig.nodes.values())

    def move(alias: str, numbers: Iterable[int]) -> None:
        """Move an alias back and forth, each time through another server."""
        for number in numbers:
            if ended.is_set():  # another thread has failed
                return
            path = f"/v1/adapters/moved/aliases/{alias}"
            moved = servers[number % 3].http.put(path, json={"version": f"v{1 + number % 2}"})
            assert moved.status_code == 200, moved.text

    def ask(server: Server) -> set[tuple[str, str]]:
        """Return the aliases and digests of a server's answers."""
        seen = set()
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
            for number in itertools.count():
                alias = ALIASES[number % len(ALIASES)]
                body = {**LONG, "model": f"moved@{alias}", "max_tokens": 8, "ignore_eos": False}
                body |= {"messages": [{"role": "user", "content": "good morning"}]}
                answer = http.post("/v1/chat/completions", json=body)
                assert answer.status_code == 200, answer.text
                digest = answer.headers["x-roundhouse-adapter"].rpartition("@")[2]
                text = answer.json()["choices"][0]["message"]["content"]
                assert texts[digest][:1] == text[:1], (text, digest)
                seen.add((alias, digest))
                answers.append(number)
                if ended.is_set():
                    break
        return seen

    for alias in ALIASES:
        move(alias, (0,))
    for server in servers:
        eventually(lambda server=server: set(ALIASES) <= set(server.http.get("/v1/adapters/moved").json()["aliases"]))  # type: ignore[misc]
    began, answers = time.monotonic(), list[int]()
    with ThreadPoolExecutor(2 * len(servers)) as readers, ThreadPoolExecutor(len(ALIASES)) as movers:
        asking = [readers.submit(ask, server) for server in 2 * servers]
        try:
            moving = [movers.submit(move, alias, range(1, 1 + MOVES // len(ALIASES))) for alias in ALIASES]
            for one in as_completed(moving):
                one.result()
        finally:
            ended.set()
        seen = [one.result(PATIENCE) for one in asking]
    print(f"{MOVES} moves and {len(answers)} answers in {time.monotonic() - began:.0f} s")
    assert all(pairs == set(itertools.product(ALIASES, texts)) for pairs in seen), "each reader saw all"
    assert rig.front.http.delete("/v1/adapters/moved", params={"force": True}).status_code == 200


def cli(rig: Rig, *arguments: str) -> Any:
    done = CliRunner().invoke(app, ["fleet", *arguments, "--url", rig.front.url, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def placed(rig: Rig) -> Any:
    [one] = [one for one in cli(rig, "plan")["models"] if one["model"] == "starter-chat"]
    return one


def test_a_model_is_placed_by_hand_moves_and_is_released(rig: Rig) -> None:
    cli(rig, "place", "starter-chat", "--replicas", "1", "--on", "node-1")
    eventually(lambda: placed(rig)["ready"] == ["node-1"], lambda: f"{placed(rig)}\n{rig.front.tail()}")
    assert (placed(rig)["nodes"], placed(rig)["on"], placed(rig)["replicas"]) == (["node-1"], ["node-1"], 1)
    choice = cli(rig, "explain", "uppercase")
    assert (choice["model"], choice["adapter"], choice["tries"]) == ("starter-chat", "uppercase", ["node-1"])
    assert choice["nodes"] == ["node-1", "node-2"]
    assert rig.nodes_of() == {"node-1"}
    cli(rig, "place", "starter-chat", "--replicas", "2")
    eventually(lambda: placed(rig)["ready"] == ["node-1", "node-2"], lambda: f"{placed(rig)}\n{rig.front.tail()}")
    eventually(lambda: rig.nodes_of() == {"node-1", "node-2"})
    cli(rig, "place", "starter-chat", "--release")
    again = rig.front.http.delete("/v1/fleet/placements/starter-chat")
    assert (again.status_code, again.json()["error"]["code"]) == (404, "not_placed")
    assert (placed(rig)["replicas"], placed(rig)["nodes"]) == (None, ["node-1", "node-2"]), "what is there stays"
    needed = cli(rig, "signal")
    assert (needed["nodes"], needed["needed_nodes"]) == (2, 1)
    refused = rig.front.http.put("/v1/fleet/placements/starter-chat", json={"on": ["node-9"]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "server_not_found")
    refused = rig.front.http.put("/v1/fleet/placements/starter-chut", json={"replicas": 1})
    assert refused.json()["error"]["code"] == "model_not_found"
    assert "starter-chat" in refused.json()["error"]["message"]


@LONG_FORM
def test_a_node_whose_engine_stands_still_is_left_alone_until_it_answers_a_probe(rig: Rig) -> None:
    """Its gateway continues to report, so only its answers show the fault."""
    core = rig.nodes["node-1"].core_pid("starter-chat")

    def ask(number: int) -> httpx.Response:
        return rig.ask(stream=True, max_tokens=4, messages=[{"role": "user", "content": f"count {number}"}])

    with ThreadPoolExecutor(16) as pool:
        os.kill(core, signal.SIGSTOP)
        try:
            waiting = [pool.submit(ask, number) for number in range(16)]
            eventually(lambda: rig.states()["node-1"] == "late", lambda: f"{rig.states()}\n{rig.front.tail()}")
            assert {ask(number).headers["x-roundhouse-node"] for number in range(8)} == {"node-2"}
            assert rig.states(rig.nodes["node-1"])["node-1"] == "up"
        finally:
            os.kill(core, signal.SIGCONT)
        answers = [one.result(PATIENCE) for one in waiting]
    assert {one.status_code for one in answers} == {200}
    assert {one.headers["x-roundhouse-node"] for one in answers} == {"node-1", "node-2"}
    eventually(lambda: ask(0) and rig.states()["node-1"] == "up", lambda: f"{rig.states()}\n{rig.front.tail()}")
    eventually(lambda: rig.nodes_of() == {"node-1", "node-2"})


def test_a_model_added_through_a_front_is_on_every_node_until_it_is_removed(rig: Rig) -> None:
    body = {"source": "package:models.starter/pack/starter-chat", "id": "added", "overrides": {"aliases": ["extra"]}}
    made = rig.front.http.post("/v1/models", json=body)
    assert made.status_code == 201, made.text

    def digests() -> set[str]:
        found = [node.http.get("/v1/models/added/recipe") for node in rig.nodes.values()]
        return {one.text if one.status_code == 200 else "" for one in found}

    eventually(lambda: len(digests()) == 1 and "" not in digests(), rig.front.tail)
    again = rig.front.http.post("/v1/models", json={**body, "overrides": {}})
    assert (again.status_code, again.json()["new"]) == (200, False), again.text
    eventually(lambda: rig.front.http.get("/v1/models/extra").status_code == 200, rig.front.tail)
    edited = rig.front.http.patch("/v1/models/added", json={"changes": {"description": "newer"}})
    assert (edited.status_code, edited.json()["version"]) == (200, 2), edited.text
    eventually(lambda: all("description: newer" in one for one in digests()), rig.front.tail)
    assert rig.front.http.delete("/v1/models/added").status_code == 200
    eventually(lambda: digests() == {""}, rig.front.tail)
    eventually(lambda: rig.front.http.get("/v1/models/added").status_code == 404, rig.front.tail)


def open_stream(rig: Rig, node: str, stack: Any) -> httpx.Response:
    """Open a stream that this node answers, and read its first bytes. Streams of other nodes are read to the end."""
    for number in range(64):
        body = {**LONG, "stream": True, "messages": [{"role": "user", "content": f"tell me {number}"}]}
        response = stack.enter_context(rig.front.http.stream("POST", "/v1/chat/completions", json=body))
        if response.headers["x-roundhouse-node"] == node:
            return response
        for _ in response.iter_bytes():
            pass
    raise AssertionError(f"{node} answers nothing")


def events_after(response: httpx.Response) -> list[str]:
    return [line for line in response.iter_lines() if line.startswith("data: ")]


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_node_that_is_gone_ends_its_streams_and_loses_no_other_request(rig: Rig, how: str) -> None:
    """A killed node does not come back in this test."""
    from contextlib import ExitStack

    node = rig.nodes["node-1"]
    core, gateway = node.core_pid("starter-chat"), node.gateway().pid
    with ExitStack() as stack, ThreadPoolExecutor(16) as pool:
        stream = open_stream(rig, "node-1", stack)
        os.kill(core, signal.SIGSTOP)  # so that it stands still in mid-answer
        try:
            whole = [
                pool.submit(rig.ask, max_tokens=8, messages=[{"role": "user", "content": f"whole {number}"}])
                for number in range(12)
            ]
            eventually(lambda: node.http.get("/v1/models/starter-chat").json()["running"] > 1)
            if how == "stopped":
                os.kill(gateway, signal.SIGSTOP)
            else:
                for process in node.family():
                    process.kill()
            lines = events_after(stream)
            assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "node_failed", lines
            answers = [future.result(PATIENCE) for future in whole]
            assert {one.status_code for one in answers} == {200}, [one.text for one in answers]
            assert {one.headers["x-roundhouse-node"] for one in answers} == {"node-2"}
            assert rig.nodes_of() == {"node-2"}
        finally:
            if how == "stopped":
                os.kill(gateway, signal.SIGCONT)
                os.kill(core, signal.SIGCONT)
    if how == "stopped":
        rig.wait_up("node-1")
        eventually(lambda: rig.nodes_of() == {"node-1", "node-2"})
    else:
        eventually(lambda: rig.states().get("node-1") in (None, "silent"))


def test_a_front_that_drains_finishes_its_streams_and_takes_no_more(rig: Rig) -> None:
    """This must be the last test, because the front does not come back."""
    from contextlib import ExitStack

    core = rig.nodes["node-2"].core_pid("starter-chat")
    with ExitStack() as stack:
        stream = open_stream(rig, "node-2", stack)
        os.kill(core, signal.SIGSTOP)  # so that it stands still in mid-answer
        try:
            rig.front.process.send_signal(signal.SIGTERM)
            eventually(lambda: is_free(rig.front.port), rig.front.tail)
            assert rig.front.process.poll() is None, "it waits for the stream"
        finally:
            os.kill(core, signal.SIGCONT)
        assert events_after(stream)[-1] == "data: [DONE]"
    assert rig.front.process.wait(PATIENCE) == 0, rig.front.tail()
