"""A server that is starting, or that cannot start."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.types import Message

from registry.errors import Conflict
from registry.recipes.definition import Recipe
from runtime.http.middleware import ContextMiddleware
from tests.unit.http.fakes import FakeGateway, application, recipe


@pytest.mark.parametrize(
    "error", [Conflict("A newer one."), PermissionError(13, "Permission denied", "/data/state.db")]
)
async def test_the_error_of_a_failed_start_is_one_line(error: Exception) -> None:
    sent: list[Message] = []

    async def start() -> None:
        raise error

    async def stop() -> None:
        raise AssertionError("the server never started")

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        sent.append(message)

    def no_request(*_: object) -> Any:
        raise AssertionError("there is no request")

    app = ContextMiddleware(Starlette(), no_request, no_request, start, stop)
    with pytest.raises(type(error)):  # uvicorn has got the message, and ends
        await app({"type": "lifespan", "state": {}}, receive, send)
    assert sent == [{"type": "lifespan.startup.failed", "message": str(error)}]


@pytest.mark.parametrize("name", ["legal", "chat:legal"])
async def test_an_adapter_that_is_not_registered_yet_gets_a_503(name: str, tmp_path: Path) -> None:
    """With an empty data directory the port answers before the adapters of recipes are registered. SDKs retry a 503."""
    places = {"adapters": {"device": 1, "host": 1, "max_rank": 8}}
    with_adapter = {"memory": places, "adapters": [{"name": "legal", "source": {"path": "x"}}]}
    chat = Recipe.model_validate(recipe("chat", "chat").model_dump(exclude_unset=True) | with_adapter)
    gateway = FakeGateway(tmp_path, [chat])
    body = {"model": name, "messages": [{"role": "user", "content": "hello"}]}
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        gateway.gateway.phase = "starting"
        early = await client.post("/v1/chat/completions", json=body)
        assert (early.status_code, early.headers["retry-after"]) == (503, "1"), early.text
        assert "is being registered: try again" in early.json()["error"]["message"]
        unknown = await client.post("/v1/chat/completions", json=body | {"model": "nothing"})
        assert unknown.status_code == 404
        gateway.gateway.phase = "ready"
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 404
