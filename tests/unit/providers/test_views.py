"""Providers in the list of models, in their own list and in metrics, and changes of their documents."""

import asyncio
import difflib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import traces
from tests.fakes.provider import HANG, Play, Seen
from tests.unit.providers.rig import KEY, provider, rigged


def script(seen: Seen) -> Play:
    if seen.path == "/v1/models":
        return Play([json.dumps({"data": [{"id": "big"}, {"id": "embed"}]}).encode()])
    return traces.error(500)


async def test_models_are_listed_under_their_owner(tmp_path: Path) -> None:
    async with rigged(tmp_path, script) as rig:
        listed = {model["id"]: model for model in (await rig.http.get("/v1/models")).json()["data"]}
        assert (listed["there/big"]["owned_by"], listed["there/embed"]["task"]) == ("there", "embed")
        assert "chat" in listed
        assert (await rig.http.get("/v1/models/there/big")).json() == listed["there/big"]


async def test_only_the_beginning_of_a_long_unknown_name_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparing 4 MB with each model's name delayed every stream by 0.7 s."""
    compare, lengths = difflib.get_close_matches, []

    def compared(word: str, *more: Any, **named: Any) -> list[str]:
        lengths.append(len(word))
        return compare(word, *more, **named)

    monkeypatch.setattr(difflib, "get_close_matches", compared)
    async with rigged(tmp_path, lambda seen: traces.error(500)) as rig:
        response = await rig.chat("there/bog" + "g" * 100_000)
    assert response.status_code == 404
    assert "There are: there/big, " in response.json()["error"]["message"]
    assert max(lengths) < 100


async def test_the_list_and_metrics_report_states_but_no_key(tmp_path: Path) -> None:
    async with rigged(tmp_path, script) as rig:
        for _ in range(5):
            await rig.chat()
        found = await rig.http.get("/v1/providers")
        (listed,) = found.json()["data"]
        states = {model["id"]: model["state"] for model in listed["models"]}
        assert (states["there/big"], states["there/embed"]) == ("open", "closed")
        assert listed["key_is_set"] is True
        metrics = (await rig.http.get("/metrics")).text
        assert 'roundhouse_provider_breaker{name="big",provider="there"} 1.0' in metrics
        reported = 'roundhouse_provider_attempts_total{name="big",outcome="provider_failed",provider="there"} 5.0'
        assert reported in metrics
        assert KEY not in found.text + metrics


async def test_the_test_of_a_provider_names_missing_models(tmp_path: Path) -> None:
    async with rigged(tmp_path, script) as rig:
        found = (await rig.http.post("/v1/providers/there/test")).json()
        assert (found["ok"], found["missing"]) == (False, ["rerank", "transcribe"])
        unknown = await rig.http.post("/v1/providers/nowhere/test")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "provider_not_found")


async def test_a_bare_list_of_models_is_read(tmp_path: Path) -> None:
    """Together sends one."""
    play = Play([b'[{"id": "big", "object": "model"}]'])
    async with rigged(tmp_path, lambda seen: play, models=[{"name": "big"}]) as rig:
        found = (await rig.http.post("/v1/providers/there/test")).json()
        assert (found["ok"], found["message"]) == (True, "It has 1 models.")


async def test_a_model_listed_under_its_dated_name_is_not_missing(tmp_path: Path) -> None:
    """Anthropic lists only such names, and only 20 by default."""
    queries = []

    def dated(seen: Seen) -> Play:
        queries.append(seen.query)
        return Play([json.dumps({"data": [{"id": "claude-haiku-4-5-20251001"}]}).encode()])

    models = [{"name": "claude-haiku-4-5"}, {"name": "claude-haiku-4"}]
    async with rigged(tmp_path, dated, "anthropic", models=models) as rig:
        found = (await rig.http.post("/v1/providers/there/test")).json()
        assert (found["missing"], queries) == (["claude-haiku-4"], ["limit=1000"])


async def test_only_a_changed_document_replaces_its_upstream(tmp_path: Path) -> None:
    async with rigged(tmp_path, script) as rig:
        for _ in range(5):
            await rig.chat()
        directory = rig.gateway.providers
        before = directory.upstreams["there"]
        directory.serve([before.provider])
        assert directory.upstreams["there"] is before
        directory.serve([provider(rig.fake, models=[{"name": "new"}])])
        assert (await rig.chat()).status_code == 404
        assert (await rig.chat("there/new")).json()["error"]["code"] == "provider_failed"


async def test_a_removed_provider_is_closed_with_the_server(tmp_path: Path) -> None:
    """Its connections and running requests continued until the process ended."""
    async with rigged(tmp_path, lambda seen: Play([HANG])) as rig:
        requested = asyncio.create_task(rig.chat())
        await rig.fake.arrived.wait()
        before = rig.gateway.providers.upstreams["there"]
        rig.gateway.providers.serve([])
        await asyncio.sleep(0)
        await rig.gateway.providers.close()
        assert (await before.connect())._session.closed
        assert (await requested).status_code == 502


async def test_a_replaced_provider_whose_first_request_has_yet_to_connect_is_closed_after_it(tmp_path: Path) -> None:
    async with rigged(tmp_path, script) as rig:
        index = rig.gateway.providers
        before = index.upstreams["there"]
        before.enter(first=True)
        index.serve([])
        connection = await before.connect()
        before.leave()
        for _ in range(20):
            await asyncio.sleep(0)
        assert connection._session.closed
