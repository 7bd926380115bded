"""Random chat completion requests keep their meaning when translated to Anthropic's dialect and back."""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from routing.providers.translation import from_chat, from_messages

texts = st.text(min_size=1, max_size=8).filter(str.strip)
names = st.text("abcdefgh_-", min_size=1, max_size=8)
objects = st.dictionaries(names, st.recursive(st.integers() | texts | st.none(), st.lists, max_leaves=4), max_size=3)
text_parts = texts.map(lambda text: {"type": "text", "text": text})
urls = st.sampled_from(["https://example.com/a.png", "data:image/png;base64,iVBORw0KGgo="])
image_parts = urls.map(lambda url: {"type": "image_url", "image_url": {"url": url}})
users = st.builds(
    lambda content: {"role": "user", "content": content},
    texts | st.lists(text_parts | image_parts, min_size=1, max_size=3),
)


@st.composite
def exchanges(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return a user's message, an assistant's, and the results of the tools that it called."""
    calls = [
        {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for index, (name, given) in enumerate(draw(st.lists(st.tuples(names, objects), max_size=3)))
    ]
    stated = draw(texts) if not calls else draw(st.none() | texts)
    assistant = {"role": "assistant", "content": stated} | ({"tool_calls": calls} if calls else {})
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": draw(texts)} for call in draw(st.permutations(calls))
    ]
    return [draw(users), assistant, *results]


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    system = [{"role": "system", "content": text} for text in draw(st.lists(texts, max_size=2))]
    turns = [message for turn in draw(st.lists(exchanges(), max_size=3)) for message in turn]
    found: dict[str, Any] = {"model": "big", "messages": [*system, *turns, draw(users)]}
    functions = [
        {"name": name, "parameters": {"type": "object", "properties": draw(objects)}}
        | draw(st.fixed_dictionaries({}, optional={"description": texts, "strict": st.booleans()}))
        for name in draw(st.lists(names, max_size=3, unique=True))
    ]
    if functions:
        found["tools"] = [{"type": "function", "function": function} for function in functions]
        named = [{"type": "function", "function": {"name": function["name"]}} for function in functions]
        more = {"tool_choice": st.sampled_from(["auto", "none", "required", *named])}
        found |= draw(st.fixed_dictionaries({}, optional=more))
        if found.get("tool_choice") != "none":
            found |= draw(st.fixed_dictionaries({}, optional={"parallel_tool_calls": st.just(False)}))
    optional = {
        "stop": texts | st.lists(texts, min_size=1, max_size=4),
        "temperature": st.floats(0, 1),
        "top_p": st.floats(0, 1),
        "user": texts,
        "stream": st.just(True),
        "reasoning_effort": st.sampled_from(from_chat.EFFORTS),
    }
    return (
        found | {"max_completion_tokens": draw(st.integers(1, 9))} | draw(st.fixed_dictionaries({}, optional=optional))
    )


def meant(messages: Sequence[dict[str, Any]]) -> list[Any]:
    """Return a conversation's content by turns, merging successive messages of one role."""
    found: list[Any] = []
    for message in messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
        if message["role"] == "tool":
            found.append(["tool", message["tool_call_id"], parts])
            continue
        if message["role"] == "system":
            parts = [part["text"] for part in parts]
        calls = [
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls", ())
        ]
        if found and found[-1][0] == message["role"]:
            found[-1][1] += parts
            found[-1][2] += calls
        else:
            found.append([message["role"], parts, calls])
    for turn in found:
        if turn[0] == "system":
            turn[1] = "\n\n".join(turn[1])
    return found


@given(requests())
def test_a_request_keeps_its_meaning_there_and_back(requested: dict[str, Any]) -> None:
    there, _ = from_chat.translated(requested, max_output=64)
    back, _ = from_messages.translated(json.loads(json.dumps(there)))
    assert meant(back.pop("messages")) == meant(requested["messages"])
    stop = requested.get("stop")
    expected = {**requested, "stop": [stop] if isinstance(stop, str) else stop}
    if "parallel_tool_calls" in requested:
        expected.setdefault("tool_choice", "auto")
    for name in ("model", "messages"):
        del expected[name]
    assert back == {name: value for name, value in expected.items() if value is not None}


def test_an_empty_text_is_no_block() -> None:
    """Anthropic refuses empty blocks, and many tools return nothing."""
    function = {"name": "look", "arguments": "{}"}
    messages = [
        {"role": "system", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "look"}]},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "\n"},
    ]
    sent, _ = from_chat.translated({"messages": messages}, 10)
    assert "system" not in sent
    assert [turn["content"] for turn in sent["messages"]] == [
        [{"type": "text", "text": "look"}],
        [{"type": "tool_use", "id": "1", "name": "look", "input": {}}],
        [{"type": "tool_result", "tool_use_id": "1"}],
    ]


def test_an_empty_message_is_left_out() -> None:
    """Anthropic would refuse it, and every later turn of a conversation that has an empty answer."""
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": ""},
        {"role": "user", "content": "b"},
    ]
    sent, _ = from_chat.translated({"messages": messages}, 9)
    stated = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert sent["messages"] == [{"role": "user", "content": stated}]


def test_ids_of_another_servers_calls_are_made_valid() -> None:
    """A router may send the next turn of another server's conversation to Anthropic."""
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "functions.f:0", "content": "b"},
    ]
    sent, _ = from_chat.translated({"messages": messages}, 9)
    assert [turn["content"][0].get("id") or turn["content"][0].get("tool_use_id") for turn in sent["messages"][1:]] == [
        "functions_f_0",
        "functions_f_0",
    ]


def test_a_turn_of_only_thoughts_has_an_empty_text() -> None:
    """OpenAI refuses a turn without content and calls, and accepts a turn of calls without content."""
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    for blocks, content in (([thought], ""), ([thought, call], None)):
        turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": blocks}]
        request, _ = from_messages.translated({"max_tokens": 1, "messages": turns})
        assert request["messages"][1]["content"] == content
