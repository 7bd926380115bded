"""Attempts at one request: at its target again, or at the fall-backs that a router named, within one budget of time.

 1. The first byte is there                                      it is the answer; what fails after it ends the stream
 2. It is late, and a hedge is wanted and may be made            a second attempt beside it: `hedging.py`
 3. It failed, and may not be tried elsewhere or again           the error is the answer
 4. It failed, and a fall-back is left                           the next one of them, at once
 5. It is a fall-back, refuses the request, and none is left     as if it had not been named: what failed before it
 6. It failed, none is left, its backend would try it again      the same target, after a pause
 7. Otherwise                                                    the error is the answer

While fall-backs are left, an attempt has its share of what is left of the time: two targets get half of it each. A name
that a router gave and that means nothing now, or that the caller may not use, is passed over.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

from registry.errors import BadRequest, RoundhouseError
from runtime.gateway.backend import Target
from runtime.gateway.context import RequestContext
from runtime.gateway.core import Gateway
from runtime.gateway.recorder import Recorder
from runtime.http.attempts.attempt import Answer, AttemptPlan, Resolve, first
from runtime.http.attempts.hedging import AttemptStart, hedge_delay, start_hedged
from runtime.http.dialect import Parts


class _Failure(NamedTuple):
    error: RoundhouseError
    target: Target
    context: RequestContext


async def attempts(
    gateway: Gateway,
    recorder: Recorder,
    target: Target,
    fallbacks: Sequence[str],
    resolve: Resolve,
    answer: Answer,
) -> Parts:
    """The answer of the first target that gives one."""
    plan = AttemptPlan(gateway, recorder, target.model, deque(fallbacks), resolve, answer)
    total_timeout = gateway.backend(target).total_timeout(target)
    if recorder.context.deadline is None and total_timeout is not None:
        recorder.set_timeout(total_timeout)
    failure: _Failure | None = None
    while True:
        recorder.target = target
        first_part, parts = await _start(plan, target)
        target = recorder.target  # a second attempt may have taken over
        async with aclosing(parts):
            if not isinstance(first_part, RoundhouseError):
                yield first_part
                async for part in parts:
                    yield part
                return
        following = None
        while following is None and plan.fallbacks:
            following = plan.resolve_fallback(plan.fallbacks.popleft(), target)
        if failure is None or not isinstance(first_part, BadRequest):
            failure = _Failure(first_part, target, recorder.context)
        is_passed_over = first_part is not failure.error
        if following is not None or is_passed_over:
            gateway.end_attempt(recorder, first_part)
        if following is not None:
            target = following
            continue
        if is_passed_over and target.model == failure.target.model:  # it was tried again, and refuses now
            raise failure.error
        target = recorder.target = failure.target
        seconds = gateway.backend(target).again(failure.context, target, failure.error)
        if seconds is None:
            raise failure.error
        if not is_passed_over:
            gateway.end_attempt(recorder, first_part)
        await asyncio.sleep(seconds)


async def _start(plan: AttemptPlan, target: Target) -> AttemptStart:
    seconds = hedge_delay(plan, target)
    if seconds is not None:
        return await start_hedged(plan, target, seconds)
    parts = plan.answer(target, plan.recorder)
    try:
        return await first(plan, plan.recorder, target, parts, len(plan.fallbacks)), parts
    except BaseException:
        await parts.aclose()
        raise
