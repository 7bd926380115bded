"""Messages of a chat that are none, and images in the forms of other servers' clients."""

import json
from typing import Any

import pytest

from models.chat.requests import moves, turns
from models.chat.requests.request import CHAT, ChatRequest
from registry.errors import BadRequest

HELLO = {"role": "user", "content": "hello"}


def requested(messages: Any) -> ChatRequest:
    return ChatRequest(CHAT, json.dumps({"model": "m", "messages": messages}).encode())


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ("hello", "messages"),
        (HELLO, "messages"),
        (["hello"], "messages[0]"),
        ([HELLO, [HELLO]], "messages[1]"),
        ([{"content": "hello"}], "messages[0].role"),
        ([HELLO, {"role": "user", "text": "hello"}], "messages[1].content"),
        ([{"role": "system"}, HELLO], "messages[0].content"),
    ],
)
def test_what_is_no_message_is_refused_with_an_example_of_one(messages: Any, param: str) -> None:
    with pytest.raises(BadRequest, match=r'\{"role": "user", "content": "Hello"\}') as refused:
        turns.check(requested(messages))
    assert refused.value.param == param
    assert f"'{param.partition('.')[0]}'" in refused.value.message


TEXT, FILE = {"type": "text", "text": "x"}, {"type": "file", "file": {"filename": "a.pdf", "file_data": "JVBERi0="}}


@pytest.mark.parametrize(
    ("content", "param"),
    [({"type": "text", "text": "x"}, "messages[1].content"), ([TEXT, FILE], "messages[1].content[1]")],
)
def test_content_that_no_model_reads_is_refused_by_its_place(content: Any, param: str) -> None:
    with pytest.raises(BadRequest, match=r"(?i)send .*(string|text)") as refused:
        turns.check(requested([HELLO, {"role": "user", "content": content}]))
    assert refused.value.param == param
    assert param in refused.value.message


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [HELLO, {"role": "assistant", "tool_calls": []}, {"role": "tool", "tool_call_id": "c"}],
        [{"role": "user", "content": None}, {"role": "system", "content": ""}],
        [{"role": 5}],
    ],
)
def test_all_else_is_left_to_vllm(messages: Any) -> None:
    turns.check(requested(messages))
    turns.check(ChatRequest(CHAT, b'{"model": "m"}'))


@pytest.mark.parametrize("result", [{"content": None}, {}])
def test_a_tools_result_without_content_is_empty(result: dict[str, Any]) -> None:
    """vLLM's class refused null, and other servers take it as an empty text."""
    called = {"role": "assistant", "content": None, "tool_calls": []}
    request = requested([HELLO, called, {"role": "tool", "tool_call_id": "c", **result}])
    moves.move(request)
    assert request.value("messages") == [HELLO, called, {"role": "tool", "tool_call_id": "c", "content": ""}]


PNG, JPEG = "iVBORw0KGgo=", "/9j/4AAQ"


@pytest.mark.parametrize(
    ("image", "url"),
    [
        ("https://images.example/cat.png", "https://images.example/cat.png"),
        (f"data:image/png;base64,{PNG}", f"data:image/png;base64,{PNG}"),
        (PNG, f"data:image/png;base64,{PNG}"),
        ({"url": JPEG, "detail": "low"}, f"data:image/jpeg;base64,{JPEG}"),
        ({"url": "R0lGODlh"}, "data:image/gif;base64,R0lGODlh"),
        ({"url": "UklGRg=="}, "data:image/webp;base64,UklGRg=="),
    ],
)
def test_an_image_is_an_object_with_a_url(image: Any, url: str) -> None:
    text = {"type": "text", "text": '"image_url": "a", "url": "iVBOR"'}
    content = [text, {"type": "image_url", "image_url": image}]
    request = requested([{"role": "user", "content": content}])
    moves.move(request)
    expected = {"url": url, **({"detail": "low"} if isinstance(image, dict) and "detail" in image else {})}
    assert json.loads(request.body)["messages"][0]["content"] == [text, {"type": "image_url", "image_url": expected}]
