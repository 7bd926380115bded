"""The client's name for a model replaces the engine's, and nothing else is replaced."""

import json
from typing import Any

import pytest

from models.chat.answers.fitting import Renamer, fit_answer

SERVED, DISPLAY_NAME = "sha256:" + "0" * 64, 'my "name"'
OWN = {"model": SERVED, "service_tier": None, "more": [{"model": SERVED, "service_tier": "auto"}]}
"""An object that a client or a model wrote."""
RESPONSE = {
    "id": "resp_1",
    "metadata": {"model": SERVED},
    "model": SERVED,
    "service_tier": "auto",
    "tools": [{"type": "function", "name": "f", "parameters": {"default": OWN}, "strict": None}],
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"default": OWN}}},
    "output": [{"type": "function_call", "arguments": json.dumps(OWN)}],
}
MESSAGE = {
    "id": "msg_1",
    "content": [{"type": "tool_use", "id": "c", "name": "deploy", "input": OWN}],
    "model": SERVED,
    "usage": {"input_tokens": 1},
}


def fitted(path: str, data: bytes) -> bytes:
    return fit_answer(path, data, "flex", Renamer(SERVED, DISPLAY_NAME))


def packed(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "event", "tier"),
    [("/v1/responses", RESPONSE, "response", "flex"), ("/v1/messages", MESSAGE, "message", "batch")],
)
def test_objects_of_clients_and_models_are_unchanged(
    path: str, body: dict[str, Any], event: str, tier: str, *, stream: bool
) -> None:
    name = {"response": "response.created", "message": "message_start"}[event]
    if stream:
        data = b"event: %s\ndata: %s\n\n" % (name.encode(), packed({"type": name, event: body}))
        answer = json.loads(fitted(path, data).partition(b"data: ")[2])[event]
    else:
        answer = json.loads(fitted(path, packed(body)))
    assert answer["model"] == DISPLAY_NAME
    assert (answer["usage"] if event == "message" else answer)["service_tier"] == tier
    for name in body.keys() - {"model", "service_tier", "usage"}:
        assert answer[name] == body[name]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
def test_arguments_of_a_chats_tools_are_a_string(path: str) -> None:
    call = {"function": {"name": "deploy", "arguments": json.dumps(OWN, separators=(",", ":"))}}
    answer = json.loads(fitted(path, packed({"id": "c", "model": SERVED, "choices": [{"message": call}]})))
    assert answer == {"id": "c", "model": DISPLAY_NAME, "choices": [{"message": call}]}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_the_engines_own_name_stays(path: str) -> None:
    data = packed({"id": "x", "model": "starter-chat", "content": []})
    answer = json.loads(fit_answer(path, data, "", Renamer("starter-chat", "starter-chat")))
    assert answer["model"] == "starter-chat"
