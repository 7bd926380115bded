"""Refusals have the vendor's type in each dialect, whether they come from us or from vLLM."""

from typing import Any

import pytest
from anthropic.types.shared import ErrorResponse

from tests.system.serving import Server
from tests.system.tools import HELLO, MODEL
from tests.system.vendor.published import CohereError, JinaError, OpenAIError, TeiError
from tests.system.vendor.strict import faults

pytestmark = pytest.mark.real
AS_JSON = {"content-type": "application/json"}
KINDS = {
    "/v1/chat/completions": OpenAIError,
    "/v1/completions": OpenAIError,
    "/v1/responses": OpenAIError,
    "/v1/messages": ErrorResponse,
    "/v1/messages/count_tokens": ErrorResponse,
    "/v1/embeddings": OpenAIError,
    "/embed": TeiError,
    "/v1/rerank": JinaError,
    "/v2/rerank": CohereError,
    "/v1/audio/transcriptions": OpenAIError,
}
LONG = "x" * 5000
FROM_VLLM: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
    ("/v1/chat/completions", {"messages": HELLO, "temperature": -1}),
    ("/v1/completions", {"prompt": LONG}),
    ("/v1/responses", {"input": LONG}),
    ("/v1/responses", {"input": "hi", "temperature": "warm"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 5}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": -1}),
]


@pytest.mark.parametrize("path", KINDS)
def test_our_refusals_have_the_vendors_type(server: Server, path: str) -> None:
    for body in (b"{", b"{}", b'{"model": "nobody", "messages": [], "input": "x", "max_tokens": 1}'):
        answer = server.http.post(path, content=body, headers=AS_JSON)
        assert 400 <= answer.status_code < 500
        assert faults(KINDS[path], answer.json()) == []


@pytest.mark.parametrize(("path", "body"), FROM_VLLM)
def test_vllms_refusals_have_the_vendors_type(server: Server, path: str, body: dict[str, Any]) -> None:
    answer = server.http.post(path, json={"model": MODEL, **body})
    assert answer.status_code == 400
    assert faults(KINDS[path], answer.json()) == []


def test_errors_for_unknown_paths_and_models_have_openais_type(server: Server) -> None:
    for path in ("/v1/nothing", "/v1/models/nobody"):
        assert faults(OpenAIError, server.http.get(path).json()) == []
