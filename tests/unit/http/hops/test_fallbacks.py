"""A router's target and its fall-backs may be at different servers."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.messages import Chunk, Event, ResponseEnd, ResponseStart, Usage
from registry.errors import EngineFailed, RoundhouseError
from registry.recipes.router import RouterSpec
from registry.state.database import State
from routing.routers.content import RouterContent
from runtime.gateway.peers.backend import PeerBackend
from tenants.limits.limiter import Limiter
from tenants.limits.records import Kind, Limit
from tests.unit.http.fakes import FakeGateway, application, recipe
from tests.unit.http.hops.rig import Fleet, Node, opened

MESSAGES = [{"role": "user", "content": "hi"}]


def reply(who: str) -> Callable[[Any], list[Event]]:
    body = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"%s"}}]}' % who.encode()
    return lambda _: [ResponseStart(200, "application/json"), Chunk(body), ResponseEnd(Usage(5, 2))]


def failure(_: Any) -> list[Event | RoundhouseError]:
    return [EngineFailed("The engine broke.")]


class Pair:
    """A node with the model `here`, another one with `chat`, and a router that tries `first` first."""

    def __init__(self, fleet: Fleet, own: FakeGateway, other: Node, client: httpx.AsyncClient) -> None:
        self.fleet, self.own, self.other, self.client = fleet, own, other, client
        own.links["here"].script, other.fake.links["chat"].script = reply("here"), reply("there")

    async def chat(self, first: str, then: str) -> httpx.Response:
        targets = [{"name": "here"}, {"name": "chat"}]
        spec = {"id": "auto", "targets": targets, "default": first, "fallbacks": [then]}
        await self.own.routers.add(RouterContent(RouterSpec.model_validate(spec)), "test")
        return await self.client.post("/v1/chat/completions", json={"model": "auto", "messages": MESSAGES})


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    limiter = Limiter()
    limiter.replace([Limit("l1", "team", "default", Kind.AT_ONCE, 1)], {})
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(opened(tmp_path))
        state = stack.enter_context(State(tmp_path / "state"))
        other = fleet.node("node-2")
        await fleet.start(other)
        own = FakeGateway(tmp_path / "node-1", [recipe("here", "chat")], state=state, limiter=limiter)
        own.gateway.phase = "ready"
        backend = PeerBackend(own.names, fleet.names, fleet.reports, fleet.peer_client)
        own.gateway._backends = {"peers": backend, **own.gateway._backends}
        transport = httpx.ASGITransport(application(own))
        client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://test"))
        yield Pair(fleet, own, other, client)


async def test_a_fall_back_here_answers_for_a_target_at_another_node(pair: Pair) -> None:
    pair.other.fake.links["chat"].script = failure
    answer = await pair.chat("chat", "here")
    assert answer.status_code == 200, answer.text
    assert (answer.json()["choices"][0]["message"]["content"], answer.json()["model_used"]) == ("here", "here")
    (record,) = pair.own.records.all
    assert (record.status, record.usage.prompt_tokens, record.attempt) == (200, 5, 2)


async def test_a_fall_back_at_another_node_answers_for_a_target_here(pair: Pair) -> None:
    pair.own.links["here"].script = failure
    for _ in range(2):
        answer = await pair.chat("here", "chat")
        assert answer.status_code == 200, "the limit of one request at a time has room again: " + answer.text
        assert answer.json()["choices"][0]["message"]["content"] == "there"
        assert answer.text.count('"model_used":"chat"') == 1
        assert answer.headers["x-roundhouse-route"].split()[1] == "here"
    assert [record.status for record in pair.other.fake.records.all] == [200, 200]
    assert pair.own.records.all == [], "only the node that answered counts it"


async def test_if_all_targets_fail_the_last_error_is_returned(pair: Pair) -> None:
    pair.own.links["here"].script = pair.other.fake.links["chat"].script = failure
    answer = await pair.chat("chat", "here")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_failed")
    assert [record.status for record in pair.own.records.all] == [500]
