"""Limit requests of class batch to a small part of a step, or none, while the engine has requests of a higher class.

vLLM's bound on a prompt's part of a step (`long_prefill_token_threshold`) is the same for all requests. So prompts of
class batch are cut where vLLM decides how many tokens of each request a step processes.

| the engine has                   | tokens of class batch prompts per step, together                        | answers |
|----------------------------------|-------------------------------------------------------------------------|---------|
| only requests of that class      | unlimited                                                               | continue|
| a request of a higher class      | a sixteenth of `max_num_batched_tokens`, at most half of a shorter step | continue|
| a higher one with unread prompt  | none                                                                    | wait    |

So a step has room for the prompt of a higher class, and a stream's next token comes soon. The rest of a cut prompt
follows in later steps. Prompts are not cut where vLLM does not cut them or only at certain positions: with images or
audio, and between the blocks of a Mamba.

The last row is for people's first tokens: on a CPU a step with thirty answers to batch lines takes twice as long as one
without them, and the slot would pass on thirty tokens before that prompt's first one. Answers wait for at most
`MOST_PAUSES` steps in a row, and then for every other step: each step with the class allows one more without it.
"""

from __future__ import annotations

from typing import Any

BATCH = 2
"""vLLM's `priority` of the class batch (`tenants.caller.ServiceClass`)."""
PART = 16
LEAST = 16
"""Tokens below which a cut is not worthwhile. A decoding step has fewer, even with speculation."""
MOST_PAUSES = 16
"""Maximum steps in a row without class batch."""


def patch(scheduler: Any) -> None:
    """Limit class batch in each step. scheduler: vLLM's Scheduler."""
    own = scheduler._reserve_prefill_lookahead

    def reserve(self: Any, request: Any, num_computed_tokens: int, num_new_tokens: int) -> Any:
        if request.priority >= BATCH:
            if _is_paused(self):
                return 0
            if num_new_tokens > LEAST and _may_be_cut(self, request):
                num_new_tokens = _take(self, num_new_tokens)
        return own(self, request, num_computed_tokens, num_new_tokens)

    scheduler._reserve_prefill_lookahead = reserve


def _is_paused(scheduler: Any) -> bool:
    """Return whether requests of class batch are paused for the next step."""
    step, is_paused, left = scheduler.__dict__.get("roundhouse_batch_pause", (None, False, MOST_PAUSES))
    if step != scheduler.current_step:
        is_paused = left > 0 and any(
            one.priority < BATCH and one.num_computed_tokens < one.num_prompt_tokens
            for one in scheduler.requests.values()
        )
        left = left - 1 if is_paused else min(MOST_PAUSES, left + 1)
        scheduler.roundhouse_batch_pause = scheduler.current_step, is_paused, left
    return bool(is_paused)


def _may_be_cut(scheduler: Any, request: Any) -> bool:
    is_whole = scheduler.need_mamba_block_aligned_split or request.has_encoder_inputs
    return bool(scheduler.scheduler_config.enable_chunked_prefill and not is_whole)


def _take(scheduler: Any, tokens: int) -> int:
    """Return how many of its tokens for this step a prompt may use; 0 to wait for the next step."""
    step, left = scheduler.__dict__.get("roundhouse_batch_tokens", (None, 0))
    if step != scheduler.current_step:
        left = _share(scheduler)
    taken: int = min(tokens, left) if left >= LEAST else 0
    scheduler.roundhouse_batch_tokens = scheduler.current_step, left - taken
    return taken


def _share(scheduler: Any) -> int:
    """Return the tokens of a step for prompts of class batch."""
    most = int(scheduler.scheduler_config.max_num_batched_tokens)
    if all(request.priority >= BATCH for request in scheduler.requests.values()):
        return most
    return max(LEAST, min(most // PART, int(scheduler.max_num_scheduled_tokens) // 2))
