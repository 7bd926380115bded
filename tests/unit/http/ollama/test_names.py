"""Names that Ollama's clients write mean their team's adapters: in requests, unloads and removals."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from registry.errors import NotFound
from registry.recipes.definition import Task
from registry.records import AdapterKey, NewVersion
from registry.state.database import State
from runtime.gateway.names import ModelRef
from runtime.http.dialect import Parts
from runtime.http.ollama import keep_alive
from tenants.caller import EVERYBODY, Caller
from tests.unit.http.admin.test_pins import Service
from tests.unit.http.fakes import FakeGateway, application
from tests.unit.registry.makers import digest, recipe

SEARCH = Caller(team="search")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[FakeGateway]:
    with State(tmp_path / "data") as state:
        for number, (base, name, team) in enumerate(
            [
                ("big", "legal", "search"), ("small", "legal", "default"),
                ("big", "latest", "search"), ("small", "latest", "default"),
                ("small", "one", "default"), ("small", "one", "default"),
            ]
        ):  # fmt: skip
            state.adapters.register(AdapterKey(base, name, team), NewVersion(digest(number), 8, 100, "test"))
        service = Service(state, tmp_path)
        yield FakeGateway(tmp_path, [recipe("big"), recipe("small")], state=state, service=service)


@pytest.mark.parametrize(
    ("name", "caller", "adapter"),
    [
        ("big:latest", SEARCH, "search/latest"),
        ("big:latest", EVERYBODY, None),
        ("small:latest", SEARCH, None),
        ("small:latest", EVERYBODY, "latest"),
        ("legal:latest", SEARCH, "search/legal"),
    ],
)
async def test_latest_is_a_tag_unless_the_team_has_an_adapter_of_this_name(
    gateway: FakeGateway, name: str, caller: Caller, adapter: str | None
) -> None:
    """The base used to answer instead of the team's adapter `latest`."""
    assert gateway.gateway.resolve(ModelRef(Task.CHAT, name), caller).adapter == adapter


async def test_the_base_does_not_answer_for_a_removed_adapter_named_latest(gateway: FakeGateway) -> None:
    gateway.state.adapters.delete(AdapterKey("small", "latest"))
    gateway.names.refresh()
    with pytest.raises(NotFound, match="no adapter 'latest'"):
        gateway.gateway.resolve(ModelRef(Task.CHAT, "small:latest"), EVERYBODY)


async def nothing() -> Parts:
    yield b""


@pytest.mark.parametrize(("caller", "model"), [(SEARCH, "big"), (EVERYBODY, "small")])
@pytest.mark.parametrize("messages", ["[]", "[{}]"])
async def test_a_keep_alive_of_0_unloads_the_base_of_the_teams_own_adapter(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, caller: Caller, model: str, messages: str
) -> None:
    """It used to unload the base of the adapter that has this name in the team `default`."""
    unloaded: list[str] = []

    async def unload(name: str) -> None:
        unloaded.append(name)

    monkeypatch.setattr(gateway.gateway.services.models, "unload", unload)
    body = b'{"model": "legal", "keep_alive": 0, "messages": %s}' % messages.encode()
    async for _ in keep_alive.apply_keep_alive("/api/chat", gateway.gateway, caller, body, nothing()):
        pass
    assert unloaded == [model]


async def test_only_the_named_version_is_removed(gateway: FakeGateway) -> None:
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for name, status, left in (("one@v3", 404, 2), ("one@v1:latest", 200, 1), ("one", 200, 0)):
            response = await client.request("DELETE", "/api/delete", json={"model": name})
            assert response.status_code == status, response.text
            adapters = [adapter for adapter in gateway.state.adapters.all() if adapter.key.name == "one"]
            assert sum(len(adapter.versions) for adapter in adapters) == left
