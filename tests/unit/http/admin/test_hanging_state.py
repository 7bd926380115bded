"""While the state's database hangs, changes wait and all other requests are answered."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.state.database import State
from tests.eventually import PATIENCE
from tests.fakes.databases import HangingWrites
from tests.unit.http.fakes import FakeGateway, application, recipe

CHANGES = (
    ("PUT", "/v1/models/chat/aliases/other", None),
    ("DELETE", "/v1/models/chat/aliases/mine", None),
    ("POST", "/v1/routers", {"id": "new", "targets": [{"name": "chat"}]}),
    ("PUT", "/v1/routers/auto/aliases/prod", {"version": "v1"}),
    ("DELETE", "/v1/routers/auto", None),
)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[FakeGateway]:
    with State(tmp_path / "state") as state:
        state.models.set_alias("mine", "chat")
        yield FakeGateway(tmp_path, [recipe("chat", "chat")], state=state)


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_a_hanging_change_of_state_blocks_no_other_request(
    method: str, path: str, body: Any, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = HangingWrites()
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        router = {"id": "auto", "targets": [{"name": "chat"}]}
        assert (await client.post("/v1/routers", json=router)).status_code == 201
        writes.hang(monkeypatch)
        changing = asyncio.create_task(client.request(method, path, json=body))
        assert await asyncio.to_thread(writes.requested.wait, PATIENCE)
        for other in ("/v1/models", "/v1/models/chat", "/v1/routers/auto"):
            assert (await client.get(other)).status_code == 200
        assert not changing.done()
        writes.answers.set()
        assert (await changing).status_code < 300
