"""OpenAI's chat completions, completions and Responses, whole and streamed, against the types of its package."""

from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

from tests.system.serving import Server
from tests.system.surfaces.thinking import BOTH, FUNCTIONS, SUM
from tests.system.surfaces.thinking import TOOLS as CALLED
from tests.system.tools import HELLO, LIGHT, MODEL, SAYS_CALLS, TOOLS
from tests.system.vendor import asking
from tests.system.vendor.strict import faults

pytestmark = pytest.mark.real
Body = dict[str, Any]
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
SHAPE = {"name": "light", "schema": LIGHT, "strict": True}
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
THINKS = {"model": "thinker", "temperature": 0}
LIGHTS = [{"type": "function", "name": "set_light", "parameters": LIGHT}]
FLAT = [{"type": "function", **function} for function in FUNCTIONS]

CHATS: dict[str, Body] = {
    "plain": {},
    "cut": {"max_tokens": 2},
    "usage": USAGE,
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "several": {"n": 2, "temperature": 1},
    "schema": {"response_format": {"type": "json_schema", "json_schema": SHAPE}},
    "tools": {"tools": TOOLS, **SAYS_CALLS},
    "one tool": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "set_light"}}},
    "some tool": {"tools": TOOLS, "tool_choice": "required"},
    "thoughts": {**THINKS, "messages": [{"role": "user", "content": SUM}]},
    "thoughts and tools": {**THINKS, "messages": [{"role": "user", "content": BOTH}], "tools": CALLED},
}
TEXTS: dict[str, Body] = {
    "plain": {},
    "usage": USAGE,
    "logprobs": {"logprobs": 2},
    "several": {"prompt": ["hello", "good"], "n": 2, "temperature": 1},
    "echo": {"echo": True, "logprobs": 1},
}
REQUESTS: dict[str, Body] = {
    "plain": {},
    "cut": {"max_output_tokens": 2},
    "logprobs": {"top_logprobs": 2, "include": ["message.output_text.logprobs"]},
    "more fields": {
        "instructions": "be brief",
        "metadata": {"a": "b"},
        "user": "me",
        "top_p": 0.9,
        "max_tool_calls": 3,
    },
    "keys": {"prompt_cache_key": "k", "safety_identifier": "s", "text": {"verbosity": "medium"}, "background": False},
    "schema": {"text": {"format": {"type": "json_schema", **SHAPE}}},
    "tools": {"tools": FLAT[:1], "tool_choice": {"type": "function", "name": "set_light"}},
    "some tool": {"tools": LIGHTS, "tool_choice": "required", "max_output_tokens": 450},
    "thoughts": {**THINKS, "input": SUM, "reasoning": {"summary": None}},
    "thoughts and tools": {**THINKS, "input": BOTH, "tools": FLAT},
}


def answers(request: pytest.FixtureRequest, path: str, body: Body, *, stream: bool) -> list[Any]:
    server: Server = request.getfixturevalue("thinker" if body["model"] == "thinker" else "server")
    if stream:
        return asking.events(server.http, path, body)
    return [asking.whole(server.http, path, {key: value for key, value in body.items() if key != "stream_options"})]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CHATS)
def test_chat_completions_have_openais_types(request: pytest.FixtureRequest, name: str, stream: bool) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 100, "temperature": 0, **CHATS[name]}
    kind: Any = ChatCompletionChunk if stream else ChatCompletion
    for answer in answers(request, CHAT, body, stream=stream):
        assert faults(kind, answer) == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", TEXTS)
def test_completions_have_openais_types(request: pytest.FixtureRequest, name: str, stream: bool) -> None:
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 5, "temperature": 0, **TEXTS[name]}
    for answer in answers(request, TEXT, body, stream=stream):
        for choice in answer["choices"]:
            put_documented_values(choice, stream=stream)
        assert faults(Completion, answer) == []


def put_documented_values(choice: Body, *, stream: bool) -> None:
    """Replace two nulls that OpenAI sends but does not document.

    They are the finish reason before a stream's end, and the logprob of the first token of a prompt.
    """
    if stream and choice["finish_reason"] is None:
        choice["finish_reason"] = "stop"
    logprobs = choice["logprobs"]
    if logprobs and logprobs["text_offset"][:1] == [0] and logprobs["token_logprobs"][0] is None:
        assert logprobs["top_logprobs"][0] is None
        logprobs["token_logprobs"][0], logprobs["top_logprobs"][0] = 0.0, {}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", REQUESTS)
def test_responses_have_openais_types(request: pytest.FixtureRequest, name: str, stream: bool) -> None:
    body = {"model": MODEL, "input": "hello", "max_output_tokens": 100, "temperature": 0, **REQUESTS[name]}
    kind: Any = ResponseStreamEvent if stream else Response
    received = answers(request, RESPONSES, body, stream=stream)
    for answer in received:
        assert faults(kind, answer) == []
        response = answer.get("response", {}) if stream else answer
        if response:
            assert {"text", "store", "service_tier"} <= response.keys()
            assert response["text"]["format"]["type"] == ("json_schema" if name == "schema" else "text")
            assert (response["completed_at"] is not None) == (response["status"] == "completed")
    if stream:
        assert {answer["type"] for answer in received} >= {"response.created", "response.in_progress"}
        assert received[-1]["type"] == f"response.{received[-1]['response']['status']}"
        assert (received[-1]["type"] == "response.incomplete") == (name == "cut")


def test_a_response_repeats_the_requests_tools_unchanged(server: Server) -> None:
    """With the nulls in their schemas."""
    schema = {"type": "object", "properties": {"name": {"enum": ["on", None], "default": None}}, "id": None}
    tool = {"type": "function", "name": "x", "parameters": schema}
    answer = asking.whole(
        server.http, RESPONSES, {"model": MODEL, "input": "hi", "max_output_tokens": 1, "tools": [tool]}
    )
    assert answer["tools"] == [{**tool, "strict": None}]
