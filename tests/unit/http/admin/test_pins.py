"""Pinning adapters by requests and its effect on places, and adapters whose base was removed."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from adapters.types import Base, CheckedAdapter, StoredAdapter
from registry.recipes.fields import origin
from registry.records import Adapter, AdapterKey, NewVersion, Version
from registry.state.adapters import AdapterTable
from registry.state.database import State
from tests.unit.http.fakes import FakeGateway
from tests.unit.registry.makers import digest, recipe


class Service:
    """`adapters.service` with the state, but without files."""

    notes = SimpleNamespace(of=lambda digest: ())
    stored_digests: frozenset[str] = frozenset()

    def __init__(self, state: State, folder: Path) -> None:
        self.adapters, self.folder, self.incoming = state.adapters, folder, folder

    def list(self, base: str | None = None) -> list[Adapter]:
        return [adapter for adapter in self.adapters.all() if base in (None, adapter.key.base)]

    def show(self, key: AdapterKey) -> Adapter:
        return self.adapters.get(key)

    def stored(self, version: Version) -> StoredAdapter:
        return StoredAdapter(version.digest, self.folder, 8, 100)

    async def pin(self, key: AdapterKey, pinned: bool) -> Adapter:
        return self.adapters.pin(key, pinned)

    async def change(self, key: AdapterKey, change: Callable[[AdapterTable, AdapterKey], Adapter]) -> Adapter:
        return change(self.adapters, key)

    async def remove(self, key: AdapterKey, ref: str | None, *, force: bool) -> tuple[str, ...]:
        before = {version.digest for version in self.adapters.get(key).versions}
        if ref is None:
            self.adapters.delete(key, force=force)
        else:
            self.adapters.delete_version(key, ref, force=force)
        return tuple(before - {version.digest for adapter in self.adapters.all() for version in adapter.versions})

    async def collect(self) -> None:
        return None


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[FakeGateway]:
    """A gateway with 'small', which has three places, and four adapters, of which 'one' and 'same' are equal."""
    with State(tmp_path / "data") as state:
        for name, content in (("one", 1), ("same", 1), ("two", 2), ("three", 3)):
            state.adapters.register(AdapterKey("small", name), NewVersion(digest(content), 8, 100, "test"))
        state.adapters.register(AdapterKey("gone", "orphan"), NewVersion(digest(9), 8, 100, "test"))
        small = recipe("small", memory={"adapters": {"device": 3, "host": 8}})
        made = FakeGateway(tmp_path, [small], state=state, service=Service(state, tmp_path))
        made.queues["small"].close()  # what is held is told; nothing is brought anywhere
        yield made


def held(gateway: FakeGateway) -> list[int]:
    policy = gateway.queues["small"].policy
    return [number for number in (1, 2, 3) if policy.status(digest(number)).pinned]


async def pin(client: httpx.AsyncClient, name: str, pinned: bool = True) -> Any:
    return await (client.put if pinned else client.delete)(f"/v1/adapters/{name}/pin")


async def test_content_of_two_names_is_pinned_while_one_of_them_is(
    client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    assert (await pin(client, "one")).status_code == 200
    assert (await client.put("/v1/adapters/same/aliases/prod", json={"version": "v1"})).status_code == 200
    assert held(gateway) == [1], "changing the other name does not unpin it"
    assert (await pin(client, "same")).status_code == 200
    assert (await pin(client, "one", False)).status_code == 200
    assert held(gateway) == [1]
    assert (await pin(client, "same", False)).status_code == 200
    assert held(gateway) == []


async def test_a_pin_is_removed_with_its_adapter(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    assert (await pin(client, "one")).status_code == 200
    assert (await client.delete("/v1/adapters/one", params={"force": "true"})).status_code == 200
    assert held(gateway) == [], "'same' still has the content, but is not pinned"


async def test_a_pin_without_room_changes_nothing(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    assert [(await pin(client, name)).status_code for name in ("one", "two", "three")] == [200, 200, 409]
    assert held(gateway) == [1, 2]
    assert not gateway.state.adapters.get(AdapterKey("small", "three")).pinned


async def test_stored_pins_without_room_are_left_out(gateway: FakeGateway) -> None:
    """The recipe has fewer places than before."""
    for name in ("one", "two", "three"):
        gateway.state.adapters.pin(AdapterKey("small", name), True)
    await gateway.gateway.services.adapters.register_from_recipe(gateway.recipes[0])
    assert len(held(gateway)) == 2


async def test_a_disk_failure_under_one_adapter_of_a_recipe_is_reported(tmp_path: Path) -> None:
    """The server becomes ready without it."""

    async def register(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    with State(tmp_path / "data") as state:
        service = Service(state, tmp_path)
        service.register = register  # type: ignore[attr-defined]
        expected = recipe("small", adapters=[{"name": "one", "source": {"path": "x"}}])
        gateway = FakeGateway(tmp_path, [expected], state=state, service=service)
        await gateway.gateway.services.adapters.register_from_recipe(expected)
        assert "No space left" in gateway.gateway.services.adapters.faults["small:one"]
        await gateway.gateway.services.adapters.register_from_recipe(recipe("small", version=2))
        assert gateway.gateway.services.adapters.faults == {}, "the recipe no longer names it"
        await gateway.gateway.services.adapters.register_from_recipe(expected)
        del gateway.entries["small"]
        assert gateway.gateway.services.adapters.faults == {}, "the model was removed"


@pytest.mark.parametrize(("content", "registered"), [(1, ["one"]), (2, [])], ids=["same", "other"])
async def test_a_recipes_adapter_with_lost_files_is_registered_again_as_the_same_version(
    tmp_path: Path, content: int, registered: list[str]
) -> None:
    """In a fleet, its name may come from a server that has left. A newer version keeps its name."""
    done: list[str] = []

    async def register(name: str, *_: Any, accept: Callable[[CheckedAdapter], None], **__: Any) -> Any:
        accept(CheckedAdapter(digest(content), 8, 100))
        done.append(name)

    with State(tmp_path / "data") as state:
        state.adapters.register(AdapterKey("small", "one"), NewVersion(digest(1), 8, 100, "test"))
        service = Service(state, tmp_path)
        service.register = register  # type: ignore[attr-defined]
        declared = recipe("small", adapters=[{"name": "one", "source": {"path": "x"}}])
        adapters = FakeGateway(tmp_path, [declared], state=state, service=service).gateway.services.adapters
        await adapters.register_from_recipe(declared)
        assert done == [], "a single server has its files"
        adapters.copied = copied
        await adapters.register_from_recipe(declared)
        assert (done, adapters.faults) == (registered, {})


async def test_a_recipes_adapter_is_checked_again_when_the_recipe_has_another_base(tmp_path: Path) -> None:
    """Otherwise it would be used on weights that it was never compared with."""
    bases: list[str | None] = []

    async def register(_: str, base: Base, *__: Any, **___: Any) -> None:
        bases.append(base.origin)

    with State(tmp_path / "data") as state:
        service = Service(state, tmp_path)
        service.register = register  # type: ignore[attr-defined]
        declared = recipe("small", adapters=[{"name": "one", "source": {"path": "x"}}])
        adapters = FakeGateway(tmp_path, [declared], state=state, service=service).gateway.services.adapters
        own = origin(declared.source)
        for base_origin in (None, own, "hub acme/other"):
            state.adapters.register(
                AdapterKey("small", "one"), NewVersion(digest(1), 8, 100, "test", base_origin=base_origin)
            )
            await adapters.register_from_recipe(declared)
        assert (bases, adapters.faults) == ([own], {})


async def copied(_: Version) -> None:
    """No other server copies it."""


async def test_an_adapter_whose_base_was_removed_can_be_removed_but_not_changed(client: httpx.AsyncClient) -> None:
    views = (await client.get("/v1/adapters")).json()["data"]
    assert ("orphan", "gone", "disk") in [(view["name"], view["base"], view["tier"]) for view in views]
    for name in ("orphan", "gone:orphan"):
        assert (await client.get(f"/v1/adapters/{name}")).json()["base"] == "gone"
    for method, path, body in (
        ("PUT", "/v1/adapters/gone:orphan/aliases/prod", {"version": "v1"}),
        ("PUT", "/v1/adapters/gone:orphan/pin", None),
    ):
        refused = await client.request(method, path, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found"), refused.text
        assert "remove the adapter" in refused.json()["error"]["message"]
    assert (await client.delete("/v1/adapters/orphan")).status_code == 200
