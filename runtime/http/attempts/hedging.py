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

Each of the two is a row of the ledger; the one that was cancelled has the code `start_hedged`. At most a tenth of the
requests to a target get a second attempt, and a model of this machine is only asked where it is loaded.
"""

import asyncio
from dataclasses import replace

from registry.errors import BadRequest, RoundhouseError
from runtime.gateway.backend import Target
from runtime.gateway.core import Gateway
from runtime.gateway.recorder import Recorder
from runtime.http.attempts.attempt import AttemptPlan, first
from runtime.http.dialect import Part, Parts

AttemptStart = tuple[Part | RoundhouseError, Parts]
"""The first part, or why there is none, and where the rest comes from."""


def hedge_delay(plan: AttemptPlan, target: Target) -> float | None:
    """Seconds after which a second attempt is made; None: never."""
    routed = target.routed
    if routed is not None and routed.decision.hedge_after is not None and plan.fallbacks:
        return routed.decision.hedge_after
    return plan.gateway.backend(target).hedge_after(target)


async def start_hedged(plan: AttemptPlan, target: Target, seconds: float) -> AttemptStart:
    """As `first`, of one of two attempts. The fall-back that the second one asks is taken from those that are left."""
    gateway, recorder, fallbacks = plan.gateway, plan.recorder, plan.fallbacks
    if target.model not in recorder.context.tried:
        gateway.hedges[target.model].record_request()
    mine, second = _Attempt(plan, recorder, target, len(fallbacks)), None
    try:
        await asyncio.wait({mine.task}, timeout=seconds)
        other = None if mine.is_first else _hedge_target(plan, target)
        if other is None:
            return await mine.task, mine.parts
        second = _Attempt(plan, recorder.fork(other), other, len(fallbacks) + 1)
        await asyncio.wait({mine.task, second.task}, return_when=asyncio.FIRST_COMPLETED)
        if mine.is_first:
            error = await mine.task  # raises what is the client's own fault
            if not isinstance(error, RoundhouseError):
                await second.leave()
                gateway.superseded(second.recorder)
                second.is_recorded = True
                return error, mine.parts
            await mine.leave()
            await asyncio.wait({second.task})
            if isinstance(refusal := second.failed(), BadRequest):
                await second.leave()
                gateway.end_attempt(second.recorder, refusal)
                second.is_recorded = True
                recorder.context = replace(recorder.context, tried=(*recorder.context.tried, other.model))
                return error, mine.parts
            gateway.end_attempt(recorder, error)
        elif (failed := second.failed()) is not None:
            await second.leave()
            gateway.end_attempt(second.recorder, failed)
            second.is_recorded = True
            part = await mine.task
            recorder.context = replace(recorder.context, tried=(*recorder.context.tried, other.model))
            return part, mine.parts
        else:
            await mine.leave()
            gateway.superseded(recorder)
        recorder.take_over(second.recorder)
        second.is_recorded = True
        return await second.task, second.parts
    except BaseException:
        await mine.leave()
        if second is not None:
            await second.leave()
            if not second.is_recorded:
                gateway.superseded(second.recorder)
        raise


class _Attempt:
    """Under way until `leave`."""

    def __init__(self, plan: AttemptPlan, recorder: Recorder, target: Target, others: int) -> None:
        self.recorder = recorder
        self.is_recorded = False
        """Its end is in the ledger, or will be with the request's."""
        self.parts = plan.answer(target, recorder)
        self.task = asyncio.create_task(first(plan, recorder, target, self.parts, others))

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


def _hedge_target(plan: AttemptPlan, target: Target) -> Target | None:
    """Whom the second attempt asks: the router's first fall-back that may be asked, else the same target."""
    if target.routed is not None and target.routed.decision.hedge_after is not None:
        while plan.fallbacks:
            fallback = plan.resolve_fallback(plan.fallbacks[0], target)
            if fallback is not None and not _may_hedge(plan.gateway, target, fallback):
                return None
            plan.fallbacks.popleft()
            if fallback is not None:
                return fallback
        return None
    return target if _may_hedge(plan.gateway, target, target) else None


def _may_hedge(gateway: Gateway, late: Target, other: Target) -> bool:
    return gateway.backend(other).spare(other) and gateway.hedges[late.model].take()
