"""Fields that the vendors' own clients may send as null, and which then count as left out."""

from typing import Any, get_args, get_origin, get_type_hints

import pytest
from anthropic.types.message_create_params import MessageCreateParamsBase
from openai.types import completion_create_params as texts
from openai.types.chat import completion_create_params as chats
from openai.types.responses import response_create_params as responses

from tests.system.serving import Server
from tests.system.tools import HELLO, MODEL
from tests.system.vendor import asking

pytestmark = pytest.mark.real
NEEDED = {"model", "messages", "prompt", "input"}
REQUEST: dict[str, tuple[type, dict[str, Any]]] = {
    "/v1/chat/completions": (chats.CompletionCreateParamsNonStreaming, {"messages": HELLO, "max_completion_tokens": 2}),
    "/v1/completions": (texts.CompletionCreateParamsNonStreaming, {"prompt": "hello", "max_tokens": 2}),
    "/v1/responses": (responses.ResponseCreateParamsNonStreaming, {"input": "hello", "max_output_tokens": 2}),
    "/v1/messages": (MessageCreateParamsBase, {"messages": HELLO, "max_tokens": 2}),
}


def nullable(kind: type) -> list[str]:
    def may_be(hint: Any) -> bool:
        inner = get_args(hint) if get_origin(hint) is not None else ()
        return hint is type(None) or (type(None) in inner)

    return [name for name, hint in get_type_hints(kind).items() if may_be(hint) and name not in NEEDED]


def test_nullable_fields_are_found() -> None:
    assert {"background", "service_tier", "truncation"} <= set(nullable(REQUEST["/v1/responses"][0]))
    assert "n" in nullable(REQUEST["/v1/completions"][0])


@pytest.mark.parametrize("path", REQUEST)
def test_a_null_counts_as_left_out(server: Server, path: str) -> None:
    kind, body = REQUEST[path]
    nulls = {name: None for name in nullable(kind) if name not in body}
    answer = asking.whole(server.http, path, {**nulls, "model": MODEL, **body})
    plain = asking.whole(server.http, path, {"model": MODEL, **body})
    assert answer.keys() == plain.keys()
