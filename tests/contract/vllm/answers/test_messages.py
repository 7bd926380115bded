"""Anthropic's messages, which vLLM converts from chat completions, with and without our patch."""

import json
import logging
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from models.chat.vllm import handlers

pytestmark = pytest.mark.real
BROKEN = {"error": {"message": "it broke", "type": "InternalServerError", "param": None, "code": 500}}


async def converted(answer: Any, *, patched: bool = True) -> Any:
    """Convert an answer of Chat Completions."""
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    async def create(*_: Any) -> Any:
        return answer

    handler: Any = object.__new__(AnthropicServingMessages)
    handler._merge_inline_system, handler.create_chat_completion = False, create
    if patched:
        handlers.patch_messages(handler)
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    return await handler.create_messages(AnthropicMessagesRequest.model_validate(body))


def called(arguments: str, finish: str = "length", stop: str | None = None) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse

    call = {"id": "c", "type": "function", "function": {"name": "set_light", "arguments": arguments}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": finish, "stop_reason": stop}
    usage = {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1}
    return ChatCompletionResponse.model_validate({"id": "x", "model": "m", "choices": [choice], "usage": usage})


@pytest.mark.parametrize(
    ("finish", "stop", "reason"),
    [("stop", None, "tool_use"), ("tool_calls", "n", "tool_use"), ("length", None, "max_tokens")],
)
async def test_a_call_is_converted_with_its_stop_reason(finish: str, stop: str | None, reason: str) -> None:
    answer = await converted(called('{"state": "on"}', finish, stop))
    assert answer.stop_reason == reason
    assert [(block.type, block.name, block.input) for block in answer.content] == [
        ("tool_use", "set_light", {"state": "on"}),
    ]  # fmt: skip


async def passed_on(body: dict[str, Any], *, thinks: bool, harmony: bool = False, mistral: bool = False) -> Any:
    """Return the request of Chat Completions that a message is converted to."""
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.tokenizers.mistral import MistralTokenizer

    received: list[Any] = []

    async def create(request: Any, _: Any = None) -> Any:
        received.append(request)
        return called('{"state": "on"}')

    handler: Any = object.__new__(AnthropicServingMessages)
    handler._merge_inline_system, handler.create_chat_completion = False, create
    tokenizer = object.__new__(MistralTokenizer) if mistral else None
    handler.online_renderer = SimpleNamespace(use_harmony=harmony, renderer=SimpleNamespace(tokenizer=tokenizer))
    handler.parser_cls = SimpleNamespace(reasoning_parser_cls=object if thinks else None)
    handlers.patch_messages(handler)
    await handler.create_messages(AnthropicMessagesRequest.model_validate({"model": "m", "max_tokens": 2048, **body}))
    (request,) = received
    return request


TEXT = [{"type": "text", "text": "It is "}]
CALL = [{"type": "tool_use", "id": "c", "name": "set_light", "input": {}}]


@pytest.mark.parametrize(
    ("last", "thinks", "harmony", "goes_on", "effort"),
    [
        ({"role": "user", "content": "x"}, True, False, False, None),
        ({"role": "assistant", "content": "It is "}, False, False, True, None),
        ({"role": "assistant", "content": TEXT}, True, False, True, "none"),
        ({"role": "assistant", "content": CALL}, True, False, False, None),
        ({"role": "assistant", "content": "It is "}, True, True, False, None),
    ],
)
async def test_an_answer_continues_the_assistants_last_message(
    last: dict[str, Any], thinks: bool, harmony: bool, goes_on: bool, effort: str | None
) -> None:
    """vLLM would begin a new one. Calls cannot be continued, and vLLM cannot continue gpt-oss's answers."""
    converted = await passed_on({"messages": [{"role": "user", "content": "x"}, last]}, thinks=thinks, harmony=harmony)
    assert (converted.continue_final_message, converted.add_generation_prompt) == (goes_on, not goes_on)
    assert converted.reasoning_effort == effort


@pytest.mark.parametrize("order", [("", "own", ""), ("own", "", "own")])
@pytest.mark.parametrize("configured", [None, "medium"])
async def test_each_chat_template_switches_thinking_off_in_its_own_way(
    order: tuple[str, ...], configured: str | None
) -> None:
    """vLLM tries it once, with the template of the first call: that of an adapter would decide for all others."""
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    received: list[Any] = []

    async def create(request: Any, _: Any = None) -> Any:
        received.append(request.reasoning_effort)
        return called('{"state": "on"}')

    async def prompt(effort: str) -> str:
        return effort if handlers.TEMPLATE.get() else "the base knows no effort"

    handler: Any = object.__new__(AnthropicServingMessages)
    handler._merge_inline_system, handler.create_chat_completion = False, create
    handler._disabled_thinking_effort, handler._render_probe_prompt = configured, prompt
    handlers.patch_messages(handler)
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "x"}],
        "thinking": {"type": "disabled"},
    }
    for template in order:
        handlers.TEMPLATE.set(template)
        await handler.create_messages(AnthropicMessagesRequest.model_validate(body))
    assert received == [configured or ("none" if template else "low") for template in order]


@pytest.mark.parametrize(
    ("more", "mistral", "expected_kwargs"),
    [
        ({}, False, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, False, {"enable_thinking": True, "thinking": True}),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            True,
            None,
        ),  # Mistral's tokenizer has no such arguments
        ({"thinking": {"type": "adaptive"}}, False, None),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}, "chat_template_kwargs": {"thinking": "deep"}},
            False,
            {"enable_thinking": True, "thinking": "deep"},
        ),
    ],
)
async def test_requested_thinking_is_switched_on(
    more: dict[str, Any], mistral: bool, expected_kwargs: dict[str, Any] | None
) -> None:
    """Templates of Granite, DeepSeek V3.1 and small Qwen3.5 need it, or the model does not think at all."""
    converted = await passed_on({"messages": [{"role": "user", "content": "x"}], **more}, thinks=True, mistral=mistral)
    assert converted.chat_template_kwargs == expected_kwargs


async def stream(*more: dict[str, Any]) -> AsyncGenerator[str, None]:
    piece = {"index": 0, "delta": {"role": "assistant", "content": ""}}
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    for data in (chunk | {"choices": [piece], "usage": usage}, *more):
        yield f"data: {json.dumps(data, separators=(',', ':'))}\n\n"
    yield "data: [DONE]\n\n"


async def events(answer: Any) -> list[dict[str, Any]]:
    return [json.loads(event.partition("data: ")[2]) async for event in answer]


async def test_a_broken_stream_ends_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        found = await events(await converted(stream(BROKEN)))
    assert [event["type"] for event in found] == ["message_start", "error"]
    assert found[-1]["error"]["message"] == "it broke"
    assert caplog.records == []
    assert [event["type"] for event in await events(await converted(stream()))] == ["message_start", "message_stop"]


async def test_vllm_still_needs_the_patch() -> None:
    """If this fails, the patch can go."""
    found = await events(await converted(stream(BROKEN), patched=False))
    assert "validation errors" in found[-1]["error"]["message"]


async def test_an_error_and_a_model_without_messages_are_left_as_they_are() -> None:
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

    error = create_error_response("no")
    assert await converted(error) is error
    handlers.patch_messages(None)
