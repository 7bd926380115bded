"""The whole documented range of a number is accepted, and fields of other servers have an effect here, too."""

from typing import Any

import pytest

from tests.system.serving import Server

pytestmark = pytest.mark.real
HELLO = [{"role": "user", "content": "hello"}]
MODEL = {"model": "starter-chat"}
INT64 = 2**63 - 1
PENALTIES = {"presence_penalty": (-2, 2), "frequency_penalty": (-2, 2)}
SHARES = {"temperature": (0, 2), "top_p": (0, 1)}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**MODEL, "messages": HELLO, "max_completion_tokens": 1},
    "/v1/completions": {**MODEL, "prompt": "hello", "max_tokens": 1},
    "/v1/responses": {**MODEL, "input": "hello", "max_output_tokens": 1},
    "/v1/messages": {**MODEL, "messages": HELLO, "max_tokens": 1},
    "/api/chat": {**MODEL, "messages": HELLO, "stream": False, "options": {"num_predict": 1}},
    "/api/generate": {**MODEL, "prompt": "hello", "stream": False, "options": {"num_predict": 1}},
    "/generate": {**MODEL, "inputs": "hello", "parameters": {"max_new_tokens": 1}},
}
OPTIONS: dict[str, tuple[Any, ...]] = {
    **SHARES, **PENALTIES, "top_k": (0, 100), "min_p": (0, 1), "num_predict": (-1, 1), "seed": (0, 2**31 - 1),
    "repeat_penalty": (0.1, 2), "stop": ([], ["x"] * 4),
}  # fmt: skip
RANGES: dict[str, dict[str, tuple[Any, ...]]] = {
    "/v1/chat/completions": {
        **SHARES, **PENALTIES, "n": (1, 128), "seed": (-INT64 - 1, INT64), "max_completion_tokens": (1, 131_072),
        "logit_bias": ({"65": -100}, {"65": 100}), "stop": (["x"], ["x"] * 4),
        "metadata": ({}, {str(n): "x" * 512 for n in range(16)}),
    },
    "/v1/completions": {
        **SHARES, **PENALTIES, "n": (1, 128), "seed": (-INT64 - 1, INT64), "max_tokens": (1, 131_072),
        "logprobs": (0, 5), "logit_bias": ({"65": -100}, {"65": 100}), "stop": (["x"], ["x"] * 4), "best_of": (1,),
    },
    "/v1/responses": {
        **SHARES, "max_output_tokens": (16, 131_072), "metadata": ({}, {str(n): "x" * 512 for n in range(16)}),
        "max_tool_calls": (1, 128),
    },
    "/v1/messages": {
        "temperature": (0, 1), "top_p": (0, 1), "top_k": (0, 500), "max_tokens": (1, 128_000),
        "stop_sequences": ([], ["x"] * 64),
    },
    "/api/chat": OPTIONS,
    "/api/generate": OPTIONS,
    "/generate": {
        "temperature": (0.01, 2), "top_p": (0.01, 0.99), "top_k": (1, 500), "repetition_penalty": (0.1, 2),
        "frequency_penalty": (-2, 2), "seed": (0, 2**64 - 1), "max_new_tokens": (1, 512), "stop": ([], ["x"] * 4),
        "truncate": (1, 512), "top_n_tokens": (0,), "best_of": (1,),
    },
}  # fmt: skip
"""By OpenAI's and Anthropic's API reference, Ollama's documentation of the Modelfile, and TGI's OpenAPI document.

Without the limits of what is not offered at all: `best_of` above 1, `top_n_tokens`, and `max_tokens: 0` of Completions
without `echo`, for which vLLM has no answer.
"""
TOGETHER: dict[str, tuple[dict[str, Any], ...]] = {
    "/v1/chat/completions": tuple({"logprobs": True, "top_logprobs": count} for count in (0, 20)),
    "/v1/responses": tuple(
        {"include": ["message.output_text.logprobs"], "top_logprobs": count} for count in (0, 20)
    ),
}  # fmt: skip
"""Numbers that need another field."""


def requests(path: str) -> list[dict[str, Any]]:
    inner = "options" if path.startswith("/api/") else "parameters" if path == "/generate" else None
    changes = [{name: value} for name, values in RANGES[path].items() for value in values]
    if inner is None:
        return [*changes, *TOGETHER.get(path, ())]
    return [{inner: {**BODIES[path][inner], **change}} for change in changes]


@pytest.mark.parametrize("path", BODIES)
def test_the_edges_of_each_documented_range_are_answered(server: Server, path: str) -> None:
    refused = []
    for change in requests(path):
        answer = server.http.post(path, json={**BODIES[path], **change})
        if answer.status_code != 200:
            refused.append((change, answer.status_code, answer.text[:300]))
    assert refused == []


CITY = {"type": "object", "properties": {"city": {"enum": ["paris"]}}, "required": ["city"]}
CITY["additionalProperties"] = False
ANSWER = {"role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
FIELDS: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"guided_choice": ["paris"]}, '"paris"'),
    ("/v1/chat/completions", {"grammar": 'root ::= "paris"', "tools": [], "tool_choice": "auto"}, '"paris"'),
    ("/v1/completions", {"guided_regex": "paris", "suffix": "", "repeat_penalty": 1.0}, '"paris"'),
    ("/v1/messages", {"output_format": {"type": "json_schema", "schema": CITY}}, "paris"),
    (
        "/v1/messages",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "document",
                            "source": {"type": "text", "media_type": "text/plain", "data": "what is a slot"},
                        }
                    ],
                }
            ]
        },
        "A LitServe worker process",
    ),
    ("/v1/responses", {"input": [*HELLO, ANSWER, *HELLO]}, '"completed"'),
]
"""Requests as for an earlier vLLM, LocalAI, Anthropic's beta and Vercel's SDK, and what the answer must contain."""


@pytest.mark.parametrize(("path", "more", "words"), FIELDS, ids=lambda value: str(value)[:30])
def test_fields_of_other_servers_bind(server: Server, path: str, more: dict[str, Any], words: str) -> None:
    limit = {name: 30 for name in BODIES[path] if name.startswith("max_")}
    answer = server.http.post(path, json={**BODIES[path], **limit, "temperature": 0, **more})
    assert (answer.status_code, answer.headers.get("X-Roundhouse-Warning")) == (200, None), answer.text
    assert words in answer.text
