"""Errors of requests when their engine fails."""

import json
from typing import Any

import pytest

from models.chat.requests import client_tools, errors, fields
from models.chat.requests.request import RESPONSES, ChatRequest


@pytest.mark.parametrize(
    ("reached", "constrained", "code"),
    [(False, False, "unprocessable_request"), (True, True, "unsatisfiable_constraint"), (True, False, None)],
)
def test_the_code_of_a_failure_of_a_living_engine(reached: bool, constrained: bool, code: str | None) -> None:
    fault = errors.explain_failure(reached_engine=reached, constrained=constrained)
    assert (fault and fault.code) == code


LETTERS = (
    "This model's maximum context length is 8 tokens. However, your prompt contains 99 characters (more than 40 "
    "characters, which is the upper bound for 8 input tokens)."
)
TOO_LONG = {"type": "invalid_request_error", "code": "context_length_exceeded"}
EMPTY = "Cannot apply chat template to an empty conversation"
LONG = "This model's maximum context length is 8 tokens. However, your prompt contains at least 9 input tokens."


@pytest.mark.parametrize(
    ("path", "error", "expected"),
    [
        ("/v1/chat/completions", {"message": "Too long.", "param": "input_tokens", "code": 400},
         {"message": "Too long.", "param": "messages", **TOO_LONG}),
        ("/v1/responses", {"message": "Too long. (parameter=input_text, value=9)", "param": None, "code": 400},
         {"message": "Too long.", "param": "input", **TOO_LONG}),
        ("/v1/messages", {"message": "Too long. (parameter=input_tokens, value=9)"},
         {"message": "prompt is too long: Too long.", **TOO_LONG}),
        ("/v1/messages", {"message": f"{LETTERS} (parameter=input_text, value=99)"},
         {"message": f"prompt is too long: {LETTERS}", **TOO_LONG}),
        ("/v1/messages", {"message": f"{LONG} (parameter=input_tokens, value=9)"},
         {"message": f"prompt is too long: 9 tokens > 8 maximum. {LONG}", **TOO_LONG}),
        ("/v1/completions", {"message": "Bad. (parameter=logprobs, value=9)", "param": "logprobs"},
         {"message": "Bad. (parameter=logprobs, value=9)", "param": "logprobs"}),
        ("/v1/chat/completions", {"message": "base is not a multimodal model", "param": None},
         {"message": "This model reads text only: leave out images, sounds and videos.", "param": "messages"}),
        ("/v1/messages", {"message": "base is not a multimodal model (parameter=x, value=1)", "param": None},
         {"message": "This model reads text only: leave out images, sounds and videos.", "param": None}),
        ("/v1/responses", {"message": f"{EMPTY}. Provide at least one message.", "param": None},
         {"message": f"{EMPTY}. Provide at least one message.", "param": "input"}),
        ("/v1/completions", {"message": "You must pass at least one prompt", "param": None},
         {"message": "You must pass at least one prompt", "param": "prompt"}),
        ("/v1/completions", {"message": "max_tokens is odd", "param": None},
         {"message": "max_tokens is odd", "param": "max_tokens"}),
        ("/v1/chat/completions", {"message": "n must be 1 when using greedy sampling, got 2.", "param": None},
         {"message": "n must be 1 when using greedy sampling, got 2.", "param": "n"}),
    ],
)  # fmt: skip
def test_the_field_and_the_code_of_an_error(path: str, error: dict[str, Any], expected: dict[str, Any]) -> None:
    request = ChatRequest(path, b'{"model": "m", "max_tokens": 5, "n": 2}')
    data = errors.add_param(json.dumps({"error": error}).encode(), request)
    assert json.loads(data) == {"error": expected}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_number_of_logprobs_has_its_fields_name(path: str) -> None:
    """vLLM names the field of Completions, which is a boolean in Chat Completions and missing in Responses."""
    error = {"message": "Requested 99, up to 20. (parameter=logprobs, value=99)", "param": "logprobs"}
    request = ChatRequest(path, b'{"model": "m", "logprobs": true, "top_logprobs": 99}')
    data = errors.add_param(json.dumps({"error": error}).encode(), request)
    assert json.loads(data) == {"error": {"message": "Requested 99, up to 20.", "param": "top_logprobs"}}
    of_its_type = json.dumps({"error": {"message": "logprobs: Input should be true or false", "param": "logprobs"}})
    assert errors.add_param(of_its_type.encode(), request) == of_its_type.encode()


@pytest.mark.parametrize(
    ("path", "sent", "name"),
    [
        ("/v1/chat/completions", {"max_completion_tokens": 0}, "max_completion_tokens"),
        ("/v1/chat/completions", {"max_tokens": 0, "max_completion_tokens": 9}, "max_tokens"),
        ("/v1/responses", {"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_a_field_is_called_as_the_client_sent_it(path: str, sent: Any, name: str) -> None:
    error = {"message": "max_tokens must be at least 1, got 0.", "param": "max_tokens"}
    data = errors.add_param(json.dumps({"error": error}).encode(), ChatRequest(path, json.dumps(sent).encode()))
    assert json.loads(data) == {"error": {"message": f"{name} must be at least 1, got 0.", "param": name}}


TOOLS = [
    {"type": "web_search"},
    {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "inner"}]},
    {"type": "function", "name": "f"},
]


@pytest.mark.parametrize(
    ("choice", "path", "expected"),
    [
        ("required", ("items", "anyOf", 1, "properties", "parameters", "type"), ("tools[2].parameters", ("type",))),
        ("required", ("items", "anyOf", 0, "properties", "parameters", "type"), ("tools", ("type",))),
        ({"type": "function", "name": "f"}, ("type",), ("tools[2].parameters", ("type",))),
        (
            {"type": "function", "name": "f"},
            ("format", "tags", 0, "content", "json_schema", "type"),
            ("tools[2].parameters", ("type",)),
        ),
        ("required", ("format", "tags", 0, "content", "json_schema", "type"), ("tools", ("type",))),
        (
            {"type": "function", "name": "f"},
            ("items", "anyOf", 9, "properties", "parameters"),
            ("tools[2].parameters", ("items", "anyOf", 9, "properties", "parameters")),
        ),
    ],
    ids=[
        "any",
        "in a namespace",
        "named",
        "named, in the model's format",
        "any, in the model's format",
        "named, with a schema like that of a required call",
    ],
)
def test_a_fault_in_a_schema_is_in_the_tool_as_the_client_sent_it(
    choice: Any, path: errors.Path, expected: tuple[str, errors.Path]
) -> None:
    body = {"model": "m", "input": "x", "tools": TOOLS, "tool_choice": choice}
    request = ChatRequest(RESPONSES, json.dumps(body).encode())
    fields.check({RESPONSES: frozenset(body)}, request)
    client_tools.translate(request)
    assert len(request.value("tools")) == 2
    assert errors.locate(request, path) == expected
