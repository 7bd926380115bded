"""Adapters of a fleet: nodes copy the files of names, and fronts pass on changes of names."""

import asyncio
import json
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.content.digest import digest_of
from adapters.content.forms import CONFIG, TENSORS
from adapters.service import AdapterService
from fleet.table import ReportTable
from registry.errors import Unavailable
from registry.recipes.router import RouterSpec
from registry.records import AdapterKey, NewVersion
from registry.state.database import State
from runtime.gateway.peers import pulling
from runtime.gateway.peers.connection import PeerClient
from runtime.gateway.peers.following import Follower
from runtime.gateway.peers.names import PeerNames
from runtime.gateway.peers.pulling import AdapterPuller, RouterPuller
from tests.eventually import PATIENCE
from tests.unit.http.hops.rig import Fleet, Node, opened
from tests.unit.http.hops.test_front import tokens, until
from tests.unit.registry.makers import recipe

KEY = AdapterKey("chat", "legal")
CONTENT = (b'{"r": 8}', b"tensors " * 300_000)
DIGEST = digest_of(CONTENT[0], iter(CONTENT[1:]))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """The names that all servers of the fleet share."""
    with State(tmp_path / "shared") as state:
        yield state


@pytest.fixture
async def fleet(tmp_path: Path, state: State, request: pytest.FixtureRequest) -> AsyncIterator[Fleet]:
    async with opened(tmp_path, state, getattr(request, "param", None)) as fleet:
        yield fleet


async def brought(_make: Any, _timeout: float, sent: Callable[[], None] = lambda: None) -> None:
    """Confirm that an adapter was staged and placed."""
    sent()


class AdapterNode:
    """A node with files of adapters, which copies missing ones."""

    def __init__(self, fleet: Fleet, state: State, name: str) -> None:
        folder = fleet.folder / name / "adapters"
        folder.mkdir(parents=True)
        self.service = AdapterService(folder, state, leased=lambda _: False)
        self.service.store.start()
        self.node: Node = fleet.node(name, recipes=[recipe("chat")], state=state, service=self.service)
        link: Any = self.node.fake.links["chat"]
        link.script, link.command = tokens, brought
        self.client = PeerClient(self.node.identity)
        self.reports, self.names = ReportTable(), PeerNames(state)
        self.follower = Follower(name, self.client, self.reports, self.names, self.client.lost)
        adapters = self.node.fake.gateway.services.adapters
        self.puller = AdapterPuller(self.service, adapters, self.node.fake.names, self.names, self.reports, self.client)
        self.names.on_change = self.puller.wake

    def store(self, content: tuple[bytes, bytes] = CONTENT) -> None:
        """Store files as a registration does."""
        with self.service.store.writing() as out:
            for name, data in zip((CONFIG, TENSORS), content, strict=True):
                (out / name).write_bytes(data)
            self.service.store.commit(out, DIGEST)
        self.service.stored_digests |= {DIGEST}

    def damage(self, content: bytes) -> None:
        """Store other content under the same digest, without being noticed here."""
        file = self.service.store.path(DIGEST) / TENSORS
        os.chmod(file, 0o644)
        file.write_bytes(content)

    @property
    def has_files(self) -> bool:
        return DIGEST in self.service.stored_digests

    async def close(self) -> None:
        await self.puller.close()
        await self.follower.close()
        await self.client.close()


@pytest.fixture
async def nodes(fleet: Fleet, state: State) -> AsyncIterator[list[AdapterNode]]:
    """Three nodes. The first has the files of an adapter whose name all know."""
    made = [AdapterNode(fleet, state, f"node-{number}") for number in (1, 2, 3)]
    made[0].store()
    state.adapters.register(KEY, NewVersion(DIGEST, 8, len(CONTENT[1]), "test"), "prod")
    for one in made:
        one.node.fake.names.refresh()
    await fleet.start(*(one.node for one in made))
    fleet.names.names.refresh()
    for one in made:
        one.names.names.refresh()
        one.follower.set([other.node.member for other in made])
    try:
        yield made
    finally:
        for one in made:
            await one.close()


@pytest.mark.parametrize("steps", range(6))
async def test_a_server_stops_although_a_name_changes_at_that_moment(steps: int) -> None:
    """Python 3.11's wait_for drops a cancellation that comes with its result, and then the server never stopped."""
    nothing: Any = None
    puller = AdapterPuller(nothing, nothing, nothing, nothing, nothing, nothing)
    looks = 0

    async def found_none() -> bool:
        nonlocal looks
        looks += 1
        return False

    puller._pull_next = found_none  # type: ignore[method-assign]
    puller.start()
    await until(lambda: looks == 1)
    await asyncio.sleep(0)
    puller.wake()
    for _ in range(steps):
        await asyncio.sleep(0)
    closing = asyncio.create_task(puller.close())
    done, _ = await asyncio.wait([closing], timeout=PATIENCE)
    assert done


@pytest.mark.parametrize("fleet", [None, b"k" * 32], ids=["certificates", "key"], indirect=True)
async def test_a_node_copies_the_files_of_a_name(nodes: list[AdapterNode]) -> None:
    copier = nodes[1]
    copier.puller.start()
    await until(lambda: copier.has_files)
    copier.service.store.verify(DIGEST)
    assert (copier.service.store.path(DIGEST) / CONFIG).read_bytes() == CONTENT[0]


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (CONTENT[1][:-1] + b"!", "its digest is sha256:"),
        (CONTENT[1] + b"more", "more bytes than the adapter has"),
        (CONTENT[1][:-4], "bytes are missing"),
    ],
    ids=["other", "more", "fewer"],
)
async def test_wrong_bytes_leave_nothing_and_the_next_node_sends_the_right_ones(
    nodes: list[AdapterNode],
    sent: bytes,
    cause: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wrong, copier, right = nodes
    right.store()
    wrong.damage(sent)
    await until(lambda: set(copier.names.nodes_storing(DIGEST)) == {"node-1", "node-3"})
    await until(lambda: all(copier.reports.get(name) for name in ("node-1", "node-3")))
    monkeypatch.setattr("random.sample", lambda names, _: sorted(names))
    with caplog.at_level(logging.INFO, "roundhouse.fleet"):
        copier.puller.start()
        await until(lambda: copier.has_files)
    copier.service.store.verify(DIGEST)
    assert list(copier.service.store.root.glob("tmp-*")) == []
    refused = next(record for record in caplog.records if record.message == "adapter not copied")
    assert refused.__dict__["node"] == "node-1"
    assert cause in refused.__dict__["cause"]


async def test_a_copy_that_never_ends_does_not_keep_other_files_waiting(
    nodes: list[AdapterNode], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "roundhouse.fleet")
    monkeypatch.setattr(pulling, "SILENCE_SECONDS", 0.1)
    monkeypatch.setattr(pulling, "LEAST_RATE", 2**40)
    copier = nodes[1]

    async def drip(node: str, digest: str) -> AsyncGenerator[bytes, None]:
        while True:
            yield b""
            await asyncio.sleep(0.01)

    monkeypatch.setattr(copier.puller, "_stream", drip)
    await until(lambda: copier.names.nodes_storing(DIGEST) == ["node-1"] and copier.reports.get("node-1") is not None)
    copier.puller.start()
    await until(lambda: "adapter not copied" in caplog.messages)
    refused = next(record for record in caplog.records if record.message == "adapter not copied")
    assert refused.__dict__["cause"] == "it was sent too slowly"
    assert not copier.has_files


async def test_wrong_bytes_are_never_stored(nodes: list[AdapterNode], caplog: pytest.LogCaptureFixture) -> None:
    nodes[0].damage(bytes(len(CONTENT[1])))
    with caplog.at_level(logging.WARNING, "roundhouse.fleet"):
        nodes[1].puller.start()
        await until(lambda: "adapter not copied" in caplog.messages)
    assert not nodes[1].has_files
    assert nodes[1].service.store.digests() == []


async def test_a_request_goes_to_a_node_that_has_the_files(fleet: Fleet, nodes: list[AdapterNode]) -> None:
    ask = {"model": "legal@prod", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    answers = [await fleet.client.post("/v1/chat/completions", json=ask) for _ in range(6)]
    assert {(one.status_code, one.headers["x-roundhouse-node"]) for one in answers} == {(200, "node-1")}, answers[
        0
    ].text


async def test_a_node_without_the_files_answers_nothing(fleet: Fleet, nodes: list[AdapterNode]) -> None:
    await fleet.follower.close()  # later reports are not received
    nodes[0].service.stored_digests = frozenset()
    ask = {"model": "legal", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    answer = await fleet.client.post("/v1/chat/completions", json=ask)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "node_failed")
    assert nodes[0].node.fake.links["chat"].requests == []


async def test_files_of_a_deleted_name_are_deleted(nodes: list[AdapterNode], state: State) -> None:
    state.adapters.delete(KEY, force=True)  # by another server
    await nodes[0].node.fake.gateway.services.adapters.follow()
    assert not nodes[0].has_files
    assert nodes[0].service.store.digests() == []


async def test_a_registration_waits_for_a_second_copy(nodes: list[AdapterNode], state: State) -> None:
    registrar, copier, _ = nodes
    await until(lambda: len(registrar.names.nodes_of("chat")) == 2)
    await until(lambda: all(registrar.reports.get(name) for name in ("node-2", "node-3")))
    waiting = asyncio.create_task(registrar.puller.wait_for_copy(state.adapters.get(KEY).current))
    await asyncio.sleep(4 * pulling.POLL_SECONDS)
    assert not waiting.done()
    copier.puller.start()
    await waiting
    assert copier.has_files


async def test_a_registration_on_the_only_node_does_not_wait(nodes: list[AdapterNode], state: State) -> None:
    alone = nodes[0]
    await alone.follower.close()
    alone.follower.set([])
    for name in ("node-2", "node-3"):
        alone.names.remove(name)
    await alone.puller.wait_for_copy(state.adapters.get(KEY).current)


async def test_a_front_passes_a_change_on_and_the_answer_back(
    fleet: Fleet, nodes: list[AdapterNode], state: State
) -> None:
    moved = await fleet.client.put("/v1/adapters/chat:legal/aliases/next", json={"version": "v1"})
    assert moved.status_code == 200, moved.text
    assert moved.headers["x-roundhouse-node"] == "node-1"
    assert (
        moved.json()["aliases"]
        == {"prod": "v1", "next": "v1"}
        == {alias: f"v{number}" for alias, number in state.adapters.get(KEY).aliases.items()}
    )
    listed = await fleet.client.get("/v1/adapters", params={"base": "chat"})
    assert [one["name"] for one in listed.json()["data"]] == ["legal"]
    gone = await fleet.client.delete("/v1/adapters/legal/aliases/next")
    assert gone.json()["aliases"] == {"prod": "v1"}
    alias = await fleet.client.put("/v1/models/chat/aliases/fast")
    assert (alias.status_code, state.models.aliases()) == (200, {"fast": "chat"})


async def test_a_front_reads_a_change_that_it_passed_on_before_it_answers(
    fleet: Fleet, nodes: list[AdapterNode]
) -> None:
    """A client that uses a name right after it was made gets no 404 from the server that it was made through."""
    membership = fleet.front.gateway.services.fleet
    assert membership is not None

    async def read() -> None:
        fleet.names.names.refresh()

    membership.read_names = read
    body = {"model": "legal@next", "messages": [{"role": "user", "content": "hello"}]}
    assert (await fleet.client.post("/v1/chat/completions", json=body)).status_code == 404
    await fleet.client.put("/v1/adapters/chat:legal/aliases/next", json={"version": "v1"})
    assert (await fleet.client.post("/v1/chat/completions", json=body)).status_code == 200


async def test_a_front_lists_and_deletes_the_merged_models_of_a_node(fleet: Fleet, state: State) -> None:
    node = fleet.node("node-1", state=state)
    (node.fake.settings.data_dir / "merged" / "default+one").mkdir(parents=True)
    await fleet.start(node)
    listed = await fleet.client.get("/v1/merged")
    assert [one["name"] for one in listed.json()["data"]] == ["default+one"], listed.text
    assert (await fleet.client.delete("/v1/merged/default+one")).status_code == 200
    assert not (node.fake.settings.data_dir / "merged" / "default+one").exists()


async def test_an_upload_goes_to_a_node_that_has_the_base_it_names(fleet: Fleet, nodes: list[AdapterNode]) -> None:
    for other in nodes[:2]:
        del other.node.fake.entries["chat"]
    await until(lambda: fleet.names.nodes_of("chat") == ["node-3"])
    form = {"name": "chat", "base": "chat"}
    refused = await fleet.client.post("/v1/adapters", data=form, files={"file": ("a.tar", b"x" * (1 << 20))})
    assert refused.headers["x-roundhouse-node"] == "node-3"
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "name_in_use")
    body = json.dumps({"name": "chat", "base": "chat", "source": {"path": "/none"}})
    refused = await fleet.client.post("/v1/adapters", content=body, headers={"content-type": "application/json"})
    assert (refused.status_code, refused.headers["x-roundhouse-node"]) == (409, "node-3")


async def test_a_router_is_added_on_a_node_and_copied_from_there(fleet: Fleet, nodes: list[AdapterNode]) -> None:
    added = await fleet.client.post("/v1/routers", json={"id": "two", "targets": [{"name": "chat"}]})
    assert (added.status_code, added.headers["x-roundhouse-node"]) == (201, "node-1"), added.text
    routers = fleet.front.routers
    routers.is_shared = True
    routers.refresh()
    with pytest.raises(Unavailable, match="being copied"):
        await routers.ready("two")
    puller = RouterPuller(routers, fleet.names, fleet.reports, fleet.peer_client)
    puller.start()
    await until(lambda: not routers.missing())
    await puller.close()
    router = await routers.ready("two")
    assert router is not None
    assert router.label == "two@v1"
    router_card = await fleet.client.get("/v1/routers/two")
    assert (router_card.status_code, router_card.json()["digest"]) == (200, added.json()["digest"])


async def test_a_nodes_recipe_file_adds_the_files_of_a_known_router(nodes: list[AdapterNode]) -> None:
    spec = RouterSpec.model_validate({"id": "auto", "targets": [{"name": "chat"}]})
    first, second = (one.node.fake.routers for one in nodes[:2])
    for routers in (first, second):
        routers.is_shared = True
        await routers.open([spec])
    assert (first.missing(), second.missing()) == ([], [])
    assert [one.version for one in second.all()] == ["v1"], "equal content makes no new version"


async def test_a_front_adds_no_routers_from_its_files(fleet: Fleet) -> None:
    spec = RouterSpec.model_validate({"id": "auto", "targets": [{"name": "chat"}]})
    routers = fleet.front.routers
    routers.adds_from_files = False
    await routers.open([spec])
    assert routers.names() == []


async def test_a_front_without_nodes_says_so(fleet: Fleet) -> None:
    answer = await fleet.client.get("/v1/adapters")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_node")
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/models/chat/load"), ("DELETE", "/v1/models/chat/pin"), ("PUT", "/v1/models/chat/pin")],
)
async def test_calls_that_only_nodes_have_are_refused(fleet: Fleet, method: str, path: str) -> None:
    answer: Any = await fleet.client.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "is_front")


async def test_a_front_says_which_nodes_have_the_model(fleet: Fleet, state: State) -> None:
    await fleet.start(fleet.node("node-1", state=state), fleet.node("node-2", recipes=[recipe("other")], state=state))
    fleet.names.names.refresh()
    answer = await fleet.client.post("/v1/models/chat/load")
    assert "the nodes that have the model (node-1)" in answer.json()["error"]["message"]


async def test_adapters_are_combined_where_their_base_is(fleet: Fleet, state: State) -> None:
    state.adapters.register(KEY, NewVersion(DIGEST, 8, len(CONTENT[1]), "test"), "prod")
    many = fleet.node("node-1", recipes=[recipe("embed", "embed"), recipe("rerank", "rerank")], state=state)
    await fleet.start(many, fleet.node("node-2", recipes=[recipe("chat")], state=state))
    fleet.names.names.refresh()
    parts = [{"name": "legal@prod", "weight": 1.0}, {"name": "none", "weight": 1.0}]
    answer = await fleet.client.post("/v1/adapters/combine", json={"name": "mixed", "adapters": parts})
    assert (answer.status_code, answer.headers["x-roundhouse-node"]) == (404, "node-2"), answer.text
    assert "'none'" in answer.json()["error"]["message"]
