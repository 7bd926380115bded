"""A short prompt's way to its tokens without threads, and without what only matters at a port.

vLLM hands the chat template and the tokenizer to a thread each, and waits for it: right for a long prompt, which would
keep the loop from the streams. A short one takes less time than the hand-overs there and back, which also wait for
a free core. Its application's middleware is for browsers and for metrics that nobody reads here.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

SHORT = 2048
"""Characters of a prompt up to which template and tokenizer run on the loop: 0.4 ms for both
(starter-chat, Sapphire Rapids)."""
PER_TEXT = 32
"""Characters that a text counts for beside its own: a template has work with each."""


def shorten(renderer: Any) -> None:
    """Let vLLM's renderer work on the loop where the prompt is short. Safe to call again.

    A renderer of another kind than Hugging Face's, or of a vLLM that has other names, stays as it is.
    """
    threaded = getattr(renderer, "_tokenize_prompt_async", None)
    if threaded is None or isinstance(threaded, OnLoop):
        return
    renderer._tokenize_prompt_async = OnLoop(renderer._tokenize_prompt, threaded, _short_prompt)
    if type(renderer).__name__ == "HfRenderer":
        apply = import_module("vllm.renderers.hf").safe_apply_chat_template
        threaded = renderer._apply_chat_template_async
        renderer._apply_chat_template_async = OnLoop(apply, threaded, _short_conversation)


def bare(app: Any) -> None:
    """Take the middleware from vLLM's application: nothing comes to it but what the gateway has let through.

    vLLM has put the stack together by then (for SageMaker); the application makes another at its first request.
    """
    app.user_middleware.clear()
    app.middleware_stack = None


class OnLoop:
    """Instead of `threaded`: calls `work` at once where `short` says so of the same arguments."""

    def __init__(
        self, work: Callable[..., Any], threaded: Callable[..., asyncio.Future[Any]], short: Callable[..., bool]
    ) -> None:
        self._work, self._threaded, self._short = work, threaded, short

    def __call__(self, *args: Any, **named: Any) -> "asyncio.Future[Any]":
        if not self._short(*args, **named):
            return self._threaded(*args, **named)
        done = asyncio.get_running_loop().create_future()
        try:
            done.set_result(self._work(*args, **named))
        except Exception as error:
            done.set_exception(error)
        return done


def _short_prompt(prompt: Mapping[str, Any], _params: object) -> bool:
    return len(prompt["prompt"]) <= SHORT


def _short_conversation(
    _config: object, _tokenizer: object, conversation: Sequence[Mapping[str, Any]], **named: Any
) -> bool:
    """Plain text of a few messages. Tools are written into the prompt, too: however many, they go to the thread."""
    if named.get("tools"):
        return False
    left = SHORT
    for message in conversation:
        content = message.get("content") or ""
        for part in [content] if isinstance(content, str) else content:
            text = part.get("text") if isinstance(part, Mapping) else part
            left -= len(text) + PER_TEXT if isinstance(text, str) else SHORT
        if left < 0:
            return False
    return True
