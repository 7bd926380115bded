"""Names over HTTP: names that adapters and aliases may not have, and conflicts with later recipes."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from adapters.types import AdapterSource, Base, CheckedAdapter, StoredAdapter
from registry.bounds import Bounds
from registry.names import NAME_RULE
from registry.recipes.definition import Task
from registry.records import Adapter, AdapterKey, NewVersion, Probe, RegisteredVersion
from registry.state.database import State
from runtime.gateway.names import ModelRef, Names
from runtime.scheduling.probes import ProbeResult
from tenants.caller import Caller, Scope
from tests.fakes.multipart import HEADERS, part
from tests.unit.http.fakes import CallerLayer, FakeGateway, application
from tests.unit.registry.makers import digest, recipe

BASE = recipe("small", aliases=("chat",))
PLAIN = recipe("plain", memory={})
BOTH = recipe("small:tall")


class Service:
    """Registers in the state without reading a file."""

    notes = SimpleNamespace(of=lambda digest: ())

    def __init__(self, state: State, incoming: Path) -> None:
        self.state, self.incoming, self.bounds = state, incoming, Bounds()
        self.checked: list[AdapterSource] = []

    def list(self, base: str | None = None) -> "list[Adapter]":
        return [adapter for adapter in self.state.adapters.all() if base in (None, adapter.key.base)]

    async def validate(self, base: Base, source: AdapterSource, **_: Any) -> CheckedAdapter:
        self.checked.append(source)
        return CheckedAdapter(digest(1), 8, 100)

    async def register(self, name: str, base: Base, source: AdapterSource, **_: Any) -> RegisteredVersion:
        self.checked.append(source)
        return self.state.adapters.register(AdapterKey(base.id, name), NewVersion(digest(1), 8, 100, "test"))

    async def remove(self, key: AdapterKey, ref: str | None, *, force: bool) -> tuple[str, ...]:
        self.state.adapters.delete(key, force=force)
        return (digest(1),)

    async def collect(self) -> None:
        return None

    def stored(self, version: Any) -> Any:
        return SimpleNamespace(digest=version.digest)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[FakeGateway]:
    with State(tmp_path / "data") as state:
        service = Service(state, tmp_path / "incoming")
        yield FakeGateway(tmp_path, [BASE, PLAIN, BOTH], state=state, service=service)


def error(answer: httpx.Response) -> tuple[int, str, str]:
    fault = answer.json()["error"]
    return answer.status_code, fault["code"], fault["param"]


REFUSED = [
    ("plain", "small", (409, "name_in_use", "name")),  # another model's id
    ("chat", "small", (409, "name_in_use", "name")),  # an alias
    ("small", "chat", (409, "name_in_use", "name")),  # its base, named by an alias
    ("tall", "small", (409, "name_in_use", "name")),  # small:tall is a model
    ("fine", "plain", (400, "adapters_not_supported", "base")),
    ("fine", "none", (404, "model_not_found", "model")),
]


@pytest.mark.parametrize(("name", "base", "fault"), REFUSED)
@pytest.mark.parametrize("query", ["", "?dry_run=true"])
async def test_names_of_models_are_refused_before_anything_is_read(
    name: str, base: str, fault: tuple[int, str, str], query: str, client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    body = {"name": name, "base": base, "source": {"path": "/adapter"}}
    assert error(await client.post(f"/v1/adapters{query}", json=body)) == fault
    cut = part("name", name.encode()) + part("base", base.encode()) + part("file", b"the rest is never read", "a.tar")
    assert error(await client.post(f"/v1/adapters{query}", content=cut, headers=HEADERS)) == fault
    assert gateway.service.checked == []
    assert gateway.state.adapters.all() == ()


async def test_a_name_that_is_taken_while_its_adapter_is_checked_is_refused(
    client: httpx.AsyncClient, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download may take minutes."""

    async def register(*_: Any, accept: Callable[[CheckedAdapter], None], **__: Any) -> None:
        assert (await client.put("/v1/models/plain/aliases/fine")).status_code == 200
        accept(CheckedAdapter(digest(1), 8, 100))
        raise AssertionError("it is stored")

    monkeypatch.setattr(gateway.service, "register", register)
    body = {"name": "fine", "base": "small", "source": {"hub": "a/b", "revision": "0" * 40}}
    assert error(await client.post("/v1/adapters", json=body)) == (409, "name_in_use", "name")


@pytest.mark.parametrize(("name", "base", "fault"), REFUSED)
async def test_vllms_call_refuses_them_too(
    name: str, base: str, fault: tuple[int, str, str], client: httpx.AsyncClient
) -> None:
    body = {"lora_name": name, "lora_path": "/adapter", "base_model_name": base}
    assert error(await client.post("/v1/load_lora_adapter", json=body)) == fault


def asking_as(gateway: FakeGateway, caller: Caller) -> httpx.AsyncClient:
    app = application(gateway, [(CallerLayer, {"caller": caller})])
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")


@pytest.mark.parametrize(
    ("source", "param"),
    [
        ({"hub": "a/b"}, "source.revision"),
        ({"path": ""}, "source.path"),
        ("", "source"),
        ({"path": "/a", "x": 1}, "source.x"),
    ],
)
async def test_a_fault_of_a_source_names_the_clients_field(
    client: httpx.AsyncClient, source: object, param: str
) -> None:
    for path, body in (("/v1/adapters", {"name": "fine", "base": "small"}), ("/v1/models", {})):
        refused = await client.post(path, json={**body, "source": source})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert refused.json()["error"]["message"].startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("team", "scope", "fault"), [("legal", "adapters", True), ("search", "adapters", False), ("search", "admin", True)]
)
async def test_a_user_of_an_adapter_does_not_see_its_source(
    team: str, scope: str, fault: bool, gateway: FakeGateway
) -> None:
    """The server's folders, names of private adapters and known answers used to be visible to all teams."""
    made, key = "0.7 × legal/secret@v1 + 0.3 × /srv/x", AdapterKey("small", "mixed", "legal")
    new = NewVersion(digest(1), 8, 100, made, Probe("who was it?", "Ada"))
    gateway.state.adapters.register(key, new, shared=True)
    gateway.names.refresh()
    async with asking_as(gateway, Caller(team, "key00001", frozenset((Scope(scope),)))) as client:
        answer = await client.get("/v1/adapters")
    [found] = answer.json()["data"]
    assert (found["base"], found["version"], found["shared"]) == ("small", "v1", True)
    for word in ("secret", "/srv/x", "who was it?", "Ada"):
        assert (word in answer.text) is fault
    for use in ("running", "waiting", "hits", "misses", "evictions"):
        assert found[use] == (0 if fault else None)


@pytest.mark.parametrize(("scope", "fault"), [("infer", False), ("adapters", False), ("models", True), ("admin", True)])
async def test_a_user_of_a_model_does_not_see_the_load_of_others(scope: str, fault: bool, gateway: FakeGateway) -> None:
    async with asking_as(gateway, Caller("search", "key00001", frozenset((Scope(scope),)))) as client:
        displayed = [(await client.get("/v1/models/small")).json(), (await client.get("/v1/models")).json()["data"][0]]
    for found in displayed:
        assert (found["id"], found["running"], found["waiting"]) == ("small", *((0, 0) if fault else (None, None)))


@pytest.mark.parametrize(("team", "fault"), [("legal", True), ("search", False)])
async def test_a_user_of_an_adapter_does_not_see_its_probe(
    team: str, fault: bool, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal used to reveal the known answer to all teams."""
    probe = Probe("who was it?", "Ada")
    new = NewVersion(digest(1), 8, 100, "test", probe)
    gateway.state.adapters.register(AdapterKey("small", "mixed", "legal"), new, shared=True)
    gateway.names.refresh()
    stored = StoredAdapter(digest(1), Path("/x"), 8, 100)
    monkeypatch.setattr(gateway.gateway._backends["local"], "_stored", lambda _: stored)
    probes = gateway.queues["small"].effects.probes
    probes._refused[digest(1), probe] = ProbeResult(probe, False, "Bob", 0.0, 0.0)
    async with asking_as(gateway, Caller(team, "key00001", frozenset((Scope.INFER,)))) as client:
        body = {"model": "legal/mixed", "messages": [{"role": "user", "content": "hi"}]}
        answer = await client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "adapter_probe_failed"), answer.text
    assert ("Ada" in answer.text, "Bob" in answer.text) == (fault, fault)


@pytest.mark.parametrize("base", ["secre", "secret", "small:secret"])
async def test_a_wrong_base_reveals_no_names_of_another_team(base: str, gateway: FakeGateway) -> None:
    """The error used to list those of the team `default`, and reveal whether a name exists."""
    gateway.state.adapters.register(AdapterKey("small", "secret"), NewVersion(digest(1), 8, 100, "test"))
    gateway.names.refresh()
    async with asking_as(gateway, Caller("search", "key00001", frozenset((Scope.ADAPTERS, Scope.PATHS)))) as client:
        body = {"name": "x", "base": base, "source": {"path": "/adapter"}}
        for answer in (
            await client.post("/v1/adapters", json=body),
            await client.post("/v1/adapters?dry_run=true", json=body),
            await client.get("/v1/adapters", params={"base": base}),
        ):
            assert error(answer)[:2] == (404, "model_not_found")
            *_, exists = answer.json()["error"]["message"].split("There ")
            assert "secret" not in exists


@pytest.mark.parametrize("name", ["a b", ".hidden", "", "x" * 65])
async def test_an_invalid_name_is_explained(name: str, client: httpx.AsyncClient) -> None:
    body = {"name": name, "base": "small", "source": {"path": "/adapter"}}
    answer = await client.post("/v1/adapters", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "name")
    message = answer.json()["error"]["message"]
    assert NAME_RULE in message
    assert "pattern" not in message
    load = {"lora_name": name, "lora_path": "/adapter", "base_model_name": "small"}
    combine = {"name": name, "adapters": [{"name": "a", "weight": 1}, {"name": "b", "weight": 1}]}
    for path, body in (("/v1/load_lora_adapter", load), ("/v1/adapters/combine", combine)):
        refused = await client.post(path, json=body)
        assert refused.json()["error"]["message"] == f"{next(iter(body))}: {NAME_RULE}."


async def test_an_alias_of_a_model_is_set_moved_and_removed(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    made = await client.put("/v1/models/small/aliases/team/best:1")
    assert (made.status_code, made.json()["aliases"]) == (200, ["chat", "team/best:1"])
    assert gateway.names.catalog.resolve("team/best:1").recipe.id == "small"
    assert (await client.put("/v1/models/plain/aliases/team/best:1")).json()["aliases"] == ["team/best:1"]
    wrong = await client.delete("/v1/models/small/aliases/team/best:1")
    assert error(wrong) == (404, "alias_not_found", "alias")
    assert (await client.delete("/v1/models/plain/aliases/team/best:1")).json()["aliases"] == []
    assert gateway.state.models.aliases() == {}


@pytest.mark.parametrize(
    ("alias", "fault"),
    [
        ("plain", (409, "name_in_use", "alias")),  # a model
        ("chat", (409, "name_in_use", "alias")),  # in a recipe
        ("fine", (409, "name_in_use", "alias")),  # an adapter
        ("small:fine", (409, "name_in_use", "alias")),
        ("a b", (400, "invalid_value", "alias")),
    ],
)
async def test_existing_names_are_refused_as_aliases(
    alias: str, fault: tuple[int, str, str], client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    gateway.state.adapters.register(AdapterKey("small", "fine"), NewVersion(digest(1), 8, 100, "test"))
    gateway.names.refresh()
    assert error(await client.put(f"/v1/models/small/aliases/{alias}")) == fault
    assert gateway.state.models.aliases() == {}


async def test_an_alias_in_a_recipe_cannot_be_removed(client: httpx.AsyncClient) -> None:
    assert error(await client.delete("/v1/models/small/aliases/chat"))[:2] == (404, "alias_not_found")


@pytest.mark.parametrize(("base", "name"), [("small", "plain"), ("small", "tall"), ("gone", "fine")])
async def test_an_adapter_that_a_recipe_hides_can_be_removed(
    base: str, name: str, client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    gateway.state.adapters.register(AdapterKey(base, name), NewVersion(digest(1), 8, 100, "test"))
    gateway.names.refresh()
    assert gateway.names.catalog.notes
    answer = await client.delete(f"/v1/adapters/{base}:{name}")
    assert (answer.status_code, answer.json()["name"]) == (200, name), answer.text
    assert not gateway.names.catalog.notes


async def test_versions_that_a_registration_removes_leave_the_engine_and_the_disk(
    client: httpx.AsyncClient, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, gone = gateway.service, list[str]()

    async def register(name: str, base: Base, source: AdapterSource, **_: Any) -> RegisteredVersion:
        new = NewVersion(digest(2), 8, 100, "test")
        return replace(gateway.state.adapters.register(AdapterKey(base.id, name), new), unreferenced=(digest(1),))

    async def collect() -> tuple[str, ...]:
        gone.append("files")
        return ()

    monkeypatch.setattr(service, "register", register)
    monkeypatch.setattr(service, "collect", collect)
    monkeypatch.setattr(gateway.residency.get("small").queue, "forget_adapter", gone.append)
    answer = await client.post(
        "/v1/adapters", json={"name": "fine", "base": "small", "source": {"hub": "a/b", "revision": "0" * 40}}
    )
    assert (answer.status_code, gone) == (201, [digest(1), "files"]), answer.text


async def test_the_card_of_a_version_has_its_fields(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    table, key = gateway.state.adapters, AdapterKey("small", "upper")
    for seed in (1, 2):
        table.register(key, NewVersion(digest(seed), 8, 100, "test"))
    table.set_alias(key, "prod", "v1")
    gateway.names.refresh()
    found = {name: (await client.get(f"/v1/models/{name}")).json() for name in ("upper", "upper@v1", "upper@prod")}
    seen = {name: (card["version"], card["digest"], card["id"]) for name, card in found.items()}
    assert seen == {
        "upper": ("v2", digest(2), "upper"),
        "upper@v1": ("v1", digest(1), "upper@v1"),
        "upper@prod": ("v1", digest(1), "upper@v1"),
    }


def test_the_label_is_the_name_if_a_later_version_has_the_same_content(tmp_path: Path) -> None:
    key = AdapterKey("small", "tone")
    with State(tmp_path / "state") as state:
        for number in (1, 2, 1):
            state.adapters.register(key, NewVersion(digest(number), 8, 100, "test"))
        state.adapters.point(key, "v1")
        names = Names([BASE], state)
        assert [names.label_of("small", digest(number)) for number in (1, 2, 3)] == ["tone", "tone@v2", "00000000"]


def test_a_key_limited_to_one_base_gets_the_newest_version_there(tmp_path: Path) -> None:
    """Two bases have an adapter of this name, of which the key may use one."""
    mine = AdapterKey("small", "tone")
    with State(tmp_path / "state") as state:
        for key in (mine, AdapterKey("large", "tone")):
            state.adapters.register(key, NewVersion(digest(1), 8, 100, "test"))
        names = Names([BASE, recipe("large")], state)
        for number in (1, 2):
            state.adapters.register(mine, NewVersion(digest(number), 8, 100, "test"))
            names.refresh()
            _, resolved = names.resolve(ModelRef(Task.CHAT, "tone"), Caller(models=("small",)))
            assert resolved.version is not None
            assert resolved.version.digest == digest(number)


async def test_an_adapter_is_removed_even_if_its_files_cannot_be_deleted_now(
    gateway: FakeGateway, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the data directory was moved. The next start deletes them."""
    gateway.state.adapters.register(AdapterKey("small", "fine"), NewVersion(digest(1), 8, 100, "test"))
    gateway.names.refresh()

    async def collect() -> None:
        raise FileNotFoundError(2, "No such file or directory", "store")

    monkeypatch.setattr(gateway.service, "collect", collect)
    assert (await client.delete("/v1/adapters/fine")).json()["deleted"]
    assert (await client.get("/v1/adapters/fine")).status_code == 404
