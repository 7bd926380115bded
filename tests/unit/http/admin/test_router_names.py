"""A name means a router or a model, never both, whichever came first."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from models.messages import Chunk, ResponseEnd, ResponseStart, Usage
from registry.recipes.router import RouterSpec
from registry.records import AdapterKey, NewVersion
from registry.state.database import State
from tests.unit.http.fakes import FakeGateway
from tests.unit.providers.rig import provider
from tests.unit.registry.makers import digest, recipe

MODELS = [{"name": "big", "aliases": ["haiku"]}]
FAKE: Any = SimpleNamespace(url="http://127.0.0.1:1/v1")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[FakeGateway]:
    with State(tmp_path / "data") as state:
        recipes = [recipe("small", aliases=("tiny",))]
        yield FakeGateway(tmp_path, recipes, state=state, providers=[provider(FAKE, models=MODELS)])


def router(name: str) -> dict[str, Any]:
    return {"id": name, "targets": [{"name": "small"}]}


def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.parametrize("name", ["small", "tiny", "haiku", "own", "fine"])
async def test_no_router_gets_the_name_of_a_model(name: str, client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    """Of its id, an alias in its recipe, a provider's alias or one made by a call; nor the name of an adapter."""
    gateway.state.adapters.register(AdapterKey("small", "fine"), NewVersion(digest(1), 8, 100, "test"))
    gateway.names.refresh()
    assert (await client.put("/v1/models/small/aliases/own")).status_code == 200
    refused = await client.post("/v1/routers", json=router(name))
    assert error_of(refused) == (409, "name_in_use")
    assert "Choose another name for the router" in refused.json()["error"]["message"]
    assert not gateway.routers.names()


async def test_a_rules_name_may_have_any_letters(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    """In the header, it is written in ASCII."""
    gateway.links["small"].script = lambda _: [
        ResponseStart(200, "application/json"),
        Chunk(b"{}"),
        ResponseEnd(Usage()),
    ]
    rule = {"name": "für:法律,100%", "when": {"tools": False}, "to": ["small"]}
    assert (await client.post("/v1/routers", json={**router("auto"), "rules": [rule]})).status_code == 201
    body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
    named = await client.post("/v1/chat/completions", json=body)
    assert named.status_code == 200, named.text
    assert unquote(named.headers["x-roundhouse-route"]) == "auto@v1 small rule:für:法律,100% -"


async def test_no_model_gets_the_name_of_a_router(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    assert (await client.post("/v1/routers", json=router("auto"))).status_code == 201
    for refused in (
        await client.put("/v1/models/small/aliases/auto"),
        await client.patch("/v1/models/small", json={"changes": {"aliases": ["tiny", "auto"]}}),
    ):
        assert error_of(refused) == (409, "name_in_use")
        assert "roundhouse routers remove auto" in refused.json()["error"]["message"]
    assert not gateway.names.is_model("auto")


@pytest.mark.parametrize(("name", "place"), [("auto", "/v1/routers/auto"), ("there/big", "/v1/providers")])
async def test_a_call_about_models_says_what_else_the_name_is(
    name: str, place: str, client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    """They are listed among the models."""
    assert (await client.post("/v1/routers", json=router("auto"))).status_code == 201
    refused = await client.post(f"/v1/models/{name}/load")
    assert error_of(refused) == (404, "model_not_found")
    assert refused.json()["error"]["message"].endswith(f"see {place}.")


async def test_a_router_is_disabled_if_a_file_gives_its_name_to_a_model(
    client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    """A model that is named directly is never replaced by another one."""
    assert (await client.post("/v1/routers", json=router("poem"))).status_code == 201
    gateway.links["small"].script = lambda _: [
        ResponseStart(200, "application/json"),
        Chunk(b"{}"),
        ResponseEnd(Usage()),
    ]
    body = {"model": "poem", "messages": [{"role": "user", "content": "hi"}]}
    assert "x-roundhouse-route" in (await client.post("/v1/chat/completions", json=body)).headers
    gateway.names.serve([recipe("small", aliases=("tiny", "poem"))])
    await gateway.routers.open([])
    named = await client.post("/v1/chat/completions", json=body)
    assert (named.status_code, named.headers["x-roundhouse-model"]) == (200, "small@rev")
    assert "x-roundhouse-route" not in named.headers
    assert [one["id"] for one in (await client.get("/v1/models")).json()["data"]] == ["small", "there/big"]
    assert "a model's alias already" in gateway.routers.faults["poem"]
    assert (await client.delete("/v1/routers/poem")).status_code == 200


async def test_a_router_in_a_file_may_not_have_a_models_name(gateway: FakeGateway) -> None:
    spec = RouterSpec.model_validate(router("haiku"))
    await gateway.routers.open([spec])
    assert "'haiku' is a provider's model already" in gateway.routers.faults["haiku"]
    assert not gateway.routers.names()


async def test_an_adapter_beside_a_routers_name_is_refused(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    """It used to be ignored silently, and another model answered."""
    assert (await client.post("/v1/routers", json=router("auto"))).status_code == 201
    body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}], "adapter_id": "fine"}
    for path in ("/v1/chat/completions", "/v1/route"):
        refused = await client.post(path, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "adapter_id"), path
    assert not gateway.links["small"].requests


async def test_a_models_text_is_not_taken_for_an_event(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    """A list has no place for `model_used`, which used to be put into the generated text."""
    assert (await client.post("/v1/routers", json=router("auto"))).status_code == 201
    choice = {"index": 0, "text": "data:{}", "finish_reason": "stop", "prompt_token_ids": [1], "token_ids": [1]}
    made = {"id": "x", "model": "small", "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    events = [ResponseStart(200, "application/json"), Chunk(json.dumps(made).encode()), ResponseEnd(Usage(1, 1))]
    gateway.links["small"].script = lambda _: events
    answer = await client.post("/", json={"inputs": "hi", "model": "auto", "parameters": {"return_full_text": False}})
    assert answer.status_code == 200, answer.text
    assert answer.json()[0]["generated_text"] == "data:{}"
