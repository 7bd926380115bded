"""A translated stream, accumulated by the vendor's SDK, equals the translation of the complete answer."""

import json
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

from models import sse
from registry.recipes.provider import Surface
from routing.providers.pass_through import ErrorEvent, PassThrough
from routing.providers.plan import Translator
from routing.providers.translation import chat_answers
from routing.providers.translation.chat_answers import REASONS, AnthropicUsage, ChatAnswers
from routing.providers.translation.message_answers import MessageAnswers
from routing.providers.translation.response_answers import ResponseAnswers

Json = dict[str, Any]
EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
texts = st.text(min_size=1, max_size=6)
pieces = st.lists(texts, min_size=1, max_size=3)
inputs = st.just({}) | st.dictionaries(texts, st.integers() | texts | st.lists(st.none()), max_size=2)
counts = st.integers(0, 99)


def translated(translator: Translator, surface: Surface, events: list[bytes]) -> Iterator[bytes]:
    """Yield a client's stream like `routing.providers.call`."""
    passing = PassThrough(surface, "there/big", wants_usage=True)
    for event in events:
        if (passed := passing.take(event)) is not None:
            yield translator.event(passed)
    passing.at_end()
    yield translator.end()


def datas(stream: bytes) -> list[bytes]:
    return [data for event in sse.Splitter(2**20).feed(stream) if (data := sse.data_of(event)) != sse.DONE]


def cut(draw: st.DrawFn, text: str) -> list[str]:
    """Cut a text into up to three pieces, which may be empty."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=2)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


# --- Anthropic's events as OpenAI's chunks ---------------------------------------------------------------------------
UNKNOWN: list[Json] = [
    {"type": "ping"},
    {"type": "news", "index": "first", "delta": "words", "usage": [], "message": 7, "content_block": None},
]


@st.composite
def answers(draw: st.DrawFn) -> tuple[Json, list[Json]]:
    """Return a message and the events of its stream. Successive tool calls may be interleaved."""
    blocks: list[Json] = []
    groups: list[list[list[Json]]] = []
    """The events of each block, in groups of blocks whose events may be interleaved."""
    for kind in draw(st.lists(st.sampled_from(["text", "thinking", "tool_use", "unknown"]), max_size=5)):
        index = len(blocks)
        match kind:
            case "text":
                stated = draw(pieces)
                first = draw(st.just("") | texts)
                deltas = [{"type": "text_delta", "text": piece} for piece in stated]
                blocks.append({"type": "text", "text": "".join([first, *stated])})
                begun: Json = {"type": "text", "text": first}
            case "thinking":
                stated = draw(pieces)
                deltas = [{"type": "thinking_delta", "thinking": piece} for piece in stated]
                deltas.append({"type": "signature_delta", "signature": "s"})
                blocks.append({"type": "thinking", "thinking": "".join(stated), "signature": "s"})
                begun = {"type": "thinking", "thinking": "", "signature": ""}
            case "tool_use":
                named = {"type": "tool_use", "id": f"toolu_{index}", "name": draw(texts)}
                given_ = draw(inputs)
                whole = json.dumps(given_) if given_ or draw(st.booleans()) else ""
                deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in cut(draw, whole)]
                blocks.append({**named, "input": given_})
                begun = {**named, "input": {}}
            case _:
                begun = {"type": "news", "text": None, "name": 7}
                deltas = [{"type": "news_delta", "text": 7}, {"type": "input_json_delta", "partial_json": "{"}]
                blocks.append(begun)
        events = [
            {"type": "content_block_start", "index": index, "content_block": begun},
            *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": index},
        ]
        if groups and kind == "tool_use" and blocks[index - 1]["type"] == "tool_use":
            groups[-1].append(events)
        else:
            groups.append([events])
    usage = {
        "input_tokens": draw(counts),
        "output_tokens": draw(counts),
        "cache_creation_input_tokens": draw(counts),
        "cache_read_input_tokens": draw(counts),
    }
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "big"}
    ended = {"stop_reason": draw(st.sampled_from([*REASONS, "news"])), "stop_sequence": None}
    reported = [{"type": "message_start", "message": {**head, "content": [], "usage": {**usage, "output_tokens": 1}}}]
    for group in groups:
        reported += [events.pop(0) for events in group]  # blocks begin in order
        while rest := [events for events in group if events]:
            reported.append(draw(st.sampled_from(rest)).pop(0))
    reported.append({"type": "message_delta", "delta": ended, "usage": {"output_tokens": usage["output_tokens"]}})
    for event in draw(st.lists(st.sampled_from(UNKNOWN), max_size=3)):
        reported.insert(draw(st.integers(1, len(reported))), event)
    return {**head, "content": blocks, **ended, "usage": usage}, [*reported, {"type": "message_stop"}]


def put_together(stream: bytes) -> ChatCompletion:
    state = ChatCompletionStreamState()
    for data in datas(stream):
        state.handle_chunk(ChatCompletionChunk.model_validate_json(data))
    return state.current_completion_snapshot


def stated(answer: ChatCompletion) -> Any:
    (choice,) = answer.choices
    calls = [
        (call.id, call.type, call.function.name, json.loads(call.function.arguments))
        for call in choice.message.tool_calls or ()
        if call.type == "function"
    ]
    thought = getattr(choice.message, "reasoning", None)
    assert thought == getattr(choice.message, "reasoning_content", None)
    usage = answer.usage.model_dump(exclude_unset=True) if answer.usage else None
    words = (choice.message.role, choice.message.content or None, thought or None)
    return answer.id, answer.model, *words, calls, choice.finish_reason, usage


def events_of(reported: list[Json]) -> list[bytes]:
    return [sse.event(event, event["type"]) for event in reported]


@given(answers())
def test_anthropics_stream_for_openais_client_equals_the_complete_answer(answer: tuple[Json, list[Json]]) -> None:
    message, reported = answer
    whole = ChatAnswers(wants_usage=True).whole(msgspec.json.encode({**message, "model": "there/big"}))
    stream = b"".join(translated(ChatAnswers(wants_usage=True), Surface.MESSAGES, events_of(reported)))
    assert stated(put_together(stream)) == stated(ChatCompletion.model_validate_json(whole))


@given(answers(), st.data())
def test_a_stream_is_correct_until_an_error_ends_it(answer: tuple[Json, list[Json]], data: st.DataObject) -> None:
    _, reported = answer
    place = data.draw(st.integers(0, len(reported) - 1))
    failed = [*reported[:place], {"type": "error", "error": {"type": "overloaded_error", "message": "no luck"}}]
    right = [datas(part) for part in translated(ChatAnswers(wants_usage=True), Surface.MESSAGES, events_of(reported))]
    parts = translated(ChatAnswers(wants_usage=True), Surface.MESSAGES, events_of(failed))
    assert [_ageless(datas(next(parts))) for _ in range(place)] == [_ageless(part) for part in right[:place]]
    with pytest.raises(ErrorEvent):
        next(parts)


def _ageless(chunks: list[bytes]) -> list[Json]:
    return [{**json.loads(chunk), "created": 0} for chunk in chunks]


# --- OpenAI's chunks as Anthropic's events ---------------------------------------------------------------------------
@st.composite
def completions(draw: st.DrawFn) -> tuple[Json, list[Json]]:
    thought, words = draw(st.lists(texts, max_size=2)), draw(st.lists(texts, max_size=3))
    field = draw(st.sampled_from(["content", "refusal"]))
    thoughts = draw(st.sampled_from(["reasoning", "reasoning_content"]))
    spoken: Json = {"role": "assistant", field: "".join(words) or None, thoughts: "".join(thought) or None}
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    deltas += [{thoughts: piece} for piece in thought] + [{field: piece} for piece in words]
    calls, parts = [], list[list[Json]]()
    for index, (name, given_) in enumerate(draw(st.lists(st.tuples(texts, inputs), max_size=3))):
        whole = json.dumps(given_) if given_ or draw(st.booleans()) else ""
        first, *rest = cut(draw, whole)
        named = {"id": f"call_{index}", "type": "function"}
        calls.append({**named, "function": {"name": name, "arguments": whole}})
        begun = {"tool_calls": [{"index": index, **named, "function": {"name": name, "arguments": first}}]}
        parts.append([begun, *({"tool_calls": [{"index": index, "function": {"arguments": one}}]} for one in rest)])
    interleaved = draw(st.booleans())
    if interleaved:  # calls begin in order
        deltas += [pieces.pop(0) for pieces in parts]
    while left := [pieces for pieces in parts if pieces]:
        deltas.append((draw(st.sampled_from(left)) if interleaved else left[0]).pop(0))
    if calls:
        spoken["tool_calls"] = calls
    reason = draw(st.sampled_from(["stop", "length", "content_filter", *(["tool_calls"] if calls else [])]))
    prompt, output = draw(counts), draw(counts)
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "prompt_tokens_details": draw(
            st.none() | st.builds(dict, cached_tokens=st.integers(0, prompt), cache_write_tokens=st.integers(0, prompt))
        ),
    }
    head = {"id": "chatcmpl-1", "model": "big"}
    chunks = [{**head, "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    last: Json = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    with_last = draw(st.booleans())
    chunks += [{**last, "usage": usage}] if with_last else [last, {**head, "choices": [], "usage": usage}]
    choice = {"index": 0, "message": spoken, "finish_reason": reason}
    return {**head, "choices": [choice], "usage": usage}, chunks


@given(completions())
def test_openais_stream_for_anthropics_client_equals_the_complete_answer(answer: tuple[Json, list[Json]]) -> None:
    completion, chunks = answer
    whole = MessageAnswers().whole(msgspec.json.encode({**completion, "model": "there/big"}))
    events = [*(sse.event(chunk) for chunk in chunks), sse.DONE_EVENT]
    stream = b"".join(translated(MessageAnswers(), Surface.CHAT, events))
    message, buffers = None, dict[int, bytes]()
    reported = [EVENT.validate_json(data) for data in datas(stream)]
    for event in reported:
        message = accumulate_event(event=event, current_snapshot=message, json_bufs=buffers)
    assert message
    expected = Message.model_validate_json(whole)
    fields = ("id", "model", "role", "type", "content", "stop_reason", "stop_sequence", "usage")
    found = cast(Message, message).model_dump(include=set(fields), exclude_none=True)
    assert found == expected.model_dump(include=set(fields), exclude_none=True)
    opened = [event.index for event in reported if event.type == "content_block_start"]
    assert (
        [event.index for event in reported if event.type == "content_block_stop"] == opened == list(range(len(opened)))
    )


def test_usage_without_a_cache_is_the_sum_of_prompt_and_answer() -> None:
    assert chat_answers.usage(AnthropicUsage(input_tokens=5, output_tokens=2)) == {
        "prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    }  # fmt: skip
    assert chat_answers.usage(AnthropicUsage())["total_tokens"] == 0


@pytest.mark.parametrize(("reason", "is_completed"), [("stop", True), ("length", False)])
def test_only_a_complete_response_has_completed_at(reason: str, is_completed: bool) -> None:
    choice = {"index": 0, "message": {"content": "x"}, "finish_reason": reason}
    found = json.loads(ResponseAnswers({}).whole(json.dumps({"model": "big", "choices": [choice]}).encode()))
    assert (found["status"], found["completed_at"] is not None) == (
        ("completed", True) if is_completed else ("incomplete", False)
    )


def test_the_total_of_a_response_is_the_sum_of_prompt_and_answer() -> None:
    choice = {"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}
    counted = {"prompt_tokens": 5, "completion_tokens": 2}
    found = json.loads(ResponseAnswers({}).whole(json.dumps({"choices": [choice], "usage": counted}).encode()))
    assert found["usage"]["total_tokens"] == 7
    assert found["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}


def test_an_answer_without_text_has_an_empty_one_unless_it_calls_tools() -> None:
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    for blocks, content in (([], ""), ([call], None)):
        answer = json.dumps({"id": "msg", "model": "big", "content": blocks, "stop_reason": "end_turn"}).encode()
        found = json.loads(ChatAnswers(wants_usage=False).whole(answer))
        assert found["choices"][0]["message"]["content"] == content
