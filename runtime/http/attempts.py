"""Attempts at one request: at its target again, or at the fall-backs that a router named, within one budget of time.

 1. The first byte is there                                      it is the answer; what fails after it ends the stream
 2. It failed, and may not be tried elsewhere or again           the error is the answer
 3. It failed, and a fall-back is left                           the next one of them, at once
 4. It failed, none is left, its backend would try it again      the same target, after a pause
 5. Otherwise                                                    the error is the answer

While fall-backs are left, an attempt has its share of what is left of the time: two targets get half of it each. A name
that a router gave and that means nothing now, or that the caller may not use, is passed over.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from registry.errors import (
    EngineFailed,
    Forbidden,
    NotFound,
    ProviderFailed,
    ProviderTimedOut,
    QueueFull,
    RoundhouseError,
    Unavailable,
)
from runtime.gateway.backend import Target
from runtime.gateway.core import Gateway
from runtime.gateway.record import Recorder
from runtime.http.dialect import Head, Part, Parts

ELSEWHERE = (ProviderFailed, QueueFull, EngineFailed, Unavailable)
"""What another target may do better. The client's own faults and its deadline are not among it."""


async def attempts(
    gateway: Gateway,
    recorder: Recorder,
    target: Target,
    fallbacks: Sequence[str],
    resolve: Callable[[str], Target],
    answer: Callable[[Target], Parts],
) -> Parts:
    """The answer of the first target that gives one.

    Args:
        resolve: a fall-back's name to what answers under it. Raises NotFound or Forbidden.
        answer: one attempt.
    """
    waiting = deque(fallbacks)
    patience = gateway.patience(target)
    if recorder.context.deadline is None and patience is not None:
        recorder.within(patience)
    while True:
        recorder.target = target
        async with aclosing(answer(target)) as parts:
            found = await _first(recorder, target, parts, len(waiting))
            if not isinstance(found, RoundhouseError):
                yield found
                async for part in parts:
                    yield part
                return
        following = None
        while following is None and waiting:
            following = _resolved(resolve, waiting.popleft())
        if following is None:
            seconds = gateway.again(recorder.context, target, found)
            if seconds is None:
                raise found
            gateway.failed_attempt(recorder, found)
            await asyncio.sleep(seconds)
        else:
            gateway.failed_attempt(recorder, found)
            target = replace(following, asked=target.asked, routed=target.routed)


async def _first(recorder: Recorder, target: Target, parts: Parts, others: int) -> Part | RoundhouseError:
    """An answer's first part, or the error for which it may be tried elsewhere or again. Raises the others."""
    left = recorder.context.seconds_left()
    share = left / (others + 1) if others and left is not None else None
    try:
        async with asyncio.timeout(share) as limit:
            first = await anext(parts)
    except TimeoutError:
        if not limit.expired():
            raise
        return ProviderTimedOut(f"'{target.model}' had not begun its answer when its share of the time was over.")
    except StopAsyncIteration:
        return EngineFailed(f"'{target.model}' ended without an answer.")
    except ELSEWHERE as error:
        if error.code == "shutting_down":
            raise
        return error
    if others and isinstance(first, Head) and (first.status >= 500 or first.status == 429):
        return EngineFailed(f"'{target.model}' answered with status {first.status}.")
    return first


def _resolved(resolve: Callable[[str], Target], name: str) -> Target | None:
    try:
        return resolve(name)
    except (NotFound, Forbidden):
        return None
