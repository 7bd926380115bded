"""Anthropic's Messages, whole and streamed, and the token count, against the types of its package."""

from typing import Any

import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent

from tests.system.serving import Server
from tests.system.surfaces.thinking import BOTH, FUNCTIONS, SUM
from tests.system.tools import HELLO, LIGHT, MODEL
from tests.system.vendor import asking
from tests.system.vendor.strict import faults

pytestmark = pytest.mark.real
MESSAGES = "/v1/messages"
THINKS = {"model": "thinker", "temperature": 0}
CALLED = [{"name": function["name"], "input_schema": function["parameters"]} for function in FUNCTIONS]
REQUEST: dict[str, dict[str, Any]] = {
    "plain": {},
    "cut": {"max_tokens": 2},
    "stopped": {"stop_sequences": ["a", "e", "i", "o"]},
    "tool": {
        "tools": [{"name": "set_light", "input_schema": LIGHT}],
        "tool_choice": {"type": "tool", "name": "set_light"},
    },
    "tool, cut": {
        "max_tokens": 4,
        "tools": [{"name": "set_light", "input_schema": LIGHT}],
        "tool_choice": {"type": "tool", "name": "set_light"},
    },
    "thoughts": {
        **THINKS,
        "messages": [{"role": "user", "content": SUM}],
        "max_tokens": 1500,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    },
    "thoughts and tools": {**THINKS, "messages": [{"role": "user", "content": BOTH}], "tools": CALLED},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", REQUEST)
def test_messages_have_anthropics_types(request: pytest.FixtureRequest, name: str, stream: bool) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 60, **REQUEST[name]}
    server: Server = request.getfixturevalue("thinker" if body["model"] == "thinker" else "server")
    if not stream:
        answer = asking.whole(server.http, MESSAGES, body)
        assert faults(Message, answer) == []
        assert (answer["stop_reason"] == "max_tokens") == name.endswith("cut")
        assert name != "tool, cut" or answer["content"][-1]["type"] == "text"
        return
    events = asking.events(server.http, MESSAGES, body)
    for event in events:
        assert faults(RawMessageStreamEvent, event) == []
    kinds = [event["type"] for event in events]
    assert (events[-2]["delta"]["stop_reason"] == "max_tokens") == name.endswith("cut")
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])


def test_the_token_count(server: Server) -> None:
    counted = asking.whole(server.http, f"{MESSAGES}/count_tokens", {"model": MODEL, "messages": HELLO})
    assert faults(MessageTokensCount, counted) == []
