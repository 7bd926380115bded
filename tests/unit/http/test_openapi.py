"""The OpenAPI document is valid and complete, and real answers fit it."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
import pytest_asyncio
from fastapi import FastAPI
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from models.messages import EmbedResult, RerankResult, ResponseEnd, Segment, TranscriptInfo, Usage, Word
from registry.errors import BadRequest, LimitExceeded, QueueFull, Refusal, Unfit, Unreachable
from registry.recipes.loading import Documents
from runtime.config.device import Device
from runtime.config.settings import Settings
from runtime.gateway.views.values import adapter_card, adapter_view, plan_view, version_view
from runtime.http.admin.adapters import FORM_FIELDS
from runtime.http.errors import Dialect, body
from runtime.http.openapi import OPERATIONS, build, document, schemas
from runtime.http.schema import ERROR_SCHEMAS
from runtime.residency.policy import Plan
from runtime.server.run import build as server_build
from tenants.caller import ANONYMOUS, Caller
from tests.unit.http.admin.test_names import asking_as
from tests.unit.http.fakes import FakeGateway, application, recipe
from tests.unit.registry.makers import adapter

DOCUMENTS = ["a", "b"]
AUDIO = {"file": ("a.wav", b"RIFF")}


@pytest.fixture
def app(gateway: FakeGateway) -> FastAPI:
    app = application(gateway)
    document(app, gateway.recipes)
    return app


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def openapi(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The document, built once for all tests. `test_it_is_served` checks that it is the one that is served."""
    gateway = FakeGateway(tmp_path_factory.mktemp("openapi"))
    app = application(gateway)
    document(app, gateway.recipes)
    return app.openapi()


def check(openapi: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    """Raise ValidationError unless `value` fits `schema`, which may refer to the document."""
    Draft202012Validator({**schema, "components": openapi["components"]}).validate(value)


def named(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def operations(openapi: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def test_it_is_a_valid_openapi_3_1_document(openapi: dict[str, Any]) -> None:
    OpenAPIV31SpecValidator(openapi).validate()
    assert openapi["openapi"] == "3.1.0"


async def test_it_is_served(client: httpx.AsyncClient, openapi: dict[str, Any]) -> None:
    assert (await client.get("/openapi.json")).json() == openapi
    assert "swagger" in (await client.get("/docs")).text.lower()


def test_exactly_the_served_paths_are_documented(app: FastAPI, openapi: dict[str, Any]) -> None:
    served = {
        (method.lower(), getattr(route, "path_format", ""))
        for route in app.routes
        if getattr(route, "include_in_schema", False)
        for method in getattr(route, "methods", ())
    }
    assert {(method, path) for method, path, _ in operations(openapi)} == served == set(OPERATIONS)


def test_litserves_application_is_documented_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of LitServe's own is left, and only an API key of LitServe adds a security scheme."""
    plain = served_document(tmp_path)
    monkeypatch.setattr("litserve.server.LIT_SERVER_API_KEY", "secret")
    secured = served_document(tmp_path)
    OpenAPIV31SpecValidator(secured).validate()
    assert secured["paths"]["/v1/embeddings"]["post"].pop("security")
    for _, _, operation in operations(secured):
        operation.pop("security", None)
    del secured["components"]["securitySchemes"]["APIKeyHeader"]
    assert secured == plain, "the documents differ only in the key"


def served_document(folder: Path) -> dict[str, Any]:
    settings = Settings(recipes=(), data_dir=folder, run_dir=folder)
    server = server_build(settings, Documents((recipe("embed", "embed"),)), Device("cpu", "cpu", "cpu", 1, 1))
    document(server.app, [recipe("embed", "embed")])
    return server.app.openapi()


def test_no_route_or_dependency_runs_in_a_thread(tmp_path: Path) -> None:
    """FastAPI calls only coroutines for each request, so not LitServe's `no_auth`."""
    settings = Settings(recipes=(), data_dir=tmp_path, run_dir=tmp_path)
    server = server_build(settings, Documents((recipe("embed", "embed"),)), Device("cpu", "cpu", "cpu", 1, 1))
    routes = [route for route in server.app.routes if isinstance(route, APIRoute)]
    called = [each.call for route in routes for each in (route.dependant, *route.dependant.dependencies)]
    assert len(called) > 2 * len(OPERATIONS) - 10
    assert [call for call in called if not inspect.iscoroutinefunction(call)] == []


async def test_an_undocumented_path_is_an_error(app: FastAPI, gateway: FakeGateway) -> None:
    app.add_api_route("/new", lambda: None)
    with pytest.raises(KeyError, match="/new"):
        build(app, gateway.recipes)


BODILESS = ("Models", "Adapters", "Operations", "Organization", "Fleet")
"""Tags of operations that may have no body."""


def test_each_operation_is_described(openapi: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(openapi)]
    assert len(ids) == len(set(ids))
    tags = {tag["name"] for tag in openapi["tags"]}
    for method, path, operation in operations(openapi):
        assert set(operation["tags"]) <= tags, path
        assert operation["summary"], path
        assert operation["responses"]["200"]["content"], path
        if (
            method == "post"
            and not path.endswith(("/rollback", "/cancel", "/redeliver"))
            and operation["tags"][0] not in BODILESS
        ):
            assert operation["requestBody"]["required"], path
        if method == "post" and {"$ref": "#/components/parameters/Prefer"} in operation.get("parameters", []):
            assert {"400", "404", "413", "429", "502", "503", "504"} <= operation["responses"].keys(), path


def test_every_schema_exists_and_is_used(openapi: dict[str, Any]) -> None:
    text = str(openapi)
    for name in openapi["components"]["schemas"]:
        assert f"'#/components/schemas/{name}'" in text, name
    assert schemas().keys() <= openapi["components"]["schemas"].keys()


def test_the_form_of_a_registration_has_all_its_fields(openapi: dict[str, Any]) -> None:
    assert set(openapi["components"]["schemas"]["RegisterForm"]["properties"]) == {*FORM_FIELDS, "file"}


def test_the_examples_fit_their_schemas(openapi: dict[str, Any]) -> None:
    seen = 0
    for _, path, operation in operations(openapi):
        for content in operation.get("requestBody", {}).get("content", {}).values():
            for name, example in content.get("examples", {}).items():
                check(openapi, content["schema"], example["value"])
                seen += 1
                assert name, path
    assert seen > 15


def test_examples_name_models_of_this_server(openapi: dict[str, Any]) -> None:
    examples = openapi["paths"]["/v1/embeddings"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    assert examples["texts"]["value"]["model"] == "embed"


@pytest.mark.parametrize(
    ("caller", "model"),
    [(Caller("ops", "k"), "embed"), (ANONYMOUS, "starter-embed"), (Caller("ops", "k", models=("x",)), "starter-embed")],
)
async def test_examples_name_no_model_that_the_caller_may_not_see(
    gateway: FakeGateway, caller: Caller, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking_as(gateway, caller) as client:
        path = (await client.get("/openapi.json")).json()["paths"]["/v1/embeddings"]
        monkeypatch.setattr("runtime.http.openapi.JSONResponse", None)
        again = await client.get("/openapi.json")
        assert again.status_code == 200, "encoded once, since it takes 10 ms, and needs no key"
    assert path["post"]["requestBody"]["content"]["application/json"]["examples"]["texts"]["value"]["model"] == model


REFUSAL = Refusal("limit_1", "tokens_per_minute", "team", "support", 100.0, 0.0, None, "")
ERRORS = [
    BadRequest("x", param="y"),
    QueueFull("x"),
    Unfit("x", ["a", "b"]),
    Unreachable("x", 3.0, retry_after=1.0),
    LimitExceeded("x", [REFUSAL], retry_after=None),
]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("dialect", list(Dialect))
def test_errors_fit_their_schemas(openapi: dict[str, Any], error: Any, dialect: Dialect) -> None:
    name, schema = ERROR_SCHEMAS[dialect]
    answer = body(error, dialect)
    check(openapi, named(name), answer)
    assert set(answer) <= set(schema["properties"])
    if dialect in (Dialect.OPENAI, Dialect.JINA):
        assert set(answer["error"]) <= set(schema["properties"]["error"]["properties"])


# --- real answers --------------------------------------------------------------------------------------------------
@pytest.fixture
def scripted(gateway: FakeGateway) -> None:
    vectors = np.zeros((2, 3), "<f4").tobytes()
    gateway.links["embed"].script = lambda r: [
        EmbedResult(vectors=vectors[: 12 * len(r.inputs)], dimensions=3, tokens=[1] * len(r.inputs)),
        ResponseEnd(usage=Usage()),
    ]
    gateway.links["rerank"].script = lambda r: [
        RerankResult(logits=[0.5, 1.0], chunks=[1, 3], tokens=[1, 1]),
        ResponseEnd(usage=Usage()),
    ]
    word = Word(start=0, end=1, word=" a", probability=0.5)
    segment = Segment(
        id=1, seek=0, start=0, end=1, text=" a", tokens=[1], temperature=0, avg_logprob=-1, compression_ratio=1,
        no_speech_prob=0, words=[word],
    )  # fmt: skip
    info = TranscriptInfo(language="en", language_probability=1, duration=1.5, duration_after_vad=1)
    gateway.links["speech"].script = lambda _: [info, segment, ResponseEnd(usage=Usage())]


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": "embed", "input": DOCUMENTS}),
        ("/v1/embeddings", {"model": "embed", "input": DOCUMENTS, "encoding_format": "base64"}),
        ("/embed", {"inputs": DOCUMENTS}),
        ("/v2/embed", {"model": "embed", "input_type": "clustering", "texts": DOCUMENTS, "embedding_types": ["int8"]}),
        ("/v1/embed", {"model": "embed", "texts": DOCUMENTS}),
        ("/v1/embed", {"model": "embed", "texts": DOCUMENTS, "embedding_types": ["float"]}),
        (
            "/v2/embed",
            {"model": "embed", "input_type": "clustering", "texts": DOCUMENTS, "embedding_types": ["base64"]},
        ),
        ("/v1/rerank", {"model": "rerank", "query": "q", "documents": DOCUMENTS, "raw_scores": True}),
        ("/v2/rerank", {"model": "rerank", "query": "q", "documents": DOCUMENTS, "return_documents": True}),
        ("/rerank", {"query": "q", "texts": DOCUMENTS, "return_text": True}),
        ("/score", {"text_1": "q", "text_2": DOCUMENTS}),
        ("/v1/score", {"text_1": "q", "text_2": DOCUMENTS}),
        ("/v1/ranking", {"query": {"text": "q"}, "passages": [{"text": text} for text in DOCUMENTS]}),
    ],
)
async def test_answers_fit_their_schemas(
    client: httpx.AsyncClient, openapi: dict[str, Any], path: str, body: Any
) -> None:
    operation = openapi["paths"][path]["post"]
    check(openapi, operation["requestBody"]["content"]["application/json"]["schema"], body)
    response = await client.post(path, json=body)
    assert response.status_code == 200
    check(openapi, operation["responses"]["200"]["content"]["application/json"]["schema"], response.json())
    assert all(name.lower() in response.headers for name in ("X-Request-Id", "X-Roundhouse-Model", "Server-Timing"))


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("format_", ["json", "verbose_json", "text", "srt", "vtt"])
@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
async def test_transcripts_fit_their_schemas(
    client: httpx.AsyncClient, openapi: dict[str, Any], path: str, format_: str
) -> None:
    more = {"timestamp_granularities[]": ["word", "segment"]} if format_ == "verbose_json" else {}
    body = {"model": "speech", "response_format": format_, **more}
    operation = openapi["paths"][path]["post"]
    form = operation["requestBody"]["content"]["multipart/form-data"]["schema"]
    check(openapi, form, {**body, "file": "RIFF"})
    response = await client.post(path, data=body, files=AUDIO)
    media = response.headers["content-type"].partition(";")[0]
    schema = operation["responses"]["200"]["content"][media]["schema"]
    check(openapi, schema, response.json() if media.endswith("json") else response.text)


@pytest.mark.parametrize("format_", ["json", "verbose_json"])
async def test_transcripts_without_a_duration_fit_their_schema(
    client: httpx.AsyncClient, gateway: FakeGateway, openapi: dict[str, Any], format_: str
) -> None:
    """Those of a provider that tells neither duration nor tokens have no usage."""
    info = TranscriptInfo(language="en", language_probability=1, duration=0, duration_after_vad=0)
    gateway.links["speech"].script = lambda _: [info, ResponseEnd(usage=Usage())]
    body = {"model": "speech", "response_format": format_}
    answer = (await client.post("/v1/audio/transcriptions", data=body, files=AUDIO)).json()
    assert "usage" not in answer
    check(openapi, named("Transcript"), answer)


async def test_models_and_status_fit_their_schemas(
    client: httpx.AsyncClient, gateway: FakeGateway, openapi: dict[str, Any]
) -> None:
    check(openapi, named("ModelList"), (await client.get("/v1/models")).json())
    check(openapi, named("Model"), (await client.get("/v1/models/embed")).json())
    check(openapi, named("Health"), (await client.get("/health/live")).json())
    check(openapi, named("Health"), (await client.get("/health/ready")).json())
    warm = SimpleNamespace(slot_id=1, prewarmed="vllm", prewarmed_bytes=5, warm=True)
    gateway.pool.prewarmed = lambda: [warm]
    check(openapi, named("Status"), (await client.get("/v1/status")).json())
    check(openapi, named("SignalList"), (await client.get("/v1/signal")).json())


def _json(view: msgspec.Struct) -> Any:
    return msgspec.json.decode(msgspec.json.encode(view))


async def test_adapters_and_plans_fit_their_schemas(gateway: FakeGateway, openapi: dict[str, Any]) -> None:
    made = adapter("chat", "upper", 1, 2, aliases={"prod": 1})
    check(openapi, named("Adapter"), _json(adapter_view(made, "upper", gateway.queues["chat"])))
    check(openapi, named("AdapterCard"), _json(adapter_card(made, "upper", gateway.entries["chat"])))
    assert set(_json(version_view(made.current))) <= set(schemas()["Adapter"]["properties"])
    check(openapi, named("Plan"), _json(plan_view(Plan("chat", "load", 5, 9, 10, why="there is room"))))
