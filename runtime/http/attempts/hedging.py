"""A second attempt beside one whose first byte is late: whoever begins first answers, the other one is cancelled.

| the first attempt         | the second one     | what follows                                                      |
|---------------------------|--------------------|-------------------------------------------------------------------|
| begins in time            | is not made        | it answers                                                        |
| is late                   | may not be made    | it is waited for: no budget, an open breaker, nobody to ask       |
| is late, begins           | has not begun      | it answers; the second is cancelled                               |
| is late, has not begun    | begins             | the second answers; the first is cancelled                        |
| is late, fails            | has not failed     | the second is the one attempt now; that it refuses the request is |
|                           |                    | no answer: the first one's error is                               |
| is late, has not failed   | fails              | the first goes on alone                                           |

Each of the two is a row of the ledger; the one that was cancelled has the code `hedged`. At most a tenth of the
requests to a target get a second attempt, and a model of this machine is only asked where it is loaded.
"""

import asyncio
from dataclasses import replace

from registry.errors import BadRequest, RoundhouseError
from runtime.gateway.backend import Target
from runtime.gateway.core import Gateway
from runtime.gateway.recorder import Recorder
from runtime.http.attempts.first import Asking, first
from runtime.http.dialect import Part, Parts

Begun = tuple[Part | RoundhouseError, Parts]
"""The first part, or why there is none, and where the rest comes from."""


def delay(asking: Asking, target: Target) -> float | None:
    """Seconds after which a second attempt is made; None: never."""
    routed = target.routed
    if routed is not None and routed.decision.hedge_after is not None and asking.fallbacks:
        return routed.decision.hedge_after
    return asking.gateway.backend(target).hedge_after(target)


async def hedged(asking: Asking, target: Target, seconds: float) -> Begun:
    """As `first`, of one of two attempts. The fall-back that the second one asks is taken from those that are left."""
    gateway, recorder, fallbacks = asking.gateway, asking.recorder, asking.fallbacks
    if target.model not in recorder.context.tried:
        gateway.hedges[target.model].asked()
    mine, second = _Attempt(asking, recorder, target, len(fallbacks)), None
    try:
        await asyncio.wait({mine.task}, timeout=seconds)
        other = None if mine.is_first else _other(asking, target)
        if other is None:
            return await mine.task, mine.parts
        second = _Attempt(asking, recorder.beside(other), other, len(fallbacks) + 1)
        await asyncio.wait({mine.task, second.task}, return_when=asyncio.FIRST_COMPLETED)
        if mine.is_first:
            error = await mine.task  # raises what is the client's own fault
            if not isinstance(error, RoundhouseError):
                await second.leave()
                gateway.lost(second.recorder)
                second.is_told = True
                return error, mine.parts
            await mine.leave()
            await asyncio.wait({second.task})
            if isinstance(refusal := second.failed(), BadRequest):
                await second.leave()
                gateway.failed_attempt(second.recorder, refusal)
                second.is_told = True
                recorder.context = replace(recorder.context, tried=(*recorder.context.tried, other.model))
                return error, mine.parts
            gateway.failed_attempt(recorder, error)
        elif (failed := second.failed()) is not None:
            await second.leave()
            gateway.failed_attempt(second.recorder, failed)
            second.is_told = True
            found = await mine.task
            recorder.context = replace(recorder.context, tried=(*recorder.context.tried, other.model))
            return found, mine.parts
        else:
            await mine.leave()
            gateway.lost(recorder)
        recorder.take_over(second.recorder)
        second.is_told = True
        return await second.task, second.parts
    except BaseException:
        await mine.leave()
        if second is not None:
            await second.leave()
            if not second.is_told:
                gateway.lost(second.recorder)
        raise


class _Attempt:
    """Under way until `leave`."""

    def __init__(self, asking: Asking, recorder: Recorder, target: Target, others: int) -> None:
        self.recorder = recorder
        self.is_told = False
        """Its end is in the ledger, or will be with the request's."""
        self.parts = asking.answer(target, recorder)
        self.task = asyncio.create_task(first(asking, recorder, target, self.parts, others))

    @property
    def is_first(self) -> bool:
        """It has begun or failed; or its end is told already, and it waits until the ledger holds that."""
        return self.task.done() or self.recorder.is_over

    def failed(self) -> RoundhouseError | None:
        """Once its task is done. The client's own fault is here one of this target: the other one may bear it."""
        if isinstance(error := self.task.exception(), RoundhouseError):
            return error
        found = self.task.result()
        return found if isinstance(found, RoundhouseError) else None

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})
        if not self.task.cancelled():
            self.task.exception()  # looked at, so that asyncio does not warn of it
        await self.parts.aclose()


def _other(asking: Asking, target: Target) -> Target | None:
    """Whom the second attempt asks: the router's first fall-back that may be asked, else the same target."""
    if target.routed is not None and target.routed.decision.hedge_after is not None:
        while asking.fallbacks:
            found = asking.resolved(asking.fallbacks[0], target)
            if found is not None and not _may(asking.gateway, target, found):
                return None
            asking.fallbacks.popleft()
            if found is not None:
                return found
        return None
    return target if _may(asking.gateway, target, target) else None


def _may(gateway: Gateway, late: Target, other: Target) -> bool:
    return gateway.backend(other).spare(other) and gateway.hedges[late.model].take()
