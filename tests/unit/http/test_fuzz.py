"""Valid and invalid requests generated from our OpenAPI document never get a 5xx.

ROUNDHOUSE_FUZZ_EXAMPLES sets the number of examples per operation and mode (default 10).
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

from models.messages import (
    Chunk,
    EmbedRequest,
    EmbedResult,
    Event,
    HttpCall,
    RerankRequest,
    RerankResult,
    ResponseEnd,
    ResponseStart,
    TranscriptInfo,
    Usage,
)
from runtime.http.openapi import document
from tests.unit.http.fakes import FakeGateway, application

EXAMPLES = int(os.environ.get("ROUNDHOUSE_FUZZ_EXAMPLES", "10"))
GENERATE = ("/generate", "/generate_stream", "/")
OLLAMA = ("/api/chat", "/api/generate", "/api/show", "/api/pull")
MODELS = (
    {"/v1/embeddings": "embed", "/embed": "embed", "/v1/embed": "embed", "/v2/embed": "embed", "/v2/chat": "chat"}
    | dict.fromkeys(GENERATE, "chat")
    | dict.fromkeys(OLLAMA, "chat")
    | {"/api/embed": "embed", "/api/embeddings": "embed"}
    | {f"/v1/audio/{name}": "speech" for name in ("transcriptions", "translations")}
)
PATHS = [*MODELS, "/v1/rerank", "/v2/rerank", "/rerank", "/score", "/v1/score", "/v1/ranking"]
END = ResponseEnd(usage=Usage())


def embed(request: EmbedRequest) -> list[Event]:
    rows = len(request.inputs)
    return [EmbedResult(vectors=np.zeros((rows, 2), "<f4").tobytes(), dimensions=2, tokens=[1] * rows), END]


def rerank(request: RerankRequest) -> list[Event]:
    rows = len(request.documents)
    return [RerankResult(logits=[0.5] * rows, chunks=[1] * rows, tokens=[1] * rows), END]


def generate(request: HttpCall) -> list[Event]:
    logprobs = {"tokens": ["a"], "token_logprobs": [-0.5]}
    choice = {"text": "a", "token_ids": [7], "logprobs": logprobs, "finish_reason": "stop"}
    if request.path == "/v1/chat/completions":
        choice = {"delta": {"content": "a"}, "message": {"content": "a"}, "finish_reason": "stop"}
    data = json.dumps({"choices": [choice]}).encode()
    if json.loads(request.body)["stream"]:
        return [ResponseStart(status=200, content_type="text/event-stream"), Chunk(data=b"data: %s\n\n" % data), END]
    return [ResponseStart(status=200, content_type="application/json"), Chunk(data=data), END]


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    gateway = FakeGateway(Path(tmp_path_factory.mktemp("fuzz")))
    info = TranscriptInfo(language="en", language_probability=1, duration=1, duration_after_vad=1)
    gateway.links["embed"].script, gateway.links["rerank"].script = embed, rerank
    gateway.links["chat"].script = generate
    gateway.links["speech"].script = lambda _: [info, END]
    app = application(gateway)
    document(app, gateway.recipes)
    yield schemathesis.openapi.from_asgi("/openapi.json", app)
    assert not list(gateway.settings.run_dir.rglob("*.audio")), "an upload was not removed"


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", PATHS)
def test_no_request_is_a_5xx(schema: Any, path: str, mode: GenerationMode) -> None:
    operation = schema[path]["POST"]
    model = MODELS.get(path, "rerank")

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy(generation_mode=mode), known=st.integers(0, 3))
    def run(case: Any, known: int) -> None:
        if known and isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            case.body["model"] = model  # otherwise nearly every request would be for an unknown model
        response = case.call()
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            assert response.json().keys() <= {"detail", "error", "error_type", "message"}

    run()
