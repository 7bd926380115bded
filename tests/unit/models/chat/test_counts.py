"""Bounds on a body's contents, which are counted before the engine gets it."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.chat.requests import errors, limits
from models.chat.requests.request import ChatRequest
from registry.bounds import USUAL, Bounds
from registry.errors import BadRequest, TooLarge

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def check(body: dict[str, Any], path: str = CHAT, context: int = 512) -> None:
    limits.check(ChatRequest(path, json.dumps({"model": "m", **body}).encode()), context, USUAL)


@given(st.sampled_from(["stop", "stop_sequences", "tools"]), st.integers(0, 200))
def test_lists_are_bounded(name: str, count: int) -> None:
    body = {name: ["x"] * count}
    most = USUAL.tools if name == "tools" else USUAL.stops
    if count <= most:
        check(body)
        return
    with pytest.raises(BadRequest, match=str(most)) as refused:
        check(body)
    assert (refused.value.param, refused.value.code) == (name, "too_many_entries")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "user", "content": "x"}] * 513}, "messages"),
        ({"input": ["x"] * 513}, "input"),
        ({"input": [{"content": [7] * 257}]}, "input[0].content"),
        ({"input": [{"output": "x"}, {"type": "function_call_output", "output": [7] * 257}]}, "input[1].output"),
        ({"messages": [{"content": "x"}, {"content": [7] * 257}, 5]}, "messages[1].content"),
        ({"messages": [{"content": [7] * 256}] * 17}, "messages[].content"),
        ({"logit_bias": {str(i): 1 for i in range(USUAL.biases + 1)}}, "logit_bias"),
        ({"repetition_detection": {"max_pattern_size": 65}}, "repetition_detection.max_pattern_size"),
        ({"repetition_detection": {"max_pattern_size": "4000"}}, "repetition_detection.max_pattern_size"),
        ({"n": 128, "prompt_logprobs": 2}, "prompt_logprobs"),
        ({"n": 128, "echo": True, "logprobs": 20}, "logprobs"),
        ({"n": 128, "prompt": ["a"] * 300}, "n"),
        ({"n": "128", "prompt": ["a"] * 300}, "n"),
        ({"n": 128.0, "prompt": ["a"] * 300}, "n"),
        ({"n": "128", "prompt_logprobs": "2"}, "prompt_logprobs"),
        ({"n": 128, "echo": "yes", "logprobs": 20}, "logprobs"),
        ({"prompt": [[1]] * 1025}, "prompt"),
        ({"n": 128, "logprobs": True, "top_logprobs": 20, "max_tokens": 480}, "top_logprobs"),
        ({"n": 128, "logprobs": 20, "max_tokens": 10**9}, "logprobs"),
        ({"n": 128, "top_logprobs": 20, "max_tokens": 1, "max_completion_tokens": 480}, "top_logprobs"),
        ({"prompt": ["a"] * 300, "logprobs": 1}, "logprobs"),
        ({"chat_template_kwargs": {str(i): 1 for i in range(2049)}}, "chat_template_kwargs"),
        ({"documents": [{}] * 2049}, "documents"),
        ({"bad_words": ["abc"] * 3000}, "bad_words"),
        ({"n": 128, "prompt_logprobs": -2}, "prompt_logprobs"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ({"kv_transfer_params": {"do_remote_prefill": True}}, "kv_transfer_params"),
        ({"priority": -1}, "priority"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"use_beam_search": 1, "n": 2}, "use_beam_search"),
        ({"use_beam_search": "yes"}, "use_beam_search"),
        ({"request_id": "a\nb"}, "request_id"),
        ({"request_id": "a" * 200}, "request_id"),
        ({"messages": [{"role": "user"}, {"role": "wizard"}]}, "messages[1].role"),
    ],
)
def test_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        check(body)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": role} for role in sorted(limits.ROLES)], "stop": "x" * 5_000, "logit_bias": None},
        {"messages": [{"role": 5}, {}], "logit_bias": 3, "stop": None, "tools": {}, "n": "x", "request_id": 7},
        {"messages": 5, "priority": 0, "kv_transfer_params": None, "request_id": "chatcmpl-1"},
        {"use_beam_search": False, "length_penalty": 1.0},
        {"use_beam_search": None},
        {"n": 128, "prompt_logprobs": 1},
        {"prompt_logprobs": 0, "stream": False},
        {"repetition_detection": {"max_pattern_size": 64, "min_count": 3}},
        {"repetition_detection": [{}]},
        {"n": 12, "logprobs": 20, "prompt": [1] * 5_000, "echo": False, "metadata": None, "bad_words": 5},
        {"n": 128, "logprobs": True, "top_logprobs": 20, "stream": True},
        {"n": 128, "logprobs": True, "top_logprobs": 20, "max_completion_tokens": 50},
        {"n": 128, "logprobs": True},
    ],
)
def test_bodies_within_the_bounds_are_accepted(body: dict[str, Any]) -> None:
    """Values of the wrong type are left to vLLM."""
    check(body)


@pytest.mark.parametrize("value", ["9" * 5_000, "1e999", "null", "[]", "true"])
def test_invalid_numbers_are_left_to_vllm(value: str) -> None:
    """vLLM's errors say what is wrong."""
    body = f'{{"model": "m", "n": {value}, "prompt_logprobs": {value}, "max_tokens": {value}, "request_id": {value}}}'
    request = ChatRequest(CHAT, body.encode())
    limits.check(request, 512, USUAL)
    limits.cut_tokens(request, 512)
    assert request.body == body.encode()


def test_roles_are_checked_only_in_messages() -> None:
    check({"messages": [{"role": "wizard"}]}, TEXT)


def test_the_bytes_of_a_body_are_bounded_by_the_context() -> None:
    limits.check_size(ChatRequest(CHAT, b"x" * (1 << 20)), 512, USUAL)
    limits.check_size(ChatRequest(CHAT, b"x" * (2 << 20)), 1 << 15, USUAL)
    limits.check_size(ChatRequest(CHAT, b"x" * (9 << 20)), 512, USUAL, text_only=False)
    with pytest.raises(TooLarge, match="1048576 bytes"):
        limits.check_size(ChatRequest(CHAT, b"x" * ((1 << 20) + 1)), 512, USUAL)
    with pytest.raises(TooLarge):
        limits.check_size(ChatRequest("/tokenize", b"x" * (1 << 20)), 512, USUAL, text_only=False)


@pytest.mark.parametrize("value", [b"5", b"-1", b"null"])
def test_a_prompt_that_will_be_truncated_is_bounded_too(value: bytes) -> None:
    """It is tokenized as a whole first, which takes 1.2 s and 150 MiB for 1 MB."""
    body = b'{"prompt": "' + b"a " * 400_000 + b'", "truncate_prompt_tokens": ' + value + b"}"
    if value == b"null":
        limits.check_size(ChatRequest(TEXT, body), 512, USUAL)
        return
    with pytest.raises(TooLarge, match="65536 bytes"):
        limits.check_size(ChatRequest(TEXT, body), 512, USUAL)


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "é" * 9_000, "type": "BadRequestError", "param": "x" * 9_000, "code": 400}},
        {"message": "x" * 9_000, "type": "BadRequestError"},
        {"error": {"message": "x", "other": {"a": "b" * 9_000}}},
        {"error": "x" * 9_000},
        ["x" * 9_000],
    ],
)
def test_errors_are_short(error: Any) -> None:
    data = errors.shorten(json.dumps(error).encode())
    assert len(data) <= 4 << 10
    assert json.loads(data)["error"]["message"]


def test_a_short_error_is_unchanged() -> None:
    assert errors.shorten(b'{"error": 1}') == b'{"error": 1}'


@pytest.mark.parametrize("words", errors.ADVICE)
def test_vllms_advice_is_replaced_by_ours(words: bytes) -> None:
    given = {"error": {"message": f'"auto" {words.decode()}', "code": "invalid_value"}}
    reported = json.loads(errors.shorten(json.dumps(given).encode()))
    assert re.search(r"engine\.flags\.|Send several requests\.", reported["error"]["message"])
    assert not re.search(r"--|VLLM_", reported["error"]["message"])
    assert reported["error"]["code"] == "invalid_value"


@pytest.mark.real
def test_vllm_still_has_these_messages() -> None:
    from vllm import sampling_params
    from vllm.entrypoints.generate.base import protocol
    from vllm.multimodal.processing import context
    from vllm.renderers import hf, online_renderer
    from vllm.v1.engine import input_processor

    modules = (hf, online_renderer, input_processor, protocol, sampling_params, context)
    trees = (ast.parse(Path(module.__file__).read_text()) for module in modules)
    stated = [part.value for tree in trees for part in ast.walk(tree) if isinstance(part, ast.Constant)]
    texts = "\n".join(filter(lambda value: isinstance(value, str), stated))
    for words in errors.ADVICE:
        assert words.decode() in texts


def test_our_own_errors_are_short_too() -> None:
    error = BadRequest("é" * 9_000, param="x" * 9_000)
    assert len(error.message.encode()) <= 3_500
    assert len(error.param or "") <= 200


def test_lists_are_bounded_with_a_large_context_too() -> None:
    check({"messages": [{"role": "user", "content": "x"}] * 4_096}, context=131_072)
    with pytest.raises(BadRequest, match="4096"):
        check({"messages": [{"role": "user", "content": "x"}] * 4_097}, context=131_072)


def test_the_servers_own_bounds_apply() -> None:
    bounds = Bounds(tools=1, messages=2, messages_least=1, body_bytes_least=10, body_bytes_per_token=1)
    with pytest.raises(BadRequest, match="up to 1 are taken"):
        limits.check(ChatRequest(CHAT, b'{"tools": [1, 2]}'), 512, bounds)
    with pytest.raises(BadRequest, match="up to 2 are taken"):
        limits.check(ChatRequest(CHAT, b'{"messages": [1, 2, 3]}'), 512, bounds)
    with pytest.raises(TooLarge, match="up to 12 bytes"):
        limits.check_size(ChatRequest(CHAT, b"x" * 13), 12, bounds)


@pytest.mark.parametrize("tokens", [[], [0, 7], [7.0], ["7"], [8, "x"], None, 8, [[8]]])
def test_tokens_of_the_vocabulary_and_malformed_ones_are_left_to_vllm(tokens: Any) -> None:
    """vLLM refuses the malformed ones."""
    limits.check_tokens(ChatRequest("/detokenize", json.dumps({"tokens": tokens}).encode()), 7)


@pytest.mark.parametrize("tokens", [[8], [3, 8.0], ["8"], [8, 1]])
def test_tokens_beyond_the_vocabulary_are_refused(tokens: Any) -> None:
    with pytest.raises(BadRequest, match=r"Token 8 is not .* ends at 7: leave it out") as refused:
        limits.check_tokens(ChatRequest("/detokenize", json.dumps({"tokens": tokens}).encode()), 7)
    assert refused.value.param == "tokens"
