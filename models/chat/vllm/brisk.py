"""Shorter steps while adapters come, since a call of ours waits for the running one: on a GPU, 0.2 s of a long prefill.

From the first call that stages or places an adapter until `LINGER` after the last one, a step takes fewer tokens, as
the recipe says (`batching.tokens_while_swapping`). Swaps come in crowds: the first of them may still meet a long step.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from models.chat.vllm import process

LINGER = 1.0
"""Seconds."""
_one_at_a_time = threading.Lock()


def adapters_come(core: Any) -> None:
    """Called on the engine's loop, between two steps, or by the thread that takes calls in, for the next step."""
    least = os.environ.get(process.SWAP_TOKENS)
    if least:
        with _one_at_a_time:
            _shorten(core, int(least))


def _shorten(core: Any, least: int) -> None:
    own: int = core.__dict__.setdefault("roundhouse_step_tokens", core.scheduler.max_num_scheduled_tokens)
    core.scheduler.max_num_scheduled_tokens = min(own, least)
    last: threading.Timer | None = core.__dict__.get("roundhouse_brisk")
    if last is not None:
        last.cancel()
    # it may end while a step is put together, which could then have had more tokens than it was given, and no fewer
    core.roundhouse_brisk = threading.Timer(LINGER, _as_ever, (core.scheduler, own))
    core.roundhouse_brisk.daemon = True
    core.roundhouse_brisk.start()


def _as_ever(scheduler: Any, own: int) -> None:
    scheduler.max_num_scheduled_tokens = own
