"""The routers that there are: what becomes of them while files are gone, calls meet, or a name is taken meanwhile."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.errors import Conflict
from registry.recipes.router import RouterSpec
from registry.state.database import State
from registry.state.versions import Rollback
from routing.intents.model import to_bytes
from routing.intents.training import Example, TrainingOptions, train
from routing.routers.content import RouterContent, RouterContentStore
from runtime.gateway.routing.store import RouterStore
from tests.unit.http.fakes import FakeGateway, application, recipe


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


async def opened_again(gateway: FakeGateway) -> RouterStore:
    """As after a restart: what was read is forgotten."""
    store = gateway.routers
    store._ready.clear()
    await store.open([])
    return store


async def test_one_whose_files_are_gone_hides_no_other(gateway: FakeGateway, client: httpx.AsyncClient) -> None:
    """As where the state is on PostgreSQL, and the data directory was lost."""
    for name in ("auto", "other"):
        assert (await client.post("/v1/routers", json=router(name))).status_code == 201
    shutil.rmtree(gateway.routers._contents._folder(gateway.routers.show("auto").digest))
    store = await opened_again(gateway)
    assert "cannot be read" in store.faults["auto"]
    for path, key in (("/v1/models", "data"), ("/v1/routers", "data"), ("/api/tags", "models")):
        listed = await client.get(path)
        assert listed.status_code == 200, listed.text
        names = [one.get("id") or one["name"] for one in listed.json()[key]]
        assert ("auto" in " ".join(names), "other" in " ".join(names)) == (False, True), path
    requested = await client.post("/v1/chat/completions", json={"model": "auto", "messages": []})
    assert (requested.status_code, requested.json()["error"]["code"]) == (422, "bad_router_model")
    assert (await client.delete("/v1/routers/auto")).status_code == 200
    assert (await client.post("/v1/routers", json=router())).status_code == 201


async def test_one_whose_files_a_bad_disk_has_changed_comes_back_when_it_is_added_again(
    gateway: FakeGateway, client: httpx.AsyncClient
) -> None:
    """It counted, and was left out again at the next start."""
    assert (await client.post("/v1/routers", json=router())).status_code == 201
    place = gateway.routers._contents._folder(gateway.routers.show("auto").digest)
    (place / "router.json").write_bytes(b"\0" * 100)
    store = await opened_again(gateway)
    assert "Remove the router, and add it again" in store.faults["auto"]
    assert (await client.delete("/v1/routers/auto")).status_code == 200
    assert (await client.post("/v1/routers", json=router())).status_code == 201
    assert (await opened_again(gateway)).faults == {}


def fitted() -> bytes:
    examples = [Example(f"{word} {n}", label) for label, word in (("a", "rain"), ("b", "euro")) for n in "vwxyz"]
    return to_bytes(train(examples, examples, options=TrainingOptions(iterations=5, buckets=64)).model)


async def test_what_is_fitted_and_a_definition_that_meet_are_both_kept(gateway: FakeGateway) -> None:
    store, data = gateway.routers, fitted()
    await store.put(RouterSpec.model_validate(router(intents={})))
    changed = RouterSpec.model_validate(router(intents={}, description="changed"))
    await asyncio.gather(store.fit("auto", "intents", data), store.put(changed))
    found = store.show("auto")
    assert (found.version, found.definition["description"], found.models) == ("v3", "changed", ["intents"])


async def test_a_name_that_a_model_got_meanwhile_is_the_models(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a router's files are written others go on."""
    write = RouterContentStore.write

    def slow(contents: RouterContentStore, content: RouterContent) -> None:
        write(contents, content)
        gateway.names.serve([recipe("chat", "chat"), recipe("auto", "chat")])

    monkeypatch.setattr(RouterContentStore, "write", slow)
    with pytest.raises(Conflict, match="'auto' is a model's id already"):
        await gateway.routers.put(RouterSpec.model_validate(router()))
    assert not gateway.routers.names()


async def test_what_is_refused_leaves_no_files(gateway: FakeGateway, client: httpx.AsyncClient) -> None:
    refused = await client.post("/v1/routers?alias=v3", json=router())
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "alias")
    assert not list(gateway.routers._contents.folder.glob("*"))


async def test_files_of_the_version_before_are_read_beside_the_loop(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart only the current one is in memory, and fitted models may have 128 MiB."""
    for description in ("one", "two"):
        await gateway.routers.put(RouterSpec.model_validate(router(description=description)))
    store, read, threads = await opened_again(gateway), RouterContentStore.read, []

    def noted(contents: RouterContentStore, digest: str) -> RouterContent:
        threads.append(threading.current_thread())
        return read(contents, digest)

    monkeypatch.setattr(RouterContentStore, "read", noted)
    assert (await store.change("auto", Rollback())).definition["description"] == "one"
    assert threads
    assert threading.main_thread() not in threads
