"""Adapters that requests name by their source: what counts as one, who may name it, and one download for all."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.types import UrlSource
from registry.bounds import Bounds
from registry.errors import Forbidden, NotFound, QueueFull, RoundhouseError, Unavailable
from registry.recipes.definition import Recipe, Task
from registry.recipes.fields import HubSource
from registry.records import AdapterKey, NewVersion
from registry.state.database import State
from runtime.gateway.launch import on_demand
from runtime.gateway.launch.on_demand import MOST_PER_TEAM, OnDemand, name_of, source_of
from runtime.gateway.names import ModelRef, Names
from tenants.caller import SCOPES, Caller, Scope
from tests.unit.http.admin.test_names import asking_as
from tests.unit.http.fakes import FakeGateway

MAY = Caller("search", "key00001", SCOPES)


def recipe(id_: str, *, allowed: bool) -> Recipe:
    places = {"device": 2, "host": 4, "on_demand": allowed}
    return Recipe.model_validate(
        {"id": id_, "version": 1, "task": "chat", "source": {"path": "x"}, "engine": {"name": "vllm"},
         "memory": {"adapters": places}}
    )  # fmt: skip


class Registrar:
    """Registers adapters in the state once `gate` is open."""

    def __init__(self, state: State, names: Names) -> None:
        self.state, self.names, self.gate = state, names, asyncio.Event()
        self.gate.set()
        self.error: RoundhouseError | None = None
        self.calls: list[tuple[str, str, object, str]] = []

    async def register(self, name: str, base: str, source: object, caller: Caller) -> None:
        self.calls.append((name, base, source, caller.team))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        version = NewVersion(f"sha256:{len(self.calls):064x}", 8, 100, "test")
        self.state.adapters.register(AdapterKey(base, name, caller.team), version)
        self.names.refresh()


@pytest.fixture
def names(tmp_path: Path) -> Iterator[Names]:
    with State(tmp_path / "data") as state:
        yield Names(
            [
                recipe("llama", allowed=True),
                recipe("gpt:7b", allowed=True),
                recipe("other", allowed=False),
                recipe("gpt", allowed=True),
            ],
            state,
        )


@pytest.fixture
async def registrar(names: Names) -> Registrar:
    return Registrar(names._state, names)


@pytest.fixture
async def provider(names: Names, registrar: Registrar) -> OnDemand:
    adapters: Any = registrar
    return OnDemand(names, adapters)


def model_ref(name: object, adapter: str | None = None) -> ModelRef:
    return ModelRef(Task.CHAT, name, adapter)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("org/name", HubSource(hub="org/name", revision="main")),
        ("org/name@v2", HubSource(hub="org/name", revision="v2")),
        ("s3://bucket/a/b", UrlSource(url="s3://bucket/a/b")),
        ("gs://bucket/b.tar.gz", UrlSource(url="gs://bucket/b.tar.gz")),
        ("https://example.com/legal", UrlSource(url="https://example.com/legal")),
        ("http://example.com/legal", None),
        ("file:///etc/passwd", None),
        ("https://user:secret@example.com/legal", None),
        ("https://", None),
        ("org/name@../x", None),
        ("org/../name", None),
        ("/etc/passwd", None),
        ("name", None),
        ("org/name/more", None),
        ("org/name\n", None),
    ],
)
def test_what_is_a_source(text: str, source: object) -> None:
    assert source_of(text) == source


def test_each_source_has_its_own_name() -> None:
    texts = [
        "org/name",
        "org/name@v2",
        "other/name",
        "s3://b/name",
        "https://x/" + "é" * 90,
        "org/-name-",
        "https://x/?",
    ]
    found = [name_of(text) for text in texts]
    assert len(set(found)) == len(texts)
    assert found[0].startswith("name-")
    for name in found:
        AdapterKey("llama", name)
        assert len(name) <= 64
        assert name.isascii()


def test_a_name_has_nothing_of_a_signature() -> None:
    signed = [name_of(f"https://x.org/a/legal.tar?{query}") for query in ("sig=5d/SECRET", "token=SECRET", "sig=5d")]
    assert len(set(signed)) == 3
    for name in signed:
        assert name.startswith("legal.tar-")
        assert "SECRET" not in name


@pytest.mark.parametrize(
    ("ref", "base", "source"),
    [
        (model_ref("llama:org/name@v2"), "llama", HubSource(hub="org/name", revision="v2")),
        (model_ref("gpt:7b:org/name"), "gpt:7b", HubSource(hub="org/name", revision="main")),
        (model_ref("llama", "org/name"), "llama", HubSource(hub="org/name", revision="main")),
        (model_ref("llama:https://x.org/a:b"), "llama", UrlSource(url="https://x.org/a:b")),
    ],
)
async def test_the_first_request_registers_the_adapter_for_its_team(
    provider: OnDemand, registrar: Registrar, names: Names, ref: ModelRef, base: str, source: object
) -> None:
    for _ in range(2):
        provided = await provider.provide(ref, MAY)
        assert provided is not None
        _, resolved = names.resolve(provided, MAY)
        assert (resolved.recipe.id, resolved.version is not None) == (base, True)
    ((name, *rest),) = registrar.calls
    assert rest == [base, source, "search"]
    with pytest.raises(NotFound):
        names.resolve(provided, replace(MAY, team="legal"))
    assert resolved.version is not None
    assert resolved.version.key == AdapterKey(base, name, "search")


@pytest.mark.parametrize(
    "ref",
    [
        model_ref("other:org/name"),
        model_ref("nobody:org/name"),
        model_ref("llama:legal"),
        model_ref("llama", "legal"),
        model_ref(None),
        model_ref(None, "org/name"),
        model_ref("llama:http://x/y"),
        model_ref("llama:org/" + "n" * 2000),
        ModelRef(Task.EMBED, "llama:org/name"),
        replace(model_ref("llama:org/name"), written_by="legal"),
    ],
)
async def test_a_name_that_is_no_source_of_an_allowed_base_is_ignored(
    provider: OnDemand, registrar: Registrar, ref: ModelRef
) -> None:
    assert await provider.provide(ref, MAY) is None
    assert not registrar.calls


def test_a_source_that_the_base_does_not_fetch_comes_with_advice(provider: OnDemand) -> None:
    for ref in (model_ref("other:org/name"), model_ref("other", "s3://bucket/name")):
        assert "memory.adapters.on_demand in the recipe of 'other'" in provider.hint(ref, MAY)
    for ref in (model_ref("other", "/srv/legal"), model_ref("llama", "/srv/legal"), model_ref("llama:./legal")):
        assert "A folder is registered first" in provider.hint(ref, MAY)
    for name in ("org/name", "s3://bucket/name"):
        assert f"also name its base: 'llama:{name}'." in provider.hint(model_ref(name), MAY)
    for ref in (
        model_ref("other:legal"),
        model_ref("llama:org/name"),
        model_ref("nobody:org/name"),
        model_ref("legal"),
        model_ref(None),
        ModelRef(Task.EMBED, "org/name"),
    ):
        assert provider.hint(ref, MAY) == ""


@pytest.mark.parametrize(
    ("ref", "lacks"),
    [
        (model_ref("llama:org/name"), Scope.ADAPTERS),
        (model_ref("llama:s3://bucket/name"), Scope.ADAPTERS),
        (model_ref("llama:s3://bucket/name"), Scope.PATHS),
        (model_ref("llama", "https://x.org/name"), Scope.PATHS),
    ],
)
async def test_a_key_needs_the_scopes_once(
    provider: OnDemand, registrar: Registrar, ref: ModelRef, lacks: Scope
) -> None:
    small = replace(MAY, scopes=SCOPES - {lacks})
    with pytest.raises(Forbidden, match=f"'{lacks}'") as error:
        await provider.provide(ref, small)
    assert error.value.param == ("adapter_id" if ref.adapter else "model")
    assert not registrar.calls
    await provider.provide(ref, MAY)
    assert await provider.provide(ref, small) is not None, "any key may use what its team has registered"


async def test_requests_share_one_download_and_wait_for_it_for_a_limited_time(
    provider: OnDemand, registrar: Registrar, monkeypatch: pytest.MonkeyPatch
) -> None:
    registrar.gate.clear()
    first = [asyncio.create_task(provider.provide(model_ref("llama:org/name"), MAY)) for _ in range(5)]
    await asyncio.sleep(0)
    monkeypatch.setattr(on_demand, "WAIT", 0.0)
    with pytest.raises(Unavailable) as error:
        await provider.provide(model_ref("llama:org/name"), MAY)
    assert (error.value.code, error.value.retry_after) == ("source_not_downloaded", on_demand.RETRY)
    first[0].cancel()
    registrar.gate.set()
    assert len(set(await asyncio.gather(*first[1:]))) == 1
    assert len(registrar.calls) == 1


async def test_a_team_has_few_downloads_at_a_time(provider: OnDemand, registrar: Registrar) -> None:
    registrar.gate.clear()
    running = [
        asyncio.create_task(provider.provide(model_ref(f"llama:org/name{n}"), MAY)) for n in range(MOST_PER_TEAM)
    ]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull) as error:
        await provider.provide(model_ref("llama:org/more"), MAY)
    assert error.value.retry_after
    other = asyncio.create_task(provider.provide(model_ref("llama:org/more"), replace(MAY, team="legal")))
    await asyncio.sleep(0)
    registrar.gate.set()
    assert all(await asyncio.gather(*running, other))
    assert await provider.provide(model_ref("llama:org/more"), MAY)


async def test_a_refusal_is_remembered_for_a_while_and_names_the_field(
    provider: OnDemand, registrar: Registrar
) -> None:
    registrar.error = NotFound("no such repository", code="hub_not_found", param="source.hub")
    for ref, param in ((model_ref("llama:org/name"), "model"), (model_ref("llama", "org/name"), "adapter_id")):
        with pytest.raises(NotFound) as error:
            await provider.provide(ref, MAY)
        assert (error.value.code, error.value.param) == ("hub_not_found", param)
    assert len(registrar.calls) == 1
    registrar.error = None
    provider._refused.clear()
    assert await provider.provide(model_ref("llama:org/name"), MAY)


async def test_downloads_end_with_the_server(provider: OnDemand, registrar: Registrar) -> None:
    registrar.gate.clear()
    waiting = asyncio.create_task(provider.provide(model_ref("llama:org/name"), MAY))
    await asyncio.sleep(0)
    await provider.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_errors_have_the_format_of_their_dialect(tmp_path: Path) -> None:
    async def register(*_: Any, **__: Any) -> Any:
        raise NotFound("no such repository", code="hub_not_found", param="source.hub")

    with State(tmp_path / "data") as state:
        service = SimpleNamespace(register=register, list=lambda _=None: [], incoming=tmp_path, bounds=Bounds())
        gateway = FakeGateway(tmp_path, [recipe("llama", allowed=True)], state=state, service=service)
        async with asking_as(gateway, MAY) as client:
            body = {"model": "llama:org/name", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
            chat = await client.post("/v1/chat/completions", json=body)
            messages = await client.post("/v1/messages", json=body)
            apart = await client.post("/v1/chat/completions", json={**body, "model": "llama", "adapter_id": "org/name"})
        assert [answer.status_code for answer in (chat, messages, apart)] == [404] * 3
        error = chat.json()["error"]
        assert (error["code"], error["param"]) == ("hub_not_found", "model")
        assert apart.json()["error"]["param"] == "adapter_id"
        assert messages.json()["error"]["type"] == "not_found_error"
