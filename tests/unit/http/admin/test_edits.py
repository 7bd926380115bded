"""Simultaneous changes of a model's recipe, and the forms of its source."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from registry.errors import Conflict
from registry.recipes.definition import Recipe
from registry.recipes.fields import HubSource
from registry.records import AdapterKey, NewVersion
from registry.state.database import State
from runtime.config.device import Device
from runtime.gateway.files import FilesInUse, ModelFiles
from runtime.http.admin.bodies import AddModelBody, source_text
from runtime.residency.entry import ModelEntry
from runtime.residency.measurements import load_key
from runtime.residency.states import ModelState
from runtime.residency.updates import RecipeExchange
from tests.unit.http.fakes import FakeGateway
from tests.unit.registry.makers import digest

CPU = Device("cpu", "cpu", "cpu", 1 << 30, 1 << 30)


@pytest.fixture
async def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeGateway]:
    """A gateway whose models change and leave at once, but whose check of an edit takes a while."""
    with State(tmp_path / "data") as state:
        gateway = FakeGateway(tmp_path, state=state)
        editor, entries = gateway.gateway.services.editor, gateway.entries

        async def remove(entry: ModelEntry, _: object) -> None:
            del entries[entry.id]

        monkeypatch.setattr(editor, "_check", _slowly)
        monkeypatch.setattr(editor._residency.exchanger, "start", _at_once, raising=False)
        monkeypatch.setattr(editor._residency, "add", lambda one: entries.setdefault(one.id, one), raising=False)
        monkeypatch.setattr(editor._residency, "remove", remove, raising=False)
        yield gateway


async def test_two_simultaneous_edits_are_two_versions(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    changes = ({"queue.max_waiting": 7}, {"batching.max_requests": 3})
    answers = await asyncio.gather(*(client.patch("/v1/models/chat", json={"changes": one}) for one in changes))
    assert [answer.status_code for answer in answers] == [200, 200], [answer.text for answer in answers]
    assert sorted(answer.json()["version"] for answer in answers) == [2, 3]
    recipe = gateway.names.catalog.resolve("chat").recipe
    assert (recipe.version, recipe.queue.max_waiting, recipe.batching.max_requests) == (3, 7, 3)


async def test_old_versions_go_unless_they_are_in_memory_or_pinned(
    client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    gateway.gateway.services.editor._most_versions = 2
    for number in range(2, 8):
        edited = await client.patch("/v1/models/chat", json={"changes": {"queue.max_waiting": number}})
        assert edited.status_code == 200, edited.text
        if number == 3:
            gateway.entries["chat@2"].state = ModelState.READY
        if number == 4:
            gateway.entries["chat@3"].pinned = True
            gateway.state.models.set_pin("chat@3", True)
    assert {id_ for id_ in gateway.entries if id_.startswith("chat")} == {
        "chat",
        "chat@1",
        "chat@2",
        "chat@3",
        "chat@6",
    }
    assert gateway.names.catalog.resolve("chat").recipe.version == 7
    assert (await client.get("/v1/models/chat@4")).status_code == 404
    gateway.entries["chat@3"].pinned = False
    await client.patch("/v1/models/chat", json={"changes": {"queue.max_waiting": 9}})
    assert "chat@3" not in gateway.entries
    assert "chat@3" not in gateway.state.models.pins()


async def test_an_alias_from_files_does_not_prevent_an_edit(
    client: httpx.AsyncClient, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although a router has this name, too, whichever of the two came first."""
    editor, entry = gateway.gateway.services.editor, gateway.entries["chat"]
    given = entry.recipe.model_copy(update={"aliases": ("auto",)})
    monkeypatch.setattr(editor, "_recipe", lambda _: given)
    monkeypatch.setattr(editor._names, "check_model", _is_taken)
    found = await client.patch("/v1/models/chat", json={"changes": {"queue.max_waiting": 7}})
    assert found.status_code == 200, found.text
    refused = await client.patch("/v1/models/chat", json={"changes": {"aliases": ["auto", "other"]}})
    assert refused.status_code == 409


@pytest.mark.parametrize("name", ["embed", "searched", "fine", "chat:fine", "chat"])
async def test_an_edit_takes_no_name_from_another(name: str, client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    """Of a model, an alias or an adapter, also on its base, because its users would get other weights."""
    gateway.state.adapters.register(AdapterKey("chat", "fine"), NewVersion(digest(1), 8, 100, "test"))
    gateway.state.models.set_alias("searched", "embed")
    gateway.names.refresh()
    refused = await client.patch("/v1/models/chat", json={"changes": {"aliases": ["mine", name]}})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "name_in_use")
    assert gateway.names.catalog.recipes["chat"].version == 1
    assert "mine" not in gateway.names.catalog.aliases


async def test_an_alias_that_another_edit_is_about_to_set_is_taken(
    client: httpx.AsyncClient, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchanger = gateway.gateway.services.editor._residency.exchanger
    about_to = gateway.recipes[1].model_copy(update={"aliases": ("soon",)})
    monkeypatch.setattr(exchanger, "waiting", lambda model: about_to if model == about_to.id else None)
    refused = await client.patch("/v1/models/chat", json={"changes": {"aliases": ["soon"]}})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "name_in_use")


async def test_an_alias_set_by_a_call_may_be_written_into_the_recipe(
    client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    gateway.state.models.set_alias("mine", "chat")
    gateway.names.refresh()
    assert (await client.patch("/v1/models/chat", json={"changes": {"aliases": ["mine"]}})).status_code == 200
    assert gateway.names.catalog.recipes["chat"].aliases == ("mine",)


async def test_an_edit_during_a_removal_does_not_restore_the_model(
    client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    """Earlier edits are removed with it, whichever of the two is first."""
    edited = await client.patch("/v1/models/chat", json={"changes": {"queue.max_waiting": 7}})
    assert edited.status_code == 200, edited.text
    removed, edited = await asyncio.gather(
        client.delete("/v1/models/chat"),
        client.patch("/v1/models/chat", json={"changes": {"batching.max_requests": 3}}),
    )
    assert (removed.status_code, edited.status_code) == (200, 200), (removed.text, edited.text)
    recipe = gateway.names.catalog.resolve("chat").recipe
    assert recipe.queue.max_waiting != 7


async def test_an_edit_applies_to_files_that_are_reloaded_during_it(
    client: httpx.AsyncClient, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = gateway.gateway.services.editor
    newer = gateway.recipes[0].model_copy(update={"version": 5})
    embed = gateway.recipes[1]

    async def read_again_with(*given: Recipe) -> None:
        monkeypatch.setattr(editor, "_check", _slowly)
        await editor._model_set.reload(given)

    monkeypatch.setattr(editor, "_check", lambda _: read_again_with(newer, embed))
    edited = await client.patch("/v1/models/chat", json={"changes": {"queue.max_waiting": 7}})
    assert (edited.status_code, edited.json()["version"]) == (200, 6)
    monkeypatch.setattr(editor, "_check", lambda _: read_again_with(newer))
    gone = await client.patch("/v1/models/embed", json={"changes": {"queue.max_waiting": 7}})
    assert gone.status_code == 404
    assert "embed" not in gateway.entries


async def test_a_purge_keeps_files_that_another_model_is_about_to_use(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor, source = gateway.gateway.services.editor, HubSource(hub="team/model", revision="next")
    await editor.edit("chat", {"queue.max_waiting": 7})
    soon = gateway.recipes[1].model_copy(update={"source": source})
    exchanger = gateway.gateway.services.editor._residency.exchanger
    monkeypatch.setattr(exchanger, "waiting", lambda model: soon if model == soon.id else None)
    kept: list[FilesInUse] = []
    monkeypatch.setattr(ModelFiles, "purge", lambda _self, _gone, stays: kept.append(stays) or 0)
    await editor.remove("chat", purge=True)
    assert [source in files.sources for files in kept] == [True]


async def test_measurements_of_a_removed_version_are_removed(gateway: FakeGateway) -> None:
    """Another model of this name may get the same version number with other weights."""
    editor, models = gateway.gateway.services.editor, gateway.state.models
    for most in (7, 8):
        await editor.edit("chat", {"queue.max_waiting": most})
    key = load_key(gateway.entries["chat@2"].recipe, CPU.label)
    models.record_load(key, 1000, {})
    models.set_pin("chat@2", True)
    models.set_alias("second", "chat@2")
    models.set_pin("chat", True)
    await editor.remove("chat@2")
    assert (models.measured(key), models.pins(), models.aliases()) == (None, {"chat": True}, {})


async def test_no_model_is_added_while_files_are_deleted(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may need them, because the files to keep were determined before."""
    editor = gateway.gateway.services.editor
    await editor.edit("chat", {"queue.max_waiting": 7})
    held: list[bool] = []
    monkeypatch.setattr(ModelFiles, "purge", lambda *_: held.append(editor._model_set.writing.locked()) or 0)
    await editor.remove("chat", purge=True)
    assert held == [True]


async def test_an_edit_to_a_missing_engine_is_refused(client: httpx.AsyncClient) -> None:
    """It used to be accepted, and the model could no longer be loaded."""
    refused = await client.patch("/v1/models/chat", json={"changes": {"engine.versions": "<0.1"}})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "engine_version"), refused.text


async def test_an_edit_of_other_keys_needs_no_engine(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    """Otherwise models for an older engine could not be unpinned or renamed."""
    entry = gateway.entries["chat"]
    engine = entry.recipe.engine.model_copy(update={"versions": "<0.1"})
    entry.recipe = entry.recipe.model_copy(update={"engine": engine})
    found = await client.patch("/v1/models/chat", json={"changes": {"queue.max_waiting": 7}})
    assert found.status_code == 200, found.text
    refused = await client.patch("/v1/models/chat", json={"changes": {"engine.versions": "<0.2"}})
    assert refused.status_code == 422


async def test_an_edit_that_could_not_be_read_back_is_refused(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    """It used to be a 200 although the file was ignored and the model unchanged."""
    for changes, words in (({"aliases": ["mine", "mine"]}, "used twice"), ({"engine.flags.seed": 10**200}, "a number")):
        refused = await client.patch("/v1/models/chat", json={"changes": changes})
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "bad_recipe"), refused.text
        assert words in refused.json()["error"]["message"]
    stored = gateway.gateway.services.editor._model_set.store.read()
    assert not stored.recipes
    assert not stored.faults


def _is_taken(name: str, *_: object) -> None:
    raise Conflict(f"There is a router '{name}'.")


async def _slowly(_: object) -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def _at_once(entry: ModelEntry, exchange: RecipeExchange) -> None:
    entry.recipe = exchange.recipe
    exchange.done()


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"path": "/srv/mine"}, "/srv/mine"),
        ({"hub": "org/name", "revision": "v1"}, "org/name@v1"),
        ({"hub": "org/name", "revision": "v1", "file": "Q4.gguf"}, "org/name/Q4.gguf@v1"),
        ({"package": "models.starter", "inside": "pack"}, "package:models.starter/pack"),
    ],
)
def test_a_models_source_is_a_text_or_an_object_like_an_adapters(form: dict[str, str], text: str) -> None:
    for source in (form, text):
        assert source_text(AddModelBody.model_validate({"source": source}).source) == text
