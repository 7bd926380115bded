"""Pieces of parallel tool calls are ordered as clients of Messages and Responses expect."""

import pytest

from routing.providers.pass_through import BadAnswer
from routing.providers.translation.call_order import OrderedCalls
from routing.providers.translation.completions import ChatToolCall, ToolFunction


def piece(index: int, arguments: str, name: str | None = None) -> ChatToolCall:
    return ChatToolCall(index, None if name is None else f"id-{name}", ToolFunction(name, arguments))


def taken(calls: OrderedCalls, call: ChatToolCall) -> list[tuple[int, str]]:
    return [(piece.index, piece.function.arguments_text) for piece in calls.take(call)]


def test_a_call_waits_until_the_one_before_it_is_complete() -> None:
    calls = OrderedCalls()
    assert taken(calls, piece(0, '{"a":', "f")) == [(0, '{"a":')]
    assert taken(calls, piece(1, "{", "g")) == []
    assert taken(calls, piece(1, "}")) == []
    assert taken(calls, piece(0, "1}")) == [(0, "1}"), (1, "{}")]
    with pytest.raises(BadAnswer):
        taken(calls, piece(0, "more"))


def test_a_call_does_not_wait_for_one_that_was_ended_by_text() -> None:
    calls = OrderedCalls()
    assert taken(calls, piece(0, "", "f")) == [(0, "")]
    calls.words()
    assert taken(calls, piece(1, "{", "g")) == [(1, "{")]
    assert taken(calls, piece(0, " ")) == [], "a blank piece of an ended call changes nothing"
    assert calls.begun


def test_a_call_waits_for_its_name() -> None:
    calls = OrderedCalls()
    assert taken(calls, piece(0, "{")) == []
    assert taken(calls, piece(0, "}", "f")) == [(0, "{}")]
    assert list(calls.rest()) == []
