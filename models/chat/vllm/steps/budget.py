"""Shorten steps while an adapter call or a critical request waits, or while prompt logprobs take memory.

On a GPU the step of a long prompt takes 0.2 s. Logprobs take memory for each token of a step times the vocabulary.

| cause                            | maximum tokens of a step          |
|----------------------------------|-----------------------------------|
| a call that moves an adapter     | `batching.tokens_while_swapping`  |
| a request of the class critical  | `batching.tokens_beside_critical` |
| one with `prompt_logprobs`       | `launch.LOGPROBS_BYTES` of them   |

until `LINGER` after the last one, or until its prompt is read. They tend to come in groups; the first of an adapter's
calls may still have to wait for a long step.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any
from weakref import WeakSet

from models.chat.vllm import variables

LINGER = 1.0
"""Seconds."""
CRITICAL = 0
"""vLLM's `priority` of a critical request."""
_one_at_a_time = threading.Lock()


def on_adapter_call(core: Any) -> None:
    """Note an adapter call: on the engine's loop between two steps, or in the thread that receives calls."""
    _shorten(core, variables.SWAP_TOKENS)


def on_request(core: Any, request: Any) -> None:
    """Note a request, in the thread that receives it, before the engine's loop can see it."""
    if request.priority <= CRITICAL:
        _shorten(core, variables.CRITICAL_TOKENS)
    if getattr(getattr(request, "sampling_params", None), "prompt_logprobs", None) is not None:
        with _one_at_a_time:
            core.__dict__.setdefault("roundhouse_telling", WeakSet()).add(request)
        _shorten(core, variables.LOGPROBS_TOKENS)


def _has_unread_prompt(core: Any) -> bool:
    """Return whether a request with prompt logprobs has not been read completely."""
    requests = core.__dict__.get("roundhouse_telling", ())
    return any(
        request.num_computed_tokens < request.num_prompt_tokens and not request.is_finished() for request in requests
    )


def _shorten(core: Any, variable: str) -> None:
    most = os.environ.get(variable)
    if not most:
        return
    with _one_at_a_time:
        scheduler = core.scheduler
        core.__dict__.setdefault("roundhouse_step_tokens", scheduler.max_num_scheduled_tokens)
        scheduler.max_num_scheduled_tokens = min(scheduler.max_num_scheduled_tokens, int(most))
        core.roundhouse_brisk_until = time.monotonic() + LINGER
        if core.__dict__.get("roundhouse_brisk") is None:
            _check_in(core, LINGER)


def _check_in(core: Any, seconds: float) -> None:
    core.roundhouse_brisk = threading.Timer(seconds, _end_if_idle, (core,))
    core.roundhouse_brisk.daemon = True
    core.roundhouse_brisk.start()


def _end_if_idle(core: Any) -> None:
    """Restore the budget if nothing has arrived since.

    At worst a step being scheduled now has fewer tokens than it could.
    """
    with _one_at_a_time:
        if (remaining := core.roundhouse_brisk_until - time.monotonic()) > 0:
            _check_in(core, remaining)
        elif _has_unread_prompt(core):
            _check_in(core, LINGER)
        else:
            core.roundhouse_brisk = None
            core.scheduler.max_num_scheduled_tokens = core.roundhouse_step_tokens
