"""Models whose weights are not on all nodes of a fleet, and changes of models sent to a front."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from registry.errors import Unavailable
from registry.recipes.definition import Task
from runtime.gateway.context import RequestContext
from runtime.gateway.files import UNKNOWN
from runtime.gateway.names import ModelRef
from runtime.gateway.peers.backend import PeerBackend
from runtime.gateway.peers.names import PeerNames
from runtime.gateway.request import ClientMessage, Request
from tenants.ledger.rows import BATCH
from tests.unit.http.batches.bench import CALLER
from tests.unit.http.hops.rig import Fleet, Node, opened
from tests.unit.http.hops.test_front import EMBED, answered, scripted, two, until

GONE = Unavailable("Model 'embed' cannot be loaded: /srv/embed is not there.", code="model_broken")


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with opened(tmp_path) as fleet:
        yield fleet


def without_weights(node: Node, model: str = "embed") -> Node:
    entry = node.fake.entries[model]
    entry.path, entry.revision, entry.broken = None, UNKNOWN, GONE
    return node


async def test_a_node_without_the_weights_gets_no_requests_until_it_has_them(fleet: Fleet) -> None:
    lacking, having = without_weights(scripted(fleet.node("node-1"))), scripted(fleet.node("node-2"))
    await fleet.start(lacking, having)
    for _ in range(6):
        answer = await fleet.client.post("/v1/embeddings", json=EMBED)
        assert (answer.status_code, answer.headers["x-roundhouse-node"]) == (200, "node-2"), answer.text
    assert fleet.names.models["embed"].problem is None
    assert fleet.names.nodes_of("embed") == ["node-2"]
    assert fleet.names.by_node["node-1"]["embed"].problem == GONE.message
    entry = lacking.fake.entries["embed"]
    entry.path, entry.revision, entry.broken = fleet.folder, "rev", None
    await until(lambda: fleet.names.nodes_of("embed") == ["node-1", "node-2"])


async def test_if_no_node_has_the_weights_a_node_says_why(fleet: Fleet) -> None:
    node = without_weights(scripted(fleet.node("node-1")))
    node.fake.refuse = GONE
    node.fake.queues["embed"].close()
    await fleet.start(node)
    answer = await fleet.client.post("/v1/embeddings", json=EMBED)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_broken")
    assert answer.headers["x-roundhouse-node"] == "node-1"


async def test_a_node_passes_on_requests_for_a_model_that_it_cannot_load(fleet: Fleet) -> None:
    own, other = scripted(fleet.node("node-1")), scripted(fleet.node("node-2"))
    await fleet.start(other)
    gateway = own.fake.gateway
    backend = PeerBackend(
        own.fake.names, fleet.names, fleet.reports, fleet.peer_client, has_weights=lambda model: model != "embed"
    )
    gateway._backends = {"peers": backend, **gateway._backends}
    assert backend.find("chat", CALLER) is None
    found = backend.find("embed", CALLER)
    assert found is not None
    assert found.recipe.id == "embed"
    lonely = PeerBackend(own.fake.names, PeerNames(own.fake.state), fleet.reports, fleet.peer_client)
    lonely._has_weights = lambda _: False
    assert lonely.find("embed", CALLER) is None, "its own error is the answer"


async def test_a_line_that_a_router_sends_to_another_node_waits_for_that_node(fleet: Fleet) -> None:
    await fleet.start(scripted(fleet.node("node-1")))
    context = RequestContext("one", CALLER, source=BATCH)
    request = Request(context, "/v1/embeddings")
    request.message = ClientMessage("", b"{}")
    target = fleet.backend.resolve(ModelRef(Task.EMBED, "embed"), CALLER)
    assert target is not None
    with pytest.raises(Unavailable, match="another node of the fleet"):
        async with fleet.backend.send(request, target):
            pass


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v1/models", {"source": "no path"}, 400, "bad_request"),
        ("PATCH", "/v1/models/chat", {"changes": {"id": "other"}}, 400, "bad_request"),
        ("DELETE", "/v1/models/none", None, 404, "model_not_found"),
        ("GET", "/v1/models/none/recipe", None, 404, "model_not_found"),
    ],
)
async def test_a_front_passes_changes_of_models_on(
    fleet: Fleet, method: str, path: str, body: Any, status: int, code: str
) -> None:
    nodes = await two(fleet)
    answer = await fleet.client.request(method, path, json=body)
    assert answer.headers["x-roundhouse-node"] == "node-1", answer.text
    assert answer.status_code == status, answer.text
    assert answered(nodes) == []


async def test_a_front_returns_the_recipe_of_a_node(fleet: Fleet) -> None:
    await fleet.start(scripted(fleet.node("node-1")))
    answer = await fleet.client.get("/v1/models/chat/recipe")
    assert (answer.status_code, answer.headers["x-roundhouse-node"]) == (200, "node-1")
    assert "id: chat" in answer.text
