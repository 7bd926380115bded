"""Patches of vLLM's application: Messages, parsers, finish reasons and statuses, adapters' templates.

Messages: a last message of the assistant is the beginning of the answer, but vLLM would start a new one. vLLM counts
the tokens of `thinking` without passing it to the template. It parses an error in the stream as a piece of the answer,
and would report the failure to parse it instead of the error.

Parsers: see `models.chat.vllm.answers.parser`. A template disables reasoning by ending it in the prompt. In a stream
vLLM checks the prompt; in a complete answer it takes everything as reasoning, unless the request itself has switched
that off.
"""

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from contextvars import ContextVar, copy_context
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

from cachetools import LRUCache

from models.chat.grammars.admission import refusal
from models.chat.requests import sandbox
from models.chat.requests.rendering import TemplateThreads
from models.chat.vllm.answers import required_calls
from models.chat.vllm.answers.parser import whole_answers
from models.messages import THINK
from registry.errors import BadRequest

_ERROR, _DATA = 'data: {"error":', "data: "
CUT = "incomplete"
"""Status in Responses of an answer that the limit of tokens ended, and of the item in which it did."""


TEMPLATE: ContextVar[str] = ContextVar("roundhouse_template", default="")
"""The chat template of a call's adapter; '' for the base's."""
MOST_COMPILED = 32
"""Templates of adapters that are kept compiled."""


def patch_templates(renderer: Any) -> None:
    """Render prompts with the chat template of the call's adapter, if it has one.

    Args:
        renderer: vLLM's OnlineRenderer. All its callers pass the base's template.
    """
    preprocess = renderer.preprocess_chat

    async def preprocess_chat(*arguments: Any, default_template: str | None, **named: Any) -> Any:
        return await preprocess(*arguments, default_template=TEMPLATE.get() or default_template, **named)

    renderer.preprocess_chat = preprocess_chat
    if hasattr(renderer.renderer, "_apply_chat_template_async"):  # others than HfRenderer read no templates
        _isolate_templates(renderer.renderer)


def _isolate_templates(renderer: Any) -> None:
    """Render adapters' own templates in a thread of theirs, in a sandbox. renderer: vLLM's HfRenderer."""
    _bound_templates()
    stock, threads = renderer._apply_chat_template_async, TemplateThreads()
    apply = import_module("vllm.renderers.hf").safe_apply_chat_template

    def apply_async(*arguments: Any, **named: Any) -> Awaitable[Any]:
        own = TEMPLATE.get()
        work = partial(copy_context().run, apply, *arguments, **named)
        return _rendered(threads, own, work) if own else stock(*arguments, **named)

    renderer._apply_chat_template_async = apply_async


def _bound_templates() -> None:
    """Compile adapters' own templates for the sandbox, also where vLLM only reads them."""
    library = vars(import_module("transformers.utils.chat_template_utils"))
    stock, make = library["_compile_jinja_template"], library["_cached_compile_jinja_template"]
    make = getattr(make, "__wrapped__", make)  # without the cache, since the environment is changed
    if hasattr(stock, "bounded"):
        return

    @lru_cache(MOST_COMPILED)
    def bounded(template: str) -> Any:
        return sandbox.bound(make(""), template)

    def compiled(template: str) -> Any:
        return bounded(template) if TEMPLATE.get() else stock(template)

    compiled.bounded = True  # type: ignore[attr-defined]
    library["_compile_jinja_template"] = compiled


async def _rendered(threads: TemplateThreads, template: str, work: Callable[[], Any]) -> Any:
    try:
        return await threads.render(template, work)
    except BadRequest as error:
        raise refusal(error) from None


class BrokenStream(Exception):
    """An error inside a stream with vLLM's message, which vLLM passes on to the client."""


def patch_messages(handler: Any) -> None:
    """Patch the handler for Messages of vLLM's application; None if the model has no Messages."""
    if handler is None:
        return
    create, render = handler.create_chat_completion, handler.render_chat_request

    async def rendered(request: Any, *more: Any, **named: Any) -> Any:
        _as_meant(request, handler)  # a call that only counts the tokens comes here without `created`
        return await render(request, *more, **named)

    async def created(request: Any, *more: Any, **named: Any) -> Any:
        _as_meant(request, handler)
        answer = await create(request, *more, **named)
        if isinstance(answer, AsyncGenerator):
            return _pieces(answer)
        return answer

    handler.create_chat_completion, handler.render_chat_request = created, rendered
    _switch_off_by_template(handler)
    logging.getLogger("vllm.entrypoints.anthropic.serving").addFilter(_is_unknown)


def _switch_off_by_template(handler: Any) -> None:
    """Try for each chat template how it switches thinking off, where vLLM keeps what it found for the first call's."""
    stock, configured = handler._get_disabled_thinking_effort, getattr(handler, "_disabled_thinking_effort", None)
    efforts: LRUCache[str, str] = LRUCache(MOST_COMPILED)

    async def effort() -> str:
        own = TEMPLATE.get()
        if configured is not None or not own:
            found: str = await stock()
            return found
        if own not in efforts:
            efforts[own] = await handler._probe_disabled_thinking_effort()
        return efforts[own]

    handler._get_disabled_thinking_effort = effort


def _as_meant(request: Any, handler: Any) -> None:
    """Continue a begun answer, and switch reasoning on if requested. vLLM does not support this for gpt-oss."""
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
            request.reasoning_effort = "none"  # reasoning would come before the beginning
    elif not import_module("vllm.utils.mistral").is_mistral_tokenizer(handler.online_renderer.renderer.tokenizer):
        request.chat_template_kwargs = {**THINK, **kwargs}


async def _pieces(stream: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    async with aclosing(stream):
        async for piece in stream:
            if piece.startswith(_ERROR):
                raise BrokenStream(json.loads(piece.removeprefix(_DATA))["error"]["message"])
            yield piece


def _is_unknown(record: logging.LogRecord) -> bool:
    """Filter out a record whose cause vLLM has already logged."""
    return not (record.exc_info and isinstance(record.exc_info[1], BrokenStream))


HANDLERS = {
    "openai_serving_chat": "parser_cls", "anthropic_serving_messages": "parser_cls",
    "openai_serving_responses": "parser", "online_renderer": "parser",
}  # fmt: skip
"""Parts of vLLM's application with a parser class, and the attribute that contains it."""


def patch_parsers(state: Any, tool_parser: str) -> None:
    """Patch the parsers. tool_parser: vLLM's name of the call parser; '' for none or one in the recipe's own file."""
    logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)  # logs each text without a call, and a traceback
    required_calls.patch()
    for name, attribute in HANDLERS.items():
        handler = getattr(state, name, None)  # this model may not have it
        if (kind := getattr(handler, attribute, None)) is not None:
            setattr(handler, attribute, whole_answers(prompt_aware(kind), tool_parser))
        if hasattr(handler, "chat_completion_full_generator"):
            _patch_finish(handler)
        if hasattr(handler, "responses_full_generator"):
            _patch_status(handler)


def _patch_finish(handler: Any) -> None:
    """Give a complete answer the finish reason of its stream: calls only if the model stopped by itself."""
    stock = handler.chat_completion_full_generator

    async def full_generator(request: Any, results: AsyncIterator[Any], *arguments: Any, **named: Any) -> Any:
        last: list[Any] = []

        async def seen() -> AsyncGenerator[Any, None]:
            async for result in results:
                last[:] = [result]
                yield result

        answer = await stock(request, seen(), *arguments, **named)
        for choice, output in zip(getattr(answer, "choices", ()), last[0].outputs if last else (), strict=False):
            called = choice.message.tool_calls and output.finish_reason == "stop"
            if choice.finish_reason == "tool_calls" and not called:
                choice.finish_reason = output.finish_reason or "stop"
        return answer

    handler.chat_completion_full_generator = full_generator


def _patch_status(handler: Any) -> None:
    """Mark the item in which an answer of Responses was cut as incomplete, as OpenAI does."""
    stock_full, stock_stream = handler.responses_full_generator, handler.responses_stream_generator

    async def full_generator(*arguments: Any, **named: Any) -> Any:
        answer = await stock_full(*arguments, **named)
        if getattr(answer, "status", None) == CUT and answer.output:
            _mark_cut(answer.output[-1])
        return answer

    async def stream_generator(*arguments: Any, **named: Any) -> AsyncGenerator[Any, None]:
        done: Any = None  # an item's last event, until it is known whether another item follows
        async with aclosing(stock_stream(*arguments, **named)) as events:
            async for event in events:
                if done is not None:
                    if event.type == "response.completed" and event.response.status == CUT:
                        _mark_cut(done.item)
                    yield done
                done = event if event.type == "response.output_item.done" else None
                if done is None:
                    yield event

    handler.responses_full_generator, handler.responses_stream_generator = full_generator, stream_generator


def _mark_cut(item: Any) -> None:
    if item.type in ("message", "reasoning"):  # a call is only sent as one if it is whole
        item.status = CUT


def prompt_aware(kind: Any) -> Any:
    """Return a parser class that reads the prompt. Parsers that cannot tell turns apart are returned unchanged."""
    reasoning = kind.reasoning_parser_cls
    if reasoning is None or not reasoning.engine_based_streaming:
        return kind

    class PromptAwareParser(kind):  # type: ignore[misc]
        def set_prompt_token_ids(self, prompt_token_ids: Sequence[int]) -> None:
            """Take the prompt, which vLLM passes to a parser before a complete answer."""
            super().set_prompt_token_ids(prompt_token_ids)
            if self.is_reasoning_end(list(prompt_token_ids)) and not self.is_reasoning_end([]):
                self.extract_reasoning = _answer_only

    return PromptAwareParser


def _answer_only(model_output: str, _: object) -> tuple[None, str]:
    return None, model_output
