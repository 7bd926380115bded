"""Requests of the class batch take a small part of a step, or none, while the engine has some of a higher class.

vLLM's bound on a prompt's part of a step (`long_prefill_token_threshold`) is one for all requests, so theirs are cut
where vLLM settles how many tokens of each request a step takes.

| the engine has                   | prompts of the class batch take of a step, together                     | answers |
|----------------------------------|-------------------------------------------------------------------------|---------|
| requests of that class only      | as many tokens as ever                                                  | go on   |
| a request of a higher class      | a sixteenth of `max_num_batched_tokens`, at most half of a shorter step | go on   |
| such a one with an unread prompt | nothing                                                                 | wait    |

So a step has room for the prompt of a higher class, and a stream's next token comes soon. What is cut off follows in
later steps. Prompts are not cut where vLLM cuts none, or at certain places only: with pictures or sound, and between
the blocks of a Mamba.

The last row is for people's first tokens: on a CPU a step with thirty answers of lines takes twice as long as one
without them, and the slot passes thirty tokens on before that prompt's first one. Answers wait for `MOST_PAUSES` steps
in a row at the longest, and then for every other step: each step with the class allows one more without it.
"""

from __future__ import annotations

from typing import Any

BATCH = 2
"""vLLM's `priority` of the class batch (`tenants.caller.ServiceClass`)."""
PART = 16
LEAST = 16
"""Tokens that are not worth a cut; a step of decoding has fewer, also where it is guessed ahead."""
MOST_PAUSES = 16
"""Steps in a row without the class batch."""


def patch(scheduler: Any) -> None:
    """Bound the class batch in each step. Args: scheduler: vLLM's Scheduler."""
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
    """Whether requests of the class batch wait for the next step."""
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
    """The tokens that a prompt gets of those that it would have in this step; 0: it waits for the next one."""
    step, left = scheduler.__dict__.get("roundhouse_batch_tokens", (None, 0))
    if step != scheduler.current_step:
        left = _share(scheduler)
    taken: int = min(tokens, left) if left >= LEAST else 0
    scheduler.roundhouse_batch_tokens = scheduler.current_step, left - taken
    return taken


def _share(scheduler: Any) -> int:
    """Tokens that prompts of the class batch may have of a step."""
    most = int(scheduler.scheduler_config.max_num_batched_tokens)
    if all(request.priority >= BATCH for request in scheduler.requests.values()):
        return most
    return max(LEAST, min(most // PART, int(scheduler.max_num_scheduled_tokens) // 2))
