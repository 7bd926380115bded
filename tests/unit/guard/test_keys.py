"""Keys over a real socket: the scope of each route, ways to send a key, and refusals."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import Response

from registry.errors import NotFound, Unavailable
from runtime.http.app import finish
from runtime.http.guard.access import FOLDERS, PAGES, required_scopes
from runtime.http.guard.keys import presented_keys
from runtime.http.route import RouteGroup
from runtime.http.routes import routes
from tenants.caller import SCOPES, Caller, Scope
from tenants.keys import secret
from tenants.keys.keyring import KeyEntry, Keyring
from tests.unit.guard.serving import HOST, JSON, Served, served
from tests.unit.http.fakes import FakeGateway, application

PEPPER = b"p" * 64
INFER, ADAPTERS, MODELS = ({scope} for scope in (Scope.INFER, Scope.ADAPTERS, Scope.MODELS))
ANY = set(SCOPES)

ROUTES: dict[str, set[Scope] | None] = {
    "POST /": INFER,
    "POST /detokenize": INFER,
    "POST /embed": INFER,
    "POST /generate": INFER,
    "POST /generate_stream": INFER,
    "POST /rerank": INFER,
    "POST /score": INFER,
    "POST /tokenize": INFER,
    "POST /v1/audio/transcriptions": INFER,
    "POST /v1/audio/translations": INFER,
    "POST /v1/chat/completions": INFER,
    "POST /v1/completions": INFER,
    "POST /v1/embeddings": INFER,
    "POST /v1/messages": INFER,
    "POST /v1/messages/count_tokens": INFER,
    "POST /v1/ranking": INFER,
    "POST /v1/rerank": INFER,
    "POST /v1/responses": INFER,
    "POST /v1/responses/input_tokens": INFER,
    "POST /v1/files": INFER,
    "GET /v1/files": INFER,
    "GET /v1/files/{file_id}": INFER,
    "GET /v1/files/{file_id}/content": INFER,
    "DELETE /v1/files/{file_id}": INFER,
    "POST /v1/batches": INFER,
    "GET /v1/batches": INFER,
    "GET /v1/batches/{batch_id}": INFER,
    "POST /v1/batches/{batch_id}/cancel": INFER,
    "POST /v1/batch": INFER,
    "GET /v1/batches/{batch_id}/deliveries": INFER,
    "POST /v1/batches/{batch_id}/redeliver": INFER,
    "GET /v1/webhook_event_types": INFER,
    "GET /v1/webhook_endpoints": INFER,
    "POST /v1/webhook_endpoints": INFER,
    "GET /v1/webhook_endpoints/{webhook_endpoint_id}": INFER,
    "POST /v1/webhook_endpoints/{webhook_endpoint_id}": INFER,
    "DELETE /v1/webhook_endpoints/{webhook_endpoint_id}": INFER,
    "POST /v1/webhook_endpoints/{webhook_endpoint_id}/rotate_secret": {Scope.ADMIN},
    "POST /v1/webhook_endpoints/{webhook_endpoint_id}/test": INFER,
    "GET /v1/callback_secret": {Scope.ADMIN},
    "POST /v1/callback_secret/rotate": {Scope.ADMIN},
    "POST /v1/messages/batches": INFER,
    "GET /v1/messages/batches": INFER,
    "GET /v1/messages/batches/{message_batch_id}": INFER,
    "DELETE /v1/messages/batches/{message_batch_id}": INFER,
    "POST /v1/messages/batches/{message_batch_id}/cancel": INFER,
    "GET /v1/messages/batches/{message_batch_id}/results": INFER,
    "GET /v1/responses/{response_id}": INFER,
    "DELETE /v1/responses/{response_id}": INFER,
    "GET /v1/responses/{response_id}/input_items": INFER,
    "POST /v1/responses/{response_id}/cancel": INFER,
    "POST /v1/score": INFER,
    "POST /v2/rerank": INFER,
    "POST /v2/chat": INFER,
    "POST /v1/embed": INFER,
    "POST /v2/embed": INFER,
    "POST /api/chat": INFER,
    "POST /api/generate": INFER,
    "POST /api/embed": INFER,
    "POST /api/embeddings": INFER,
    "GET /api/tags": ANY,
    "GET /api/ps": ANY,
    "POST /api/show": ANY,
    "POST /api/pull": MODELS,
    "DELETE /api/delete": {Scope.ADAPTERS, Scope.MODELS},
    "GET /api/version": None,
    "GET /health": None,
    "GET /ping": None,
    "POST /ping": None,
    "GET /version": None,
    "GET /health/live": None,
    "GET /health/ready": None,
    "GET /metrics": MODELS,
    "GET /v1/status": MODELS,
    "GET /v1/signal": MODELS,
    "GET /v1/requests/{request_id:path}": ANY,
    "GET /v1/fleet": MODELS,
    "GET /v1/fleet/plan": MODELS,
    "GET /v1/fleet/explain/{model:path}": MODELS,
    "GET /v1/fleet/signal": MODELS,
    "PUT /v1/fleet/placements/{model:path}": {Scope.ADMIN},
    "DELETE /v1/fleet/placements/{model:path}": {Scope.ADMIN},
    "POST /v1/fleet/nodes/{node}/drain": {Scope.ADMIN},
    "POST /v1/fleet/nodes/{node}/undrain": {Scope.ADMIN},
    "GET /v1/providers": MODELS,
    "GET /v1/providers/{provider}": {Scope.ADMIN},
    "PUT /v1/providers/{provider}": {Scope.ADMIN},
    "DELETE /v1/providers/{provider}": {Scope.ADMIN},
    "POST /v1/providers/{provider}/test": MODELS,
    "GET /v1/organization/usage/completions": {Scope.ADMIN},
    "GET /v1/organization/usage/embeddings": {Scope.ADMIN},
    "GET /v1/organization/usage/audio_transcriptions": {Scope.ADMIN},
    "GET /v1/organization/costs": {Scope.ADMIN},
    "GET /v1/organization/projects": {Scope.ADMIN},
    "POST /v1/organization/projects": {Scope.ADMIN},
    "GET /v1/organization/projects/{project}": {Scope.ADMIN},
    "POST /v1/organization/projects/{project}": {Scope.ADMIN},
    "POST /v1/organization/projects/{project}/archive": {Scope.ADMIN},
    "GET /v1/organization/projects/{project}/api_keys": {Scope.ADMIN},
    "GET /v1/organization/projects/{project}/api_keys/{key}": {Scope.ADMIN},
    "POST /v1/organization/projects/{project}/api_keys/{key}": {Scope.ADMIN},
    "DELETE /v1/organization/projects/{project}/api_keys/{key}": {Scope.ADMIN},
    "GET /v1/organization/projects/{project}/service_accounts": {Scope.ADMIN},
    "POST /v1/organization/projects/{project}/service_accounts": {Scope.ADMIN},
    "GET /v1/organization/projects/{project}/service_accounts/{account}": {Scope.ADMIN},
    "POST /v1/organization/projects/{project}/service_accounts/{account}": {Scope.ADMIN},
    "DELETE /v1/organization/projects/{project}/service_accounts/{account}": {Scope.ADMIN},
    "POST /v1/organization/projects/{project}/service_accounts/{account}/api_keys": {Scope.ADMIN},
    "GET /v1/organization/admin_api_keys": {Scope.ADMIN},
    "POST /v1/organization/admin_api_keys": {Scope.ADMIN},
    "GET /v1/organization/admin_api_keys/{key}": {Scope.ADMIN},
    "DELETE /v1/organization/admin_api_keys/{key}": {Scope.ADMIN},
    "GET /v1/organization/projects/{project}/spend_limit": {Scope.ADMIN},
    "POST /v1/organization/projects/{project}/spend_limit": {Scope.ADMIN},
    "DELETE /v1/organization/projects/{project}/spend_limit": {Scope.ADMIN},
    "GET /v1/usage": {Scope.USAGE, Scope.ADMIN},
    "GET /v1/usage/daily": {Scope.USAGE, Scope.ADMIN},
    "GET /v1/usage/comparison": {Scope.USAGE, Scope.ADMIN},
    "POST /v1/feedback": INFER,
    "GET /v1/models": ANY,
    "GET /v1/models/{model:path}": ANY,
    "POST /v1/models": MODELS,
    "POST /v1/recipes/reload": MODELS,
    "PATCH /v1/models/{model:path}": MODELS,
    "DELETE /v1/models/{model:path}": MODELS,
    "GET /v1/models/{model:path}/recipe": MODELS,
    "DELETE /v1/models/{model:path}/download": MODELS,
    "POST /v1/models/{model:path}/load": MODELS,
    "POST /v1/models/{model:path}/unload": MODELS,
    "POST /v1/models/{model:path}/plan": MODELS,
    "PUT /v1/models/{model:path}/pin": MODELS,
    "DELETE /v1/models/{model:path}/pin": MODELS,
    "DELETE /v1/models/{model:path}/estimate": MODELS,
    "PUT /v1/models/{model:path}/aliases/{alias:path}": MODELS,
    "DELETE /v1/models/{model:path}/aliases/{alias:path}": MODELS,
    "GET /v1/adapters": ADAPTERS,
    "POST /v1/adapters": ADAPTERS,
    "POST /v1/adapters/combine": ADAPTERS,
    "POST /v1/adapters/{name:path}/merge": ADAPTERS,
    "GET /v1/merged": ADAPTERS,
    "DELETE /v1/merged/{name}": ADAPTERS,
    "GET /v1/adapters/{name:path}": ADAPTERS,
    "DELETE /v1/adapters/{name:path}": ADAPTERS,
    "PUT /v1/adapters/{name:path}/aliases/{alias}": ADAPTERS,
    "DELETE /v1/adapters/{name:path}/aliases/{alias}": ADAPTERS,
    "POST /v1/adapters/{name:path}/rollback": ADAPTERS,
    "GET /v1/routers": MODELS,
    "POST /v1/routers": MODELS,
    "GET /v1/routers/{name}": MODELS,
    "DELETE /v1/routers/{name}": MODELS,
    "PUT /v1/routers/{name}/aliases/{alias}": MODELS,
    "DELETE /v1/routers/{name}/aliases/{alias}": MODELS,
    "POST /v1/routers/{name}/rollback": MODELS,
    "GET /v1/routers/{name}/fitted/{kind}": MODELS,
    "PUT /v1/routers/{name}/fitted/{kind}": MODELS,
    "GET /v1/routers/{name}/report": MODELS,
    "POST /v1/route": INFER,
    "PUT /v1/adapters/{name:path}/pin": ADAPTERS,
    "DELETE /v1/adapters/{name:path}/pin": ADAPTERS,
    "PUT /v1/adapters/{name:path}/shared": ADAPTERS,
    "DELETE /v1/adapters/{name:path}/shared": ADAPTERS,
    "POST /v1/load_lora_adapter": ADAPTERS,
    "POST /v1/unload_lora_adapter": ADAPTERS,
}
"""Scopes of which a key needs one, by route. None if the route needs no key."""
PROBES = [route.removeprefix("GET ") for route, scopes in ROUTES.items() if scopes is None and route.startswith("GET ")]

KEYS = {scope: secret.make() for scope in Scope}
LIMITED, EXPIRED, REVOKED = (secret.make() for _ in range(3))
_FORGED = LIMITED.text[:12] + EXPIRED.text[12:55]
WRONG = _FORGED + secret._checksum(_FORGED)
"""A well-formed key with the id of one key and the secret of another."""


def keyring(*, is_open: bool = False) -> Keyring:
    known = {
        key.id: KeyEntry(secret.digest(PEPPER, key.text), Caller("t", key.id, frozenset((scope,))), None, False)
        for scope, key in KEYS.items()
    }
    limited = Caller("t", LIMITED.id, frozenset(INFER), ("embed", "gone-*"))
    known[LIMITED.id] = KeyEntry(secret.digest(PEPPER, LIMITED.text), limited, None, False)
    known[EXPIRED.id] = KeyEntry(secret.digest(PEPPER, EXPIRED.text), limited, 1.0, False)
    known[REVOKED.id] = KeyEntry(secret.digest(PEPPER, REVOKED.text), limited, None, True)
    return Keyring(known, PEPPER, is_open=is_open)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path, keyring=keyring()) as found:
        yield found


def bearer(key: secret.NewKey) -> bytes:
    return b"Authorization: Bearer " + key.text.encode() + b"\r\n"


async def ask(server: Served, line: str, headers: bytes = b"", body: dict[str, Any] | None = None) -> Any:
    data = b"" if body is None else json.dumps(body).encode()
    length = b"Content-Length: %d\r\n" % len(data) if data else b""
    return await server.ask(f"{line} HTTP/1.1\r\n".encode() + HOST + JSON * bool(data) + length + headers, data)


def test_every_route_has_a_row_and_every_row_a_route(tmp_path: Path) -> None:
    served = {f"{method} {path}" for path, _, methods in routes() for method in methods}
    assert served == set(ROUTES)
    app = application(FakeGateway(tmp_path))
    pages = {str(getattr(route, "path", "")) for route in app.routes} - {path for path, _, _ in routes()}
    assert pages <= PAGES | {folder.rstrip("/") for folder in FOLDERS}


def test_a_route_without_a_scope_does_not_start(tmp_path: Path) -> None:
    async def handler() -> Response:
        """A handler."""
        raise NotImplementedError

    with pytest.raises(TypeError, match="scope"):
        RouteGroup("Models")("GET", "/v1/new", answer={})(handler)  # type: ignore[call-arg]
    app = FastAPI()
    app.add_api_route("/v1/new", handler, methods=["POST"])
    with pytest.raises(RuntimeError, match="POST /v1/new has no scope"):
        finish(app, ())
    app = FastAPI()
    app.mount("/files", FastAPI())
    with pytest.raises(RuntimeError, match="/files has no scope"):
        finish(app, ())


@pytest.mark.parametrize("path", ["/v1/usage/", "/v1/models/x/pin/", "/console", "/docs", "/health/live/"])
def test_a_slash_at_the_end_needs_the_same_scope(path: str) -> None:
    assert required_scopes("GET", path) == required_scopes("GET", path.rstrip("/"))


@pytest.mark.parametrize("path", ["/v1/usage", "/v1/models/org/load", "/v1/models/org/name/pin", "/health/live"])
def test_a_head_request_needs_the_scope_of_a_get(path: str) -> None:
    assert required_scopes("HEAD", path) == required_scopes("GET", path)


def test_a_method_that_a_path_lacks_needs_one_of_its_scopes() -> None:
    assert required_scopes("PATCH", "/v1/usage") == {Scope.USAGE, Scope.ADMIN}
    assert required_scopes("DELETE", "/v1/chat/completions") == {Scope.INFER}
    assert required_scopes("PUT", "/v1/models/x/load") == MODELS
    assert required_scopes("DELETE", "/health") is None
    assert required_scopes("GET", "/") is None


@pytest.mark.parametrize("route", ROUTES)
def test_the_rule_of_a_route(route: str) -> None:
    method, path = route.split()
    for name in ("x", "a/b", "metrics"):
        real = path.replace("{model:path}", name).replace("{alias:path}", name)
        assert required_scopes(method, real.replace("{name}", "x").replace("{alias}", "y")) == ROUTES[route]


@pytest.mark.parametrize("path", ["/v1", "/v1/new", "/v1/modelsx", "/v1/chat", "/healthx", "//v1/models", "/metricsx"])
def test_a_path_without_a_rule_is_a_404(path: str) -> None:
    with pytest.raises(NotFound):
        required_scopes("GET", path)


@pytest.mark.parametrize("route", [route for route, scopes in ROUTES.items() if scopes is not None])
async def test_a_route_needs_a_key_with_its_scope(server: Served, route: str) -> None:
    line = route.replace("{model:path}", "x").replace("{alias:path}", "y").replace("{name}", "x")
    line = line.replace("{alias}", "y")
    assert (await ask(server, line)).status == 401
    for scope, key in KEYS.items():
        found = await ask(server, line, bearer(key))
        assert (found.status == 403) == (scope not in (ROUTES[route] or ())), (route, scope, found)
        assert found.status != 401


@pytest.mark.parametrize("path", [*sorted(PAGES - {"/console"}), *PROBES])
async def test_probes_and_documentation_need_no_key(server: Served, path: str) -> None:
    assert (await ask(server, f"GET {path}")).status in (200, 503)


async def test_without_a_key_nothing_about_the_server_is_revealed(server: Served) -> None:
    server.gateway.gateway.phase = "ready"
    server.gateway.gateway.services.adapters._faults["chat"] = {"secret-adapter": "was refused"}
    assert b"secret-adapter" not in (await ask(server, "GET /health/ready")).body
    assert b"secret-adapter" not in (await ask(server, "GET /health/ready", bearer(EXPIRED))).body
    assert b"secret-adapter" in (await ask(server, "GET /health/ready", bearer(KEYS[Scope.MODELS]))).body
    assert b"starter" not in (await ask(server, "GET /")).body
    assert b"chat" not in (await ask(server, "GET /console/now")).body


async def test_ollamas_lists_have_what_a_key_may_use(server: Served) -> None:
    for path in ("/api/tags", "/api/ps"):
        found = json.loads((await ask(server, f"GET {path}", bearer(LIMITED))).body)
        assert {model["name"].partition(":")[0] for model in found["models"]} <= {"embed"}, path
    assert (await ask(server, "POST /api/show", bearer(LIMITED), {"model": "chat"})).status == 403


@pytest.mark.parametrize("nothing", [{}, {"messages": []}, {"prompt": ""}])
async def test_ollamas_unloading_needs_the_scope_of_models(server: Served, nothing: dict[str, Any]) -> None:
    """It used to be taken for a request to load the model, which may evict another one."""
    path = "/api/chat" if "messages" in nothing else "/api/generate"
    requested = {"model": "chat", "keep_alive": 0, **nothing}
    found = await ask(server, f"POST {path}", bearer(KEYS[Scope.INFER]), requested)
    assert found.status == 403
    assert "'models'" in json.loads(found.body)["error"]
    (record,) = server.gateway.records.all
    assert (record.code, server.gateway.released) == ("insufficient_scope", []), "no turn was requested"
    stays = await ask(server, f"POST {path}", bearer(KEYS[Scope.INFER]), {**requested, "keep_alive": "5m"})
    assert stays.status == 200


async def test_ollamas_removal_needs_the_scope_of_what_is_removed(server: Served) -> None:
    found = await ask(server, "DELETE /api/delete", bearer(KEYS[Scope.ADAPTERS]), {"model": "embed"})
    assert found.status == 403
    assert "'models'" in found.body.decode()


@pytest.mark.parametrize(
    "header",
    [
        "Authorization: Bearer {}",
        "authorization: bearer   {}",
        "Authorization: {}",
        "x-api-key: {}",
        "X-Api-Key:{} ",
        "api-key: {}",
    ],
)
async def test_a_key_is_accepted_in_each_header(server: Served, header: str) -> None:
    key = KEYS[Scope.INFER].text
    found = await ask(server, "GET /v1/models", f"{header.format(key)}\r\n".encode())
    assert found.status == 200, found
    found = await ask(server, "GET /v1/models", f"{header.format(key[:-1])}\r\n".encode())
    assert found.status == 401
    assert key[12:40] not in found.body.decode()


def test_other_schemes_than_bearer_are_no_key() -> None:
    assert presented_keys([(b"authorization", b"Basic dTpw"), (b"cookie", b"rh-x"), (b"x-api-key", b"a")]) == ["a"]
    assert presented_keys([(b"authorization", b"Negotiate"), (b"authorization", b"token rh-a")]) == []


def test_an_empty_header_is_no_key() -> None:
    """Anthropic's SDK sends `X-Api-Key` beside a token if the key is an empty string."""
    assert presented_keys([(b"x-api-key", b" "), (b"authorization", b"Bearer rh-a"), (b"api-key", b"")]) == ["rh-a"]
    assert presented_keys([(b"authorization", b"Bearer "), (b"authorization", b"")]) == []


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("/v1/chat/completions", lambda b, code: b["error"]["code"] == code and b["error"]["param"] is None),
        ("/v1/messages", lambda b, _: b["type"] == "error" and b["error"]["type"] == "authentication_error"),
        ("/v2/rerank", lambda b, _: list(b) == ["message"]),
        ("/v1/rerank", lambda b, code: b["error"]["code"] == code and isinstance(b["detail"], str)),
        ("/embed", lambda b, _: isinstance(b["error"], str) and "error_type" in b),
        ("/generate", lambda b, _: isinstance(b["error"], str) and "error_type" in b),
        ("/api/chat", lambda b, _: list(b) == ["error"] and isinstance(b["error"], str)),
        ("/v1/audio/transcriptions", lambda b, _: b["error"]["type"] == "invalid_request_error"),
    ],
)
@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("rh-wrong", "invalid_api_key"),
        (EXPIRED.text, "api_key_expired"),
        (REVOKED.text, "api_key_revoked"),
        (WRONG, "invalid_api_key"),
        (LIMITED.text[:-2], "invalid_api_key"),
        ("x" * 9000, "invalid_api_key"),
    ],
    ids=["made-up", "expired", "revoked", "another-secret", "truncated", "oversized"],
)
async def test_a_401_is_in_the_dialect_of_its_path(server: Served, path: str, inside: Any, key: str, code: str) -> None:
    found = await ask(server, f"POST {path}", f"x-api-key: {key}\r\n".encode(), {"model": "embed"})
    assert found.status == 401
    assert found.headers["www-authenticate"] == "Bearer"
    body = json.loads(found.body)
    assert inside(body, code), body
    assert key not in found.body.decode()


async def test_a_limited_key_sees_and_uses_what_its_patterns_allow(server: Served) -> None:
    listed = await ask(server, "GET /v1/models", bearer(LIMITED))
    assert [model["id"] for model in json.loads(listed.body)["data"]] == ["embed"]
    assert (await ask(server, "GET /v1/models/embed", bearer(LIMITED))).status == 200
    refused = await ask(server, "GET /v1/models/rerank", bearer(LIMITED))
    assert (refused.status, refused.error()["code"]) == (403, "model_not_allowed")
    body = {"model": "rerank", "query": "a", "documents": ["b"]}
    assert (await ask(server, "POST /v1/rerank", bearer(LIMITED), body)).status == 403
    unknown = await ask(server, "POST /v1/embeddings", bearer(LIMITED), {"model": "rerink", "input": "a"})
    assert unknown.status == 404
    assert "embed" in unknown.error()["message"]
    assert "rerank" not in unknown.error()["message"]


async def test_the_caller_is_in_the_record(server: Served) -> None:
    key = KEYS[Scope.INFER]
    await ask(server, "POST /v1/embeddings", bearer(key), {"model": "nobody", "input": "a"})
    (record,) = server.gateway.records.all
    assert (record.context.caller.team, record.context.caller.key) == ("t", key.id)


async def test_an_unknown_path_needs_a_key_too(server: Served) -> None:
    assert (await ask(server, "GET /v1/nothing")).status == 401
    assert (await ask(server, "GET /v1/nothing", bearer(KEYS[Scope.ADMIN]))).status == 404


async def test_a_server_that_cannot_read_its_keys_refuses_requests(tmp_path: Path) -> None:
    class Unreadable:
        def identify(self, presented_keys: Sequence[str]) -> Caller:
            raise Unavailable("They cannot be read.", code="keys_unreadable", retry_after=5)

    async with served(tmp_path, keyring=Unreadable()) as server:
        for line in ("GET /v1/models", "POST /v1/adapters", "GET /v1/nothing", "GET /metrics"):
            refused = await ask(server, line, bearer(KEYS[Scope.INFER]))
            assert (refused.status, refused.error()["code"]) == (503, "keys_unreadable")
            assert refused.headers["retry-after"] == "5"
        assert (await ask(server, "GET /health/live")).status == 200
        assert (await ask(server, "GET /health/ready")).status == 503
        assert (await ask(server, "GET /console/now")).status == 303, "to the sign-in page"


async def test_an_open_server_with_keys_needs_one_only_beyond_inference(tmp_path: Path) -> None:
    async with served(tmp_path, keyring=keyring(is_open=True)) as server:
        assert (await ask(server, "GET /v1/models")).status == 200
        body = {"model": "nobody", "input": "a"}
        for none in (b"", b"Authorization: Bearer none\r\n"):
            assert (await ask(server, "POST /v1/embeddings", none, body)).error()["code"] == "model_not_found"
            for line in ("GET /metrics", "POST /v1/adapters", "GET /v1/organization/admin_api_keys"):
                refused = await ask(server, line, none)
                assert (refused.status, refused.error()["code"]) == (403, "insufficient_scope")
                assert "roundhouse keys create --scopes" in refused.error()["message"]
        assert (await ask(server, "GET /metrics", bearer(KEYS[Scope.MODELS]))).status == 200
        assert (await ask(server, "GET /metrics", bearer(KEYS[Scope.INFER]))).status == 403, (
            "a key keeps its own rights"
        )
        assert (await ask(server, "GET /metrics", bearer(EXPIRED))).status == 401
        assert (await ask(server, "GET /v1/nothing")).status == 404


async def test_allowed_pages_can_read_why_they_are_refused(tmp_path: Path) -> None:
    origin = b"Origin: https://chat.example\r\n"
    async with served(tmp_path, keyring=keyring(), cors_origins=("https://chat.example",)) as server:
        requested = b"Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n"
        before = await ask(server, "OPTIONS /v1/embeddings", origin + requested)
        assert before.status == 200, "a browser sends a preflight first, without the key"
        assert "authorization" in before.headers["access-control-allow-headers"]
        found = await ask(server, "POST /v1/embeddings", origin, {"model": "embed", "input": "a"})
        assert found.status == 401
        assert found.headers["access-control-allow-origin"] == "https://chat.example"
