"""Pages for browsers, the probes of other servers, redirects, and OPTIONS, without an engine."""

import re

import anthropic
import httpx
import pytest
from fastapi import FastAPI

from runtime.http.openapi import document
from tests.unit.http.fakes import FakeGateway, Wire

FOREIGN_ADDRESS = re.compile(r"""(?:src|href|url)\s*[=(:]\s*["']?(?:https?:)?//(?!test)""")


async def test_the_first_page_redirects_browsers_to_the_console(client: httpx.AsyncClient) -> None:
    page = await client.get("/", headers={"Accept": "text/html,*/*"})
    assert (page.status_code, page.headers["location"]) == (307, "console/"), "relative, to work with any prefix"
    below = await client.get("/console")
    assert (below.status_code, below.headers["location"]) == (307, "console/")


async def test_the_first_page_tells_programs_the_servers_name_but_no_models(client: httpx.AsyncClient) -> None:
    reported = (await client.get("/")).json()
    assert reported["name"] == "Roundhouse"
    assert (reported["docs"], reported["console"]) == ("/docs", "/console")
    assert "chat" not in str(reported)


@pytest.mark.parametrize("accept", ["*/*", "", "application/json, text/plain, */*"])
async def test_clients_of_ollama_find_its_text(client: httpx.AsyncClient, accept: str) -> None:
    there = {"Host": "127.0.0.1:11434", "Accept": accept}
    page = await client.get("/", headers=there)
    assert (page.status_code, page.text) == (200, "Ollama is running")
    assert page.headers["content-type"].startswith("text/plain")
    assert (await client.head("/", headers=there)).status_code == 200
    assert "Ollama is running" in (await client.get("/", headers={"Accept": accept})).text, "at any port"


async def test_browsers_and_readers_of_json_get_theirs_at_ollamas_port(client: httpx.AsyncClient) -> None:
    host = {"Host": "localhost:11434"}
    reported = await client.get("/", headers={**host, "Accept": "application/json"})
    assert reported.json()["name"] == "Roundhouse"
    page = await client.get("/", headers={**host, "Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (page.status_code, page.headers["location"]) == (307, "console/")


async def test_the_reference_loads_nothing_from_other_hosts(
    app: FastAPI, client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    document(app, gateway.recipes)
    page = await client.get("/docs")
    assets = set(re.findall(r"/docs/assets/[\w.-]+", page.text))
    assert len(assets) == 3
    assert page.headers["x-frame-options"] == "DENY", "its buttons send requests"
    assert page.headers["content-security-policy"] == "frame-ancestors 'none'"
    assert not FOREIGN_ADDRESS.search(page.text)
    assert not re.findall(r"""(?:src|href|url)\s*[=:]\s*["']/""", page.text), "relative, to work with any prefix"
    for asset in assets:
        assert (await client.get(asset)).status_code == 200
    for path in ("/redoc", "/docs/oauth2-redirect", "/docs/assets/nothing.js", "/docs/assets/%2e%2e/core.py"):
        assert (await client.get(path)).status_code == 404


@pytest.mark.parametrize(("method", "path"), [("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")])
async def test_probes_report_whether_the_server_is_ready(
    client: httpx.AsyncClient, gateway: FakeGateway, method: str, path: str
) -> None:
    gateway.gateway.phase = "starting"
    assert (await client.request(method, path)).status_code == 503
    gateway.gateway.phase = "ready"
    assert (await client.request(method, path)).status_code == 200


async def test_the_list_of_models_may_end_with_a_slash(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/models/")).json() == (await client.get("/v1/models")).json()


async def test_models_have_the_fields_of_anthropics_for_its_clients(client: httpx.AsyncClient) -> None:
    plain = (await client.get("/v1/models")).json()
    theirs = {"anthropic-version": "2023-06-01"}
    listed = (await client.get("/v1/models?limit=1000", headers=theirs)).json()
    pages = {"has_more": False, "first_id": plain["data"][0]["id"], "last_id": plain["data"][-1]["id"]}
    assert listed == plain | {"data": listed["data"]} | pages
    for card, ours in zip(listed["data"], plain["data"], strict=True):
        model = anthropic.types.ModelInfo.construct(**card)
        assert (model.type, model.display_name) == ("model", ours["id"])
        assert model.created_at.timestamp() == ours["created"]
        assert card == ours | {name: card[name] for name in ("type", "display_name", "created_at")}
    assert (await client.get(f"/v1/models/{pages['last_id']}", headers=theirs)).json() == listed["data"][-1]


async def test_options_lists_the_methods(client: httpx.AsyncClient) -> None:
    answer = await client.options("/v1/embeddings")
    assert (answer.status_code, answer.headers["allow"], answer.content) == (204, "OPTIONS, POST", b"")
    assert (await client.options("/nowhere")).status_code == 404
    refused = await client.get("/v1/embeddings")
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        405, "GET does not work on '/v1/embeddings': send POST.",
    )  # fmt: skip


async def test_a_foreign_path_below_one_of_ours_is_answered_with_advice(client: httpx.AsyncClient) -> None:
    refused = await client.post("/v1/responses/compact", json={"model": "chat", "input": "hi"})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (404, "unknown_path")
    assert "Have a model summarise" in error["message"]


async def test_a_websocket_is_refused_with_404(app: FastAPI) -> None:
    """uvicorn runs with `ws=none`, so an upgrade arrives as a GET."""
    wire = Wire(app, "/v1/realtime", [b""], {"Connection": "Upgrade", "Upgrade": "websocket"})
    wire.scope["method"] = "GET"
    await wire.run()
    assert wire.sent[0]["status"] == 404
    assert b"unknown_path" in wire.sent[1]["body"]


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/v1/chat/completions/", "../completions"),
        ("/v1/usage/?team_id=a%26b", "../usage?team_id=a%26b"),
        ("/docs/", "../docs"),
    ],
)
async def test_a_slash_too_many_is_redirected_by_a_relative_address(
    path: str, location: str, client: httpx.AsyncClient
) -> None:
    """Behind a proxy, the client's scheme, host and prefix differ from ours."""
    answer = await client.get(path)
    assert (answer.status_code, answer.headers["location"]) == (307, location)
    assert "leave out the slash at the end" in answer.json()["error"]["message"], "for clients that do not follow it"
    requested = await client.post("/v1/embeddings/", json={"model": "embed", "input": "x"}, follow_redirects=True)
    assert requested.url.path == "/v1/embeddings"
    for unknown in ("/nothing/", "/nothing"):
        assert (await client.get(unknown)).status_code == 404, unknown
