"""One attempt until its answer has begun, or it is known to have failed."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from registry.errors import (
    BadRequest,
    EngineFailed,
    Forbidden,
    LimitExceeded,
    NotFound,
    ProviderFailed,
    ProviderTimedOut,
    QueueFull,
    RoundhouseError,
    Unavailable,
)
from runtime.gateway.backend import Target
from runtime.gateway.core import Gateway
from runtime.gateway.recorder import Recorder
from runtime.http.dialect import Head, Part, Parts

FAILOVER_ERRORS = (ProviderFailed, QueueFull, EngineFailed, Unavailable, LimitExceeded)
"""What another target may do better; a limit that is met here binds a further attempt only. The client's own faults and
its deadline are not among it."""
Resolve = Callable[[str], Target]
"""A fall-back's name to what answers under it. Raises NotFound or Forbidden."""
Answer = Callable[[Target, Recorder], Parts]
"""One attempt, which this recorder notes."""


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """A request while it is attempted."""

    gateway: Gateway
    recorder: Recorder
    chosen: str
    """The model that is asked first; who refuses the request in its place is a fall-back."""
    fallbacks: deque[str]
    """Names that are left to be asked."""
    resolve: Resolve
    answer: Answer

    def resolve_fallback(self, name: str, instead_of: Target) -> Target | None:
        """A fall-back as the target of the same request; None: the name means nothing now, or not to this caller."""
        try:
            fallback = self.resolve(name)
        except (NotFound, Forbidden):
            return None
        return replace(fallback, requested=instead_of.requested, routed=instead_of.routed)


async def first(
    plan: AttemptPlan, recorder: Recorder, target: Target, parts: Parts, others: int
) -> Part | RoundhouseError:
    """An answer's first part, or the error for which it may be tried elsewhere or again. Raises the others.

    A fall-back may know less than the first target, such as no `seed`: that it refuses the request is its own failure.

    Args:
        others: targets that are left to be asked: this one has its share of the time.
    """
    seconds_left, is_fallback = recorder.context.seconds_left(), target.model != plan.chosen
    share = seconds_left / (others + 1) if others and seconds_left is not None else None
    try:
        async with asyncio.timeout(share) as limit:
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
