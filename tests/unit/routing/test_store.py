"""The store of routers: missing and damaged files, concurrent calls, and names used meanwhile."""

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.bounds import Bounds
from registry.errors import Conflict, Unavailable
from registry.recipes.router import RouterSpec
from registry.records import RouterRecord
from registry.state.adapters import RouterTable
from registry.state.database import State
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


async def reopen(gateway: FakeGateway) -> RouterStore:
    """Open the store again as after a restart."""
    store = gateway.routers
    store._ready.clear()
    await store.open([])
    return store


async def test_a_router_with_missing_files_hides_no_other(gateway: FakeGateway, client: httpx.AsyncClient) -> None:
    """This happens if the state is on PostgreSQL and the data directory was lost."""
    for name in ("auto", "other"):
        assert (await client.post("/v1/routers", json=router(name))).status_code == 201
    shutil.rmtree(gateway.routers._contents._folder(gateway.routers.show("auto").digest))
    store = await reopen(gateway)
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


async def test_a_router_with_damaged_files_works_after_it_is_added_again(
    gateway: FakeGateway, client: httpx.AsyncClient
) -> None:
    """It worked, but was broken again after the next start."""
    assert (await client.post("/v1/routers", json=router())).status_code == 201
    place = gateway.routers._contents._folder(gateway.routers.show("auto").digest)
    (place / "router.json").write_bytes(b"\0" * 100)
    store = await reopen(gateway)
    assert "Remove the router, and add it again" in store.faults["auto"]
    assert (await client.delete("/v1/routers/auto")).status_code == 200
    assert (await client.post("/v1/routers", json=router())).status_code == 201
    assert (await reopen(gateway)).faults == {}


async def test_a_router_whose_model_cannot_be_read_keeps_no_other_out(
    gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server would start for ever."""
    file, read = tmp_path / "fitted" / "intents.safetensors", Path.read_bytes
    file.parent.mkdir()
    file.touch()

    def refuse(path: Path) -> bytes:
        if path == file:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))  # also as root, which may read all files
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    given = [router("other-users", source={"path": str(file.parent)}), router("own")]
    await gateway.routers.open(map(RouterSpec.model_validate, given))
    assert gateway.routers.faults == {"other-users": "intents.safetensors cannot be read: Permission denied."}
    assert gateway.routers.names() == ["own"]


def fitted() -> bytes:
    examples = [Example(f"{word} {n}", label) for label, word in (("a", "rain"), ("b", "euro")) for n in "vwxyz"]
    return to_bytes(train(examples, examples, options=TrainingOptions(iterations=5, buckets=64)).model)


async def test_a_concurrent_fit_and_change_of_the_definition_are_both_kept(gateway: FakeGateway) -> None:
    store, data = gateway.routers, fitted()
    await store.put(RouterSpec.model_validate(router(intents={})))
    changed = RouterSpec.model_validate(router(intents={}, description="changed"))
    await asyncio.gather(store.fit("auto", "intents", data), store.put(changed))
    found = store.show("auto")
    assert (found.version, found.definition["description"], found.models) == ("v3", "changed", ["intents"])


async def test_old_versions_go_but_not_those_with_an_alias_or_from_a_file(tmp_path: Path) -> None:
    with State(tmp_path / "state") as state:
        store = FakeGateway(tmp_path, state=state, bounds=Bounds(router_versions=2)).routers
        given = RouterSpec.model_validate(router(description="file"))
        await store.open([given])
        for number in range(2, 8):
            added = await store.put(
                RouterSpec.model_validate(router(description=f"{number}")), "prod" if number == 3 else None
            )
        assert [version.version for version in added.router.versions] == ["v1", "v3", "v6", "v7"]
        assert len(list(store._contents.folder.glob("*"))) == 4
        await store.open([given])
        assert store.show("auto").version == "v7", "the file is not newer"
        assert (await store.change("auto", RouterTable.rollback)).version == "v6"


@pytest.mark.parametrize("routers", [1, 3])
async def test_a_start_with_another_state_deletes_no_routers(
    tmp_path: Path, routers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a start without its --database. A removed router's files go at once."""
    gateways = {}
    with State(tmp_path / "own") as own, State(tmp_path / "other") as other:
        for name, state in (("own", own), ("other", other)):
            gateways[name] = FakeGateway(tmp_path, state=state)
        for number in range(routers):
            await gateways["own"].routers.put(RouterSpec.model_validate(router(f"r{number}")))
        await gateways["other"].routers.open([])
        assert "routers that the state does not know" in caplog.text
        assert not (await reopen(gateways["own"])).faults
        await gateways["own"].routers.remove("r0")
        assert len(list(gateways["own"].routers._contents.folder.glob("*"))) == routers - 1


async def test_what_an_interrupted_change_left_is_removed_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def killed(*_given: object, **_options: object) -> None:
        raise SystemExit

    with State(tmp_path / "state") as state:
        gateway = FakeGateway(tmp_path, state=state)
        folder = gateway.routers._contents.folder
        for _ in range(2):  # before and after there is a router
            with monkeypatch.context() as kill:
                kill.setattr(state.routers, "register", killed)
                with pytest.raises(SystemExit):
                    await gateway.routers.put(RouterSpec.model_validate(router("half")))
            assert len([path for path in folder.iterdir() if path.is_dir()]) == len(gateway.routers.names()) + 1
            await reopen(gateway)
            await gateway.routers.put(RouterSpec.model_validate(router("whole")), "prod")
        with pytest.raises(Conflict):
            await gateway.routers.remove("whole")
        assert len(list(folder.iterdir())) == 1, "no mark is left"
        with monkeypatch.context() as kill:
            kill.setattr(gateway.routers, "_tidy", killed)
            with pytest.raises(SystemExit):
                await gateway.routers.remove("whole", force=True)
        await reopen(gateway)
        assert list(folder.iterdir()) == []
    assert "does not know" not in caplog.text


async def test_a_version_that_a_file_defines_again_stays(tmp_path: Path) -> None:
    """Otherwise the next start would add it as the newest."""
    with State(tmp_path / "state") as state:
        store = FakeGateway(tmp_path, state=state, bounds=Bounds(router_versions=2)).routers
        specs = [RouterSpec.model_validate(router(description=f"{number}")) for number in range(6)]
        for spec in specs[:2]:
            await store.put(spec)
        await store.open([specs[0]])
        for spec in specs[2:]:
            await store.put(spec)
        await store.open([specs[0]])
        assert (store.show("auto").version, store.show("auto").definition["description"]) == ("v6", "5")


async def test_a_router_is_changed_although_its_old_versions_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_args: object) -> RouterRecord:
        raise Unavailable("The database is locked.")

    with State(tmp_path / "state") as state:
        store = FakeGateway(tmp_path, state=state, bounds=Bounds(router_versions=1)).routers
        monkeypatch.setattr(state.routers, "prune", locked)
        for number in range(4):
            await store.put(RouterSpec.model_validate(router(description=f"{number}")))
        assert store.show("auto").version == "v4"
        monkeypatch.undo()
        await store.put(RouterSpec.model_validate(router(description="last")))
        assert [version.version for version in store.show("auto").versions] == ["v4", "v5"]


async def test_a_name_that_a_model_gets_meanwhile_is_refused(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other calls continue while a router's files are written."""
    write = RouterContentStore.write

    def slow(contents: RouterContentStore, content: RouterContent) -> None:
        write(contents, content)
        gateway.names.serve([recipe("chat", "chat"), recipe("auto", "chat")])

    monkeypatch.setattr(RouterContentStore, "write", slow)
    with pytest.raises(Conflict, match="'auto' is a model's id already"):
        await gateway.routers.put(RouterSpec.model_validate(router()))
    assert not gateway.routers.names()


async def test_a_refused_router_leaves_no_files(gateway: FakeGateway, client: httpx.AsyncClient) -> None:
    refused = await client.post("/v1/routers?alias=v3", json=router())
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "alias")
    assert not list(gateway.routers._contents.folder.glob("*"))


async def test_a_target_that_is_a_router_is_refused(gateway: FakeGateway, client: httpx.AsyncClient) -> None:
    """Its requests were a 503 with the reason `model_not_found`, although the router was listed."""
    assert (await client.post("/v1/routers", json=router("inner"))).status_code == 201
    for target in ("inner", "inner@v1", "outer"):
        refused = await client.post("/v1/routers", json=router("outer", targets=[{"name": "chat"}, {"name": target}]))
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (422, "bad_router")
        assert error["faults"] == [f"targets: '{target}' is a router"]


async def test_a_provider_does_not_take_a_routers_name(gateway: FakeGateway, client: httpx.AsyncClient) -> None:
    """The provider's model answered all requests to the router from then on."""
    assert (await client.post("/v1/routers", json=router())).status_code == 201
    models = [{"name": "big", "aliases": ["auto"]}]
    provider = {"protocol": "openai", "base_url": "https://example.com/v1", "models": models}
    refused = await client.put("/v1/providers/there", json=provider)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "name_in_use")


async def test_files_of_an_earlier_version_are_read_in_a_thread(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart only the current version is in memory, and fitted models may have 128 MiB."""
    for description in ("one", "two"):
        await gateway.routers.put(RouterSpec.model_validate(router(description=description)))
    store, read, threads = await reopen(gateway), RouterContentStore.read, []

    def record(contents: RouterContentStore, digest: str) -> RouterContent:
        threads.append(threading.current_thread())
        return read(contents, digest)

    monkeypatch.setattr(RouterContentStore, "read", record)
    assert (await store.change("auto", RouterTable.rollback)).definition["description"] == "one"
    assert threads
    assert threading.main_thread() not in threads
