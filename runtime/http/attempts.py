"""Attempts at a request: at its target and fall-backs, within one time budget.

 1. The first byte has arrived                                   the answer; a later failure ends the stream
 2. It failed with an error that no other attempt can avoid      the error
 3. It failed, and a fall-back is left                           the next fall-back, immediately
 4. A fall-back refused the request, and none is left            the failure before it, as if it had not been named
 5. It failed, none is left, and its backend wants a retry       the same target, after a pause
 6. Otherwise                                                    the error

While fall-backs are left, an attempt gets its share of the remaining time: with two targets, each gets half. A
fall-back that is unknown at present, or that the caller may not use, is skipped.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from registry.errors import (
    BadRequest,
    EngineFailed,
    LimitExceeded,
    ProviderFailed,
    ProviderTimedOut,
    QueueFull,
    RoundhouseError,
    Unavailable,
)
from runtime.gateway.core import Gateway
from runtime.gateway.request import Request
from runtime.gateway.target import Target
from runtime.http.dialect import Head, Part, Parts

FAILOVER_ERRORS = (ProviderFailed, QueueFull, EngineFailed, Unavailable, LimitExceeded)
"""Errors after which another target is tried. The client's own faults and its deadline are not among them, and a limit
only if a further attempt exceeds it."""


class _Failure(NamedTuple):
    error: RoundhouseError
    target: Target
    attempts: int
    """Attempts made at this target so far."""


async def attempts(gateway: Gateway, request: Request, names: Sequence[str], answer: Callable[[], Parts]) -> Parts:
    """Return the answer of the first target that gives one.

    Args:
        names: the fall-backs.
        answer: makes one attempt at the request's current target.
    """
    target, fallbacks = request.chosen, list(names)
    first_model = target.model
    if (policy := gateway.backend_of(target).retry) is not None:
        request.limit_time(policy.total_timeout(target))
    failure: _Failure | None = None
    while True:
        parts = answer()
        async with aclosing(parts):
            first_part = await _first(request, target, parts, len(fallbacks), is_fallback=target.model != first_model)
            if not isinstance(first_part, RoundhouseError):
                yield first_part
                async for part in parts:
                    yield part
                return
        error, following = first_part, None
        while following is None and fallbacks:
            following = gateway.fallback(request, fallbacks.pop(0))
        if failure is None or not isinstance(error, BadRequest):
            failure = _Failure(error, target, request.tried.count(target.model) + 1)
        is_passed_over = error is not failure.error
        if following is not None or is_passed_over:
            gateway.end_attempt(request, error)
        if following is not None:
            target = request.attempt.target = following
            continue
        if is_passed_over and target.model == failure.target.model:  # the same target, which refuses a retry
            raise failure.error
        target = request.attempt.target = failure.target
        policy = gateway.backend_of(target).retry
        seconds = None
        if policy is not None:
            left = request.context.seconds_left()
            seconds = policy.retry_delay(target, failure.error, failure.attempts, left)
        if seconds is None:
            raise failure.error
        if not is_passed_over:
            gateway.end_attempt(request, error)
        await asyncio.sleep(seconds)


async def _first(
    request: Request, target: Target, parts: Parts, others: int, *, is_fallback: bool
) -> Part | RoundhouseError:
    """The answer's first part, or an error worth another attempt. Raises other errors.

    A fall-back may support less than the first target, such as no `seed`, so its refusal counts as a failure.

    Args:
        others: number of fall-backs left, with which the target shares the time.
    """
    seconds_left = request.context.seconds_left()
    limit = asyncio.timeout(seconds_left / (others + 1) if others and seconds_left is not None else None)
    try:
        async with limit:
            part = await anext(parts)
    except TimeoutError:
        if not limit.expired():
            raise
        return ProviderTimedOut(f"'{target.model}' had not begun its answer when its share of the time was over.")
    except StopAsyncIteration:
        return EngineFailed(f"'{target.model}' ended without an answer.")
    except FAILOVER_ERRORS as error:
        if error.code == "shutting_down":
            raise
        return error
    except BadRequest as error:
        if not is_fallback:
            raise
        return error
    status = part.status if isinstance(part, Head) else 200
    if is_fallback and 400 <= status < 500 and status != 429:
        return BadRequest(f"'{target.model}' refused this request with status {status}.")
    if others and (status >= 500 or status == 429):
        return EngineFailed(f"'{target.model}' answered with status {status}.")
    return part
