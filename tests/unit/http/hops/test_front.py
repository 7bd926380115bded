"""How a front passes requests on while nodes appear, fail and leave."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest

from fleet import lateness
from fleet.membership.members import Member
from models.messages import Chunk, EmbedResult, Event, ResponseEnd, ResponseStart, Usage
from registry.errors import ContextLengthExceeded, NodeFailed
from registry.recipes.definition import Task
from runtime.gateway.names import ModelRef
from runtime.gateway.peers import backend, names
from runtime.gateway.peers.connection import PeerRequest
from runtime.residency.states import ModelState
from tenants.caller import EVERYBODY
from tests.eventually import PATIENCE
from tests.unit.http.fakes import Wire, recipe
from tests.unit.http.hops.rig import Fleet, Node, opened

EMBED = {"model": "embed", "input": "a"}
STREAM = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True}


def vector(_: Any) -> list[Event]:
    return [EmbedResult(vectors=b"\0\0\x80?", dimensions=1, tokens=[1]), ResponseEnd(usage=Usage(prompt_tokens=1))]


def tokens(_: Any) -> list[Event]:
    pieces = [b'data: {"choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n' % number for number in range(3)]
    start = ResponseStart(status=200, content_type="text/event-stream; charset=utf-8")
    return [start, *map(Chunk, pieces), Chunk(b"data: [DONE]\n\n"), ResponseEnd(usage=Usage(completion_tokens=3))]


def scripted(node: Node) -> Node:
    node.fake.links["embed"].script, node.fake.links["chat"].script = vector, tokens
    return node


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with opened(tmp_path) as fleet:
        yield fleet


async def two(fleet: Fleet) -> tuple[Node, Node]:
    nodes = scripted(fleet.node("node-1")), scripted(fleet.node("node-2"))
    await fleet.start(*nodes)
    return nodes


async def until(seen: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not seen():
            await asyncio.sleep(0.01)


async def until_begun(nodes: tuple[Node, ...], running: list[asyncio.Task[httpx.Response]]) -> None:
    """Wait until all requests for embeddings are in engines, whose gates are closed."""
    links = [node.fake.links["embed"] for node in nodes]
    await until(
        lambda: sum(len(link.requests) for link in links) >= len(running) or any(task.done() for task in running)
    )
    assert [task.result().text for task in running if task.done()] == []


def answered(nodes: tuple[Node, ...]) -> list[str]:
    return [record.context.id for node in nodes for record in node.fake.records.all]


async def test_only_the_node_counts_a_request(fleet: Fleet) -> None:
    node = scripted(fleet.node("node-1"))
    await fleet.start(node)
    answer = await fleet.client.post("/v1/embeddings", json=EMBED, headers={"X-Request-Id": "one"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-roundhouse-node"] == "node-1"
    assert answer.headers["x-request-id"] == "one"
    await until(lambda: answered((node,)) == ["one"])
    assert fleet.front.records.all == []
    assert fleet.front.outcomes() == {}


async def test_an_unknown_name_is_the_fronts_own_error(fleet: Fleet) -> None:
    await fleet.start(scripted(fleet.node("node-1")))
    answer = await fleet.client.post("/v1/embeddings", json={**EMBED, "model": "none"})
    assert answer.status_code == 404
    assert "There are: " in answer.json()["error"]["message"]
    assert [record.code for record in fleet.front.records.all] == ["model_not_found"]


async def test_a_nodes_refusal_is_returned_unchanged(fleet: Fleet) -> None:
    node = fleet.node("node-1")
    node.fake.links["embed"].script = lambda _: [ContextLengthExceeded("Too long.")]
    await fleet.start(node)
    answer = await fleet.client.post("/v1/embeddings", json=EMBED)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert answer.headers["x-roundhouse-node"] == "node-1"
    assert len(node.fake.links["embed"].requests) == 1, "it is not sent to another node"


async def test_a_path_with_a_local_method_is_still_passed_on(fleet: Fleet) -> None:
    """`GET /` is a page, but `POST /` is inference."""
    nodes = await two(fleet)
    answer = await fleet.client.post("/?model=chat", json={"inputs": "hello"})
    assert sum(len(node.fake.links["chat"].requests) for node in nodes) == 1, answer.text


async def test_a_stream_is_passed_on_piece_by_piece(fleet: Fleet) -> None:
    node = scripted(fleet.node("node-1"))
    await fleet.start(node)
    answer = await fleet.client.post("/v1/chat/completions", json=STREAM)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.count("data: ") == 4
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_requests_at_a_dead_node_are_repeated_unless_their_answer_has_begun(fleet: Fleet) -> None:
    nodes = await two(fleet)
    for node in nodes:
        node.fake.links["embed"].gate.clear()
    running = [
        asyncio.create_task(fleet.client.post("/v1/embeddings", json=EMBED, headers={"X-Request-Id": f"r{number}"}))
        for number in range(16)
    ]
    await until_begun(nodes, running)
    assert all(node.fake.links["embed"].requests for node in nodes)
    nodes[1].fake.links["embed"].gate.set()
    await nodes[0].kill()
    answers = await asyncio.gather(*running)
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-roundhouse-node"] for answer in answers} == {"node-2"}
    assert [answer.headers["x-request-id"] for answer in answers] == [f"r{number}" for number in range(16)]
    nodes[0].fake.links["embed"].gate.set()


async def begun(fleet: Fleet) -> tuple[Wire, asyncio.Task[None]]:
    """Begin a stream and wait for its first event, without which the request would be repeated."""
    headers = {"host": "test", "content-type": "application/json"}
    wire = Wire(fleet.app, "/v1/chat/completions", [msgspec.json.encode(STREAM)], headers)
    running = asyncio.create_task(wire.run())
    async with asyncio.timeout(PATIENCE):
        await wire.first.wait()
    return wire, running


def text_of(wire: Wire) -> str:
    return b"".join(message.get("body", b"") for message in wire.sent).decode()


async def test_a_node_that_dies_in_mid_stream_ends_it_with_an_error_event(fleet: Fleet) -> None:
    node = scripted(fleet.node("node-1"))
    await fleet.start(node)
    link = node.fake.links["chat"]
    link.free = 2
    link.gate.clear()
    wire, running = await begun(fleet)
    await node.kill()
    await running
    assert wire.sent[0]["status"] == 200
    assert text_of(wire).startswith('data: {"choices"')
    assert '"code":"node_failed"' in text_of(wire)
    assert "[DONE]" not in text_of(wire)
    link.gate.set()


async def test_requests_that_outlast_a_stop_end_with_shutting_down(fleet: Fleet) -> None:
    node = scripted(fleet.node("node-1"))
    await fleet.start(node)
    for link in node.fake.links.values():
        link.gate.clear()
    node.fake.links["chat"].free = 2
    wire, stream = await begun(fleet)
    whole = asyncio.create_task(fleet.client.post("/v1/embeddings", json=EMBED))
    await until_begun((node,), [whole])
    fleet.front.residency.cut_off = lambda _error: None
    fleet.front.gateway.cut_off()
    answer = await whole
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down"), answer.text
    await stream
    assert '"code":"shutting_down"' in text_of(wire)
    late = PeerRequest("POST", "node-1", "127.0.0.1:1", "/v1/embeddings", (), "", "waited-for-reports")
    with pytest.raises(NodeFailed, match="shutting down"):
        fleet.peer_client.send(late, b"")


async def test_without_any_node_the_error_says_when_to_retry(fleet: Fleet) -> None:
    node = scripted(fleet.node("node-1"))
    await fleet.start(node)
    await node.kill()
    answer = await fleet.client.post("/v1/embeddings", json=EMBED)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] in ("node_failed", "no_node")
    assert answer.headers["retry-after"] == "1"


async def test_names_of_a_node_that_has_left_are_not_called_unknown(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients retry 503, not 404, and a node that restarts comes back with its models."""
    leaves, stays = scripted(fleet.node("node-1")), fleet.node("node-2", recipes=[recipe("chat", "chat")])
    unknown = {**EMBED, "model": "none"}

    async def codes() -> list[tuple[int, str]]:
        answers = [await fleet.client.post("/v1/embeddings", json=body) for body in (EMBED, unknown)]
        return [(one.status_code, "" if one.status_code == 200 else one.json()["error"]["code"]) for one in answers]

    assert await codes() == [(503, "no_node")] * 2, "no node was there yet"
    await fleet.start(leaves, stays)
    assert await codes() == [(200, ""), (404, "model_not_found")]

    def leave() -> None:
        fleet.reports.remove("node-1")
        fleet.follower.set([stays.member])

    leave()
    assert await codes() == [(503, "no_node"), (404, "model_not_found")]
    request: Any = SimpleNamespace(
        model_ref=ModelRef(Task.EMBED, "auto"), context=SimpleNamespace(caller=EVERYBODY, source="")
    )
    assert fleet.front.gateway.fallback(request, "embed") is None, "a router tries the next one"
    fleet.follower.set([leaves.member, stays.member])
    await until(lambda: fleet.reports.get("node-1") is not None)
    assert await codes() == [(200, ""), (404, "model_not_found")]
    leave()
    monkeypatch.setattr(names, "monotonic", lambda: time.monotonic() + names.LEFT_SECONDS)
    assert await codes() == [(404, "model_not_found")] * 2, "it does not come back"


async def test_a_front_that_stood_still_reads_the_next_report_before_it_refuses(fleet: Fleet) -> None:
    node = scripted(fleet.node("node-1"))
    await fleet.start(node)
    stored = fleet.reports.get("node-1")
    assert stored is not None
    old = fleet.reports._stored["node-1"] = stored._replace(at=stored.at - 10 * PATIENCE)
    fleet.reports.index.entries["node-1"].at = old.at
    answer = await fleet.client.post("/v1/embeddings", json=EMBED)
    assert (answer.status_code, answer.headers["x-roundhouse-node"]) == (200, "node-1"), answer.text


async def test_requests_at_a_silent_node_are_sent_to_another(fleet: Fleet) -> None:
    nodes = await two(fleet)
    for node in nodes:
        node.fake.links["embed"].gate.clear()
    running = [asyncio.create_task(fleet.client.post("/v1/embeddings", json=EMBED)) for _ in range(8)]
    await until_begun(nodes, running)
    nodes[1].fake.links["embed"].gate.set()
    fleet.reports.remove("node-1")  # as after three seconds without a report
    fleet.peer_client.lost("node-1")
    answers = await asyncio.gather(*running)
    assert {(one.status_code, one.headers["x-roundhouse-node"]) for one in answers} == {(200, "node-2")}
    nodes[0].fake.links["embed"].gate.set()


async def test_a_stream_of_a_silent_node_ends_with_an_error_event(fleet: Fleet) -> None:
    node = scripted(fleet.node("node-1"))
    await fleet.start(node)
    link = node.fake.links["chat"]
    link.free = 2
    link.gate.clear()
    wire, running = await begun(fleet)
    fleet.peer_client.lost("node-1")  # as after three seconds without a report
    await running
    assert text_of(wire).startswith('data: {"choices"')
    assert '"code":"node_failed"' in text_of(wire)
    link.gate.set()


async def test_a_node_whose_answers_begin_late_is_avoided_until_a_probe(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = await two(fleet)
    nodes[1].is_draining = True  # so that all go to the first
    await until(lambda: fleet.reports.get("node-2").report.draining)
    monkeypatch.setattr(lateness, "OUT_SECONDS", PATIENCE)
    monkeypatch.setattr(backend, "LATE_SECONDS", 0.01)
    link = nodes[0].fake.links["chat"]
    link.gate.clear()
    waiting = [asyncio.create_task(fleet.client.post("/v1/chat/completions", json=STREAM)) for _ in range(3)]
    await until(lambda: fleet.reports.is_out("node-1", asyncio.get_running_loop().time()))
    monkeypatch.setattr(backend, "LATE_SECONDS", PATIENCE)
    nodes[1].is_draining = False
    await until(lambda: not fleet.reports.get("node-2").report.draining)
    for path, body in (("chat/completions", STREAM), ("embeddings", EMBED)):
        answers = [await fleet.client.post(f"/v1/{path}", json=body) for _ in range(4)]
        assert {answer.headers["x-roundhouse-node"] for answer in answers} == {"node-2"}
    link.gate.set()
    assert {one.headers["x-roundhouse-node"] for one in await asyncio.gather(*waiting)} == {"node-1"}
    assert fleet.reports.has_late, "late answers do not bring it back"
    late = fleet.reports._lateness
    late["node-1"] = msgspec.structs.replace(late["node-1"], until=0.0)  # its pause is over
    nodes[1].is_draining = True
    await until(lambda: fleet.reports.get("node-2").report.draining)
    assert (await fleet.client.post("/v1/chat/completions", json=STREAM)).headers["x-roundhouse-node"] == "node-1"
    assert not fleet.reports.has_late


async def test_a_draining_node_gets_no_new_requests(fleet: Fleet) -> None:
    nodes = await two(fleet)
    nodes[0].is_draining = True
    await until(lambda: fleet.reports.get("node-1").report.draining)
    answers = [await fleet.client.post("/v1/embeddings", json=EMBED) for _ in range(8)]
    assert {answer.headers["x-roundhouse-node"] for answer in answers} == {"node-2"}
    nodes[1].is_draining = True
    await until(lambda: fleet.reports.get("node-2").report.draining)
    refused = await fleet.client.post("/v1/embeddings", json=EMBED)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_node")


class Rows:
    """The members of the fleet in the database."""

    def __init__(self, *nodes: Node) -> None:
        self._nodes = {node.name: node for node in nodes}

    def drain(self, name: str, draining: bool) -> None:
        self._nodes[name].is_drained = draining

    def renew(self, name: str, boot: int) -> list[Member]:
        return [node.member for node in self._nodes.values()]

    def now(self) -> float:
        return time.time()


@pytest.mark.parametrize("is_followed", [True, False])
async def test_no_request_begins_at_a_node_after_the_answer_to_its_drain(fleet: Fleet, is_followed: bool) -> None:
    """Also without a report of it at the front. Then the node returns the request, and another one answers."""
    nodes = await two(fleet)
    service: Any = fleet.front.gateway.services.fleet
    service._members = Rows(*nodes)
    if not is_followed:
        await fleet.follower.close()
        service._follower = SimpleNamespace(set=lambda _: None)
    answers: dict[str, list[httpx.Response]] = {"up": [], "drained": [], "undraining": [], "back": []}
    sent = Counter[str]()
    phase = "up"
    """The phase at the client's side when a request is sent."""

    async def ask() -> None:
        while phase != "over":
            await send(phase)

    async def send(its_phase: str) -> None:
        sent[its_phase] += 1
        answers[its_phase].append(await fleet.client.post("/v1/embeddings", json=EMBED))

    def nodes_in(its_phase: str) -> set[str]:
        return {answer.headers["x-roundhouse-node"] for answer in answers[its_phase]}

    clients = [asyncio.create_task(ask()) for _ in range(4)]
    await until(lambda: nodes_in("up") == {"node-1", "node-2"})
    drained = await fleet.client.post("/v1/fleet/nodes/node-1/drain")
    phase = "drained"
    assert drained.status_code == 200, drained.text
    await until(lambda: len(answers["drained"]) >= 24)
    phase = "undraining"
    await until(lambda: len(answers["drained"]) == sent["drained"])
    back = await fleet.client.post("/v1/fleet/nodes/node-1/undrain")
    phase = "back"
    assert back.status_code == 200, back.text
    await until(lambda: nodes_in("back") == {"node-1", "node-2"})
    phase = "over"
    await asyncio.gather(*clients)
    assert nodes_in("drained") == {"node-2"}
    assert {answer.status_code for many in answers.values() for answer in many} == {200}
    if is_followed:
        await service._follower.close()


async def test_a_stopping_node_returns_requests_which_another_answers(fleet: Fleet) -> None:
    nodes = await two(fleet)
    nodes[0].fleet.takes_requests = False
    answers = [await fleet.client.post("/v1/embeddings", json=EMBED) for _ in range(8)]
    assert {(one.status_code, one.headers["x-roundhouse-node"]) for one in answers} == {(200, "node-2")}


async def test_a_stopping_node_finishes_running_requests(fleet: Fleet) -> None:
    node = scripted(fleet.node("node-1"))
    await fleet.start(node)
    link = node.fake.links["chat"]
    link.free = 2
    link.gate.clear()
    running = asyncio.create_task(fleet.client.post("/v1/chat/completions", json=STREAM))
    await until(lambda: link.requests)
    node.fleet.takes_requests = False
    stopping = asyncio.create_task(node.listener.stop(60))
    await until(lambda: fleet.reports.get("node-1") is None)  # its reports have ended
    await asyncio.sleep(1)  # long enough to find its port closed twice
    link.gate.set()
    answer = await running
    assert answer.text.endswith("data: [DONE]\n\n"), answer.text
    await stopping


async def test_a_node_whose_model_has_just_moved_does_not_load_it_again(fleet: Fleet) -> None:
    """A front that does not know yet sends the request once more. Then any node takes it."""
    nodes = await two(fleet)
    for node in nodes:
        node.fake.entries["embed"].state = ModelState.UNLOADING
    nodes[0].fleet.has_moved = lambda model: model == "embed"
    answers = [await fleet.client.post("/v1/embeddings", json={**EMBED, "input": f"{n}"}) for n in range(8)]
    assert {(one.status_code, one.headers["x-roundhouse-node"]) for one in answers} == {(200, "node-2")}
    nodes[1].fleet.has_moved = nodes[0].fleet.has_moved
    assert (await fleet.client.post("/v1/embeddings", json=EMBED)).status_code == 200


async def test_a_node_with_other_weights_does_not_answer(fleet: Fleet) -> None:
    nodes = await two(fleet)
    await fleet.follower.close()  # what it says from now on comes too late
    nodes[0].fake.entries["embed"].revision = "other"
    answers = [await fleet.client.post("/v1/embeddings", json=EMBED) for _ in range(8)]
    assert {(one.status_code, one.headers["x-roundhouse-model"]) for one in answers} == {(200, "embed@rev")}


async def test_a_client_that_disconnects_is_cancelled_on_the_node(fleet: Fleet) -> None:
    node = scripted(fleet.node("node-1"))
    await fleet.start(node)
    link = node.fake.links["embed"]
    link.gate.clear()
    running = asyncio.create_task(fleet.client.post("/v1/embeddings", json=EMBED))
    await until(lambda: link.requests)
    running.cancel()
    await until(lambda: link.cancelled)


async def test_a_recording_is_passed_on_with_its_fields(fleet: Fleet) -> None:
    node = fleet.node("node-1")
    seen: list[tuple[bytes, Any]] = []

    def look(request: Any) -> None:
        seen.append((Path(request.path).read_bytes(), request.language))

    node.fake.links["speech"].look = look
    await fleet.start(node)
    await fleet.client.post(
        "/v1/audio/transcriptions",
        data={"model": "speech", "language": "de"},
        files={"file": ("a.wav", b"RIFF" * 100_000)},
    )
    assert seen == [(b"RIFF" * 100_000, "de")]


async def test_a_front_opens_pages_of_a_node(fleet: Fleet) -> None:
    await fleet.start(scripted(fleet.node("node-1")))
    await fleet.client.post("/v1/embeddings", json=EMBED, headers={"X-Request-Id": "one"})
    page = await fleet.client.get("/console/at/node-1/requests", headers={"Accept": "text/html"})
    assert page.status_code == 200, page.text
    assert page.headers["x-roundhouse-node"] == "node-1"
    for text in ("of this node, node-1", "Back to the fleet", 'data-id="one"'):
        assert text in page.text
    for text in ('href="usage"', "API reference", "Sign in"):
        assert text not in page.text
    part = await fleet.client.get("/console/at/node-1/requests?part=rows&words=zzz")
    assert (part.status_code, "data-id" in part.text) == (200, False)
    gone = await fleet.client.get("/console/at/node-9/now")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "server_not_found")


async def test_the_reason_for_a_requests_node_is_recorded(fleet: Fleet) -> None:
    await fleet.start(scripted(fleet.node("node-1")))
    service = fleet.front.gateway.services.fleet
    assert service is not None
    fleet.backend.passed = service.passed.append
    await fleet.client.post("/v1/embeddings", json=EMBED, headers={"X-Request-Id": "one"})
    assert [(one.id, one.model, one.node, one.attempt, one.reason) for one in service.passed] == [
        ("one", "embed", "node-1", 1, "soonest")
    ]
    known = await fleet.client.get("/v1/requests/one")
    assert (known.status_code, known.headers["x-roundhouse-node"]) == (200, "node-1")
    assert known.json()["record"]["status"] == 200
    none = await fleet.client.get("/v1/requests/two")
    assert (none.status_code, none.json()["error"]["code"]) == (404, "request_not_found")
