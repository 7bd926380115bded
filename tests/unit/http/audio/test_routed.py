"""A router for recordings: traffic and explain."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.state.database import State
from tests.unit.http.audio.script import PATH, SCRIPT, TEXT, post
from tests.unit.http.fakes import FakeGateway, application, recipe

ROUTER: dict[str, Any] = {
    "id": "ears",
    "task": "transcribe",
    "targets": [{"name": "small"}, {"name": "german"}, {"name": "english"}],
    "default": "small",
    "rules": [
        {"name": "translated", "when": {"endpoint": ["/v1/audio/translations"]}, "to": ["english"]},
        {"name": "german", "when": {"language": ["de"]}, "to": ["german"]},
    ],
}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    with State(tmp_path / "state") as state:
        recipes = [recipe(name, "transcribe") for name in ("small", "german", "english")]
        gateway = FakeGateway(tmp_path, recipes, state=state)
        for link in gateway.links.values():
            link.script = lambda _: SCRIPT
        transport = httpx.ASGITransport(app=application(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.post("/v1/routers", json=ROUTER)).status_code == 201
            yield client


@pytest.mark.parametrize(
    ("path", "fields", "target", "reason"),
    [
        (PATH, {}, "small", "default"),
        (PATH, {"language": "German", "temperature": "0.2"}, "german", "rule:german"),
        ("/v1/audio/translations", {"language": "de"}, "english", "rule:translated"),
    ],
)
async def test_a_recording_is_routed_as_explain_says(
    client: httpx.AsyncClient, path: str, fields: dict[str, str], target: str, reason: str
) -> None:
    reported = await client.post("/v1/route", json={"model": "ears", "endpoint": path, **fields})
    assert (reported.status_code, reported.json()["target"], reported.json()["reason"]) == (200, target, reason), (
        reported.text
    )
    found = await post(client, path, model="ears", **fields)
    assert found.headers["x-roundhouse-route"].split(" ")[:3] == ["ears@v1", target, reason]
    assert found.headers["x-roundhouse-model"] == f"{target}@rev"
    assert (found.json()["model_used"], found.json()["text"]) == (target, TEXT)


async def test_an_invalid_name_is_refused_before_the_recording_has_arrived(client: httpx.AsyncClient) -> None:
    for name, code in (("nobody", "model_not_found"), ("ears@v9", "router_version_not_found")):
        refused = await post(client, model=name)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, code)


async def test_explain_accepts_a_forms_fields_as_json(client: httpx.AsyncClient) -> None:
    body = {"model": "ears", "endpoint": PATH, "language": "de", "temperature": 0.5, "stream": True, "file": "a.wav"}
    body["timestamp_granularities"] = []
    assert (await client.post("/v1/route", json=body)).json()["target"] == "german"
    wrong = await client.post("/v1/route", json={**body, "lang": "de"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "lang")
