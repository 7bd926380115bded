"""Changes of a model's recipe that come together."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from registry.errors import Conflict
from registry.state.database import State
from runtime.residency.entry import ModelEntry
from runtime.residency.exchanger import RecipeExchange
from tests.unit.http.fakes import FakeGateway


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[FakeGateway]:
    with State(tmp_path / "data") as state:
        yield FakeGateway(tmp_path, state=state)


async def test_two_at_once_are_two_versions_and_neither_is_lost(
    client: httpx.AsyncClient, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = ({"queue.max_waiting": 7}, {"batching.max_requests": 3})
    editor = gateway.gateway.editor
    monkeypatch.setattr(editor, "_check", _slowly)
    monkeypatch.setattr(editor._residency, "exchange", _at_once, raising=False)
    monkeypatch.setattr(
        editor._residency, "add", lambda entry: gateway.entries.setdefault(entry.id, entry), raising=False
    )
    answers = await asyncio.gather(*(client.patch("/v1/models/chat", json={"changes": one}) for one in changes))
    assert [answer.status_code for answer in answers] == [200, 200], [answer.text for answer in answers]
    assert sorted(answer.json()["version"] for answer in answers) == [2, 3]
    recipe = gateway.names.catalog.resolve("chat").recipe
    assert (recipe.version, recipe.queue.max_waiting, recipe.batching.max_requests) == (3, 7, 3)


async def test_an_alias_that_files_gave_keeps_no_edit_away(
    client: httpx.AsyncClient, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a router has its name by now: the model was there when it came, or the other way about."""
    editor, entry = gateway.gateway.editor, gateway.entries["chat"]
    monkeypatch.setattr(editor, "_check", _slowly)
    monkeypatch.setattr(editor._residency, "exchange", _at_once, raising=False)
    monkeypatch.setattr(editor._residency, "add", lambda one: gateway.entries.setdefault(one.id, one), raising=False)
    given = entry.recipe.model_copy(update={"aliases": ("auto",)})
    monkeypatch.setattr(editor, "_recipe", lambda _: given)
    monkeypatch.setattr(editor._names, "check_no_router", _is_taken)
    found = await client.patch("/v1/models/chat", json={"changes": {"queue.max_waiting": 7}})
    assert found.status_code == 200, found.text
    refused = await client.patch("/v1/models/chat", json={"changes": {"aliases": ["auto", "other"]}})
    assert refused.status_code == 409


def _is_taken(name: str, *_: str) -> None:
    raise Conflict(f"There is a router '{name}'.")


async def _slowly(_: object) -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def _at_once(entry: ModelEntry, exchange: RecipeExchange) -> None:
    entry.recipe = exchange.recipe
    exchange.done()
