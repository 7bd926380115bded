"""The routers that there are: what becomes of them while files are gone, calls meet, or a name is taken meanwhile."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.state.database import State
from runtime.gateway.routing.keeper import Keeper
from tests.unit.http.fakes import FakeGateway, application


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[FakeGateway]:
    with State(tmp_path / "state") as state:
        yield FakeGateway(tmp_path, state=state)


@pytest.fixture
async def client(gateway: FakeGateway) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


def router(id_: str = "auto", **more: Any) -> dict[str, Any]:
    return {"id": id_, "targets": [{"name": "chat"}], **more}


async def opened_again(gateway: FakeGateway) -> Keeper:
    """As after a restart: what was read is forgotten."""
    keeper = gateway.routers
    keeper._ready.clear()
    await keeper.open([])
    return keeper


async def test_one_whose_files_are_gone_hides_no_other(gateway: FakeGateway, client: httpx.AsyncClient) -> None:
    """As where the state is on PostgreSQL, and the data directory was lost."""
    for name in ("auto", "other"):
        assert (await client.post("/v1/routers", json=router(name))).status_code == 201
    shutil.rmtree(gateway.routers._contents._place(gateway.routers.show("auto").digest))
    keeper = await opened_again(gateway)
    assert "cannot be read" in keeper.faults["auto"]
    for path, key in (("/v1/models", "data"), ("/v1/routers", "data"), ("/api/tags", "models")):
        listed = await client.get(path)
        assert listed.status_code == 200, listed.text
        names = [one.get("id") or one["name"] for one in listed.json()[key]]
        assert ("auto" in " ".join(names), "other" in " ".join(names)) == (False, True), path
    asked = await client.post("/v1/chat/completions", json={"model": "auto", "messages": []})
    assert (asked.status_code, asked.json()["error"]["code"]) == (422, "bad_router_model")
    assert (await client.delete("/v1/routers/auto")).status_code == 200
    assert (await client.post("/v1/routers", json=router())).status_code == 201
