"""Limits of tokens beyond the context are cut to it, with a warning."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.chat.requests import limits
from models.chat.requests.request import CHAT, MESSAGES, ChatRequest
from registry.recipes.definition import Recipe

NUMBERS = st.dictionaries(
    st.sampled_from(limits.TOKEN_FIELDS), st.integers(-5, 2**70) | st.none() | st.text() | st.booleans()
)


@given(NUMBERS, st.integers(16, 10**6))
def test_only_larger_numbers_are_cut(requested: dict[str, object], most: int) -> None:
    body = {"model": "m", "messages": [{"content": "é"}], **requested}
    request = ChatRequest(CHAT, json.dumps(body).encode())
    limits.cut_tokens(request, most)
    after = json.loads(request.body)
    expected = {k: min(v, most) if isinstance(v, int) and not isinstance(v, bool) else v for k, v in requested.items()}
    assert after == {**body, **expected}


def test_a_body_with_a_smaller_number_is_unchanged() -> None:
    body = b'{ "max_tokens":  512, "x": 1e400 }'
    request = ChatRequest(CHAT, body)
    limits.cut_tokens(request, 512)
    assert request.body is body


@pytest.mark.parametrize(
    ("path", "length", "budget", "expected"),
    [
        (MESSAGES, 32_000, 31_999, 8_191),  # Claude Code's
        (MESSAGES, 32_000, 8_192, 8_191),
        (MESSAGES, 32_000, 8_000, 8_000),
        (MESSAGES, 32_000, 32_000, 32_000),  # which Anthropic's API refuses, too
        (MESSAGES, 8_192, 9_000, 9_000),
        (CHAT, 32_000, 31_999, 31_999),
    ],
)
def test_a_budget_of_thinking_is_cut_with_the_length_of_the_answer(
    path: str, length: int, budget: int, expected: int
) -> None:
    thinking = {"type": "enabled", "budget_tokens": budget}
    request = ChatRequest(path, json.dumps({"max_tokens": length, "thinking": thinking}).encode())
    limits.cut_tokens(request, 8_192)
    assert json.loads(request.body) == {"max_tokens": 8_192, "thinking": {**thinking, "budget_tokens": expected}}


@pytest.mark.parametrize(
    ("body", "allowed", "expected_warning"),
    [
        (b'{"max_tokens": 1000}', 490, "max_tokens was cut from 1000 to 490: the context has no room for more"),
        (b'{"max_output_tokens": 1000}', 1000, ""),
        (b'{"max_completion_tokens": 100, "max_tokens": 9}', 9, ""),
        (b"{}", 490, ""),
        (b'{"max_tokens": 1000}', None, ""),
    ],
)
def test_a_warning_says_what_was_cut(body: bytes, allowed: int | None, expected_warning: str) -> None:
    assert limits.cut_warning(limits.token_limits(ChatRequest(CHAT, body)), allowed) == expected_warning


def test_only_chat_models_have_it() -> None:
    recipe = {"id": "m", "version": 1, "source": {"path": "x"}, "on_too_many_tokens": "refuse"}
    assert Recipe.model_validate({**recipe, "task": "chat", "engine": {"name": "vllm"}}).on_too_many_tokens == "refuse"
    with pytest.raises(ValueError, match="only task chat"):
        Recipe.model_validate({**recipe, "task": "embed", "engine": {"name": "sentence-transformers"}})
