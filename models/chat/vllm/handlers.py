"""Patches of the handlers of vLLM's application: Messages that are begun or cut, and thoughts that a prompt has ended.

Messages: the assistant's last message is the beginning of the answer; vLLM would begin another one. vLLM counts the
tokens of `thinking` without passing it to the template. It reads a call's arguments as JSON, and refuses the whole
answer with a 400 when `max_tokens` cut them, where Anthropic answers. It reads an error in the stream as a piece of the
answer, and would describe a fault of that reading instead of what broke.

Thoughts: a template says that a model is not to think by ending the thoughts in the prompt. In a stream vLLM looks at
the prompt; of an answer in one piece it takes everything for a thought, unless the request itself switched them off.
"""

import json
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from importlib import import_module
from typing import Any

from pydantic_core import from_json

from models.messages import THINK

_ERROR, _DATA = 'data: {"error":', "data: "


class BrokenStream(Exception):
    """An error inside a stream, in vLLM's words, which vLLM passes on to the client."""


def patch_messages(handler: Any) -> None:
    """The handler of vLLM's application; None: this model has no Messages."""
    if handler is None:
        return
    create = handler.create_chat_completion

    async def created(request: Any, *more: Any, **named: Any) -> Any:
        _as_meant(request, handler)
        answer = await create(request, *more, **named)
        if isinstance(answer, AsyncGenerator):
            return _pieces(answer)
        for choice in getattr(answer, "choices", ()):  # none: it is an error
            _mend(choice)
        return answer

    handler.create_chat_completion = created
    logging.getLogger("vllm.entrypoints.anthropic.serving").addFilter(_is_unknown)


def _as_meant(request: Any, handler: Any) -> None:
    """Continue a begun answer, and switch thinking on where it is requested. vLLM has no such ways for gpt-oss."""
    if not request.messages:  # vLLM refuses it
        return
    last, kwargs = request.messages[-1], request.chat_template_kwargs or {}
    begun = last["role"] == "assistant" and last.get("content") and not last.get("tool_calls")
    thinks = request.thinking_token_budget is not None and request.reasoning_effort is None
    if not (begun or thinks) or handler.online_renderer.use_harmony:
        return
    if begun:
        request.add_generation_prompt, request.continue_final_message = False, True
        if handler.parser_cls is not None and handler.parser_cls.reasoning_parser_cls is not None:
            request.reasoning_effort = "none"  # thoughts would come before the beginning
    elif not import_module("vllm.utils.mistral").is_mistral_tokenizer(handler.online_renderer.renderer.tokenizer):
        request.chat_template_kwargs = {**THINK, **kwargs}


async def _pieces(stream: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    async with aclosing(stream):
        async for piece in stream:
            if piece.startswith(_ERROR):
                raise BrokenStream(json.loads(piece.removeprefix(_DATA))["error"]["message"])
            yield piece


def _is_unknown(record: logging.LogRecord) -> bool:
    """vLLM has logged the cause before."""
    return not (record.exc_info and isinstance(record.exc_info[1], BrokenStream))


def _mend(choice: Any) -> None:
    """Repair calls that were cut.

    Arguments that `max_tokens` cut become what is whole of them, and the finish reason says so: vLLM writes
    "tool_calls" where the model chose the call. A call that a stop sequence cut is removed: its client would run it.
    Arguments of a tool without parameters may be empty.
    """
    calls = choice.message.tool_calls
    for call in [call for call in calls if not _whole(call.function.arguments)]:
        if isinstance(choice.stop_reason, str):
            calls.remove(call)
            continue
        if call.function.arguments:
            choice.finish_reason = "length"
        call.function.arguments = json.dumps(_read(call.function.arguments))


def _whole(arguments: str) -> bool:
    try:
        json.loads(arguments)
    except ValueError:
        return False
    return True


def _read(arguments: str) -> dict[str, Any]:
    try:
        value = from_json(arguments, allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


HANDLERS = {
    "openai_serving_chat": "parser_cls", "anthropic_serving_messages": "parser_cls",
    "openai_serving_responses": "parser",
}  # fmt: skip
"""Handlers of vLLM's application, and the attribute of each that holds its parser class."""


def patch_reasoning(state: Any) -> None:
    for name, attribute in HANDLERS.items():
        handler = getattr(state, name, None)  # this model may not have it
        if (kind := getattr(handler, attribute, None)) is not None:
            setattr(handler, attribute, prompt_aware(kind))


def prompt_aware(kind: Any) -> Any:
    """A parser class that reads the prompt. Those that cannot tell one turn from the next stay."""
    reasoning = kind.reasoning_parser_cls
    if reasoning is None or not reasoning.engine_based_streaming:
        return kind

    class PromptAwareParser(kind):  # type: ignore[misc]
        def set_prompt_token_ids(self, prompt_token_ids: Sequence[int]) -> None:
            """vLLM tells a parser of the prompt before an answer in one piece."""
            super().set_prompt_token_ids(prompt_token_ids)
            if self.is_reasoning_end(list(prompt_token_ids)) and not self.is_reasoning_end([]):
                self.extract_reasoning = _answer_only

    return PromptAwareParser


def _answer_only(model_output: str, _: object) -> tuple[None, str]:
    return None, model_output
