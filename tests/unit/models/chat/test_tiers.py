"""`service_tier` in the answers' bodies."""

import json

import pytest

from models.chat.answers.fitting import ANTHROPICS, fit_answer

CHAT = {"id": "c", "object": "chat.completion", "choices": [{"message": {"content": '"object":"chat.completion",'}}]}
CHUNK = {"id": "c", "object": "chat.completion.chunk", "choices": []}


def packed(data: object) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


@pytest.mark.parametrize("tier", ["priority", "default", "flex"])
def test_the_tier_is_where_each_vendor_has_it(tier: str) -> None:
    chat = json.loads(fit_answer("/v1/chat/completions", packed(CHAT), tier))
    assert chat == {**CHAT, "service_tier": tier}
    stream = fit_answer("/v1/chat/completions", b"data: " + packed(CHUNK) + b"\n\ndata: [DONE]\n\n", tier)
    assert json.loads(stream[6:].split(b"\n")[0]) == {**CHUNK, "service_tier": tier}
    body = {"object": "response", "service_tier": "auto"}
    assert json.loads(fit_answer("/v1/responses", packed(body), tier))["service_tier"] == tier
    message = fit_answer("/v1/messages", packed({"type": "message", "content": [], "usage": {}}), tier)
    assert json.loads(message)["usage"]["service_tier"] == ANTHROPICS[tier].decode()
    assert fit_answer("/v1/completions", b"{}", tier) == b"{}"


def test_it_is_absent_without_a_tier() -> None:
    assert b"service_tier" not in fit_answer("/v1/chat/completions", packed(CHAT))
