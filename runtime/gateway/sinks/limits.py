"""Limits of teams: a request is let in before it waits for its turn, and settled by its record, whatever its end.

Where the ledger is kept that is done without any limit too: the ledger notes what each request may use at most, and a
limit that is set while requests run counts them. A server without teams does nothing of it.

A further attempt, at a fall-back or beside a late one, is let in for itself: it may be dearer, and both may run.
"""

from collections.abc import Callable, Sequence
from functools import cache

from runtime.gateway.backend import Call, Target
from runtime.gateway.charging.demand import Demand, demand_of
from runtime.gateway.record import RequestRecord
from runtime.gateway.recorder import Recorder
from tenants.caller import Caller
from tenants.costs.prices import PriceList
from tenants.ledger.ledger import Ledger
from tenants.limits.limiter import Amounts, Limiter
from tenants.limits.meters import LimitLevel
from tenants.limits.records import Kind

FREE = PriceList()


class LimitSink:
    def __init__(self, limiter: Limiter, ledger: Ledger, audio_seconds: float) -> None:
        self._limiter, self._ledger, self._audio_seconds = limiter, ledger, audio_seconds

    def admit(
        self, recorder: Recorder, target: Target, calls: Callable[[int | None], Sequence[Call]], context: int | None
    ) -> None:
        """Reserve the most that this attempt can use. Raises LimitExceeded, and what `calls` raises."""
        previous = recorder.admission
        counts = self._ledger.is_enabled or not self._limiter.is_empty
        if not counts or (previous is not None and not previous.is_settled):
            return
        demand = demand_of(calls(None), context, self._audio_seconds)
        amounts = demand.amounts(target.price or FREE)
        recorder.admission = self._limiter.admit(recorder.context.caller, target.model, amounts, previous)

    def affords(
        self,
        caller: Caller,
        calls: Callable[[int | None], Sequence[Call]],
        context_of: Callable[[Target], int | None],
    ) -> Callable[[Target], bool]:
        """Whether the caller's budgets hold the most that these calls can cost at a target. Reserves nothing."""

        @cache
        def demand(context: int | None) -> Demand:
            return demand_of(calls(None), context, self._audio_seconds)

        def afforded(target: Target) -> bool:
            left = None if self._limiter.is_empty else self._limiter.spendable(caller, target.model)
            if left is None or target.price is None:
                return True
            return demand(context_of(target)).amounts(target.price).money <= left

        return afforded

    def levels(self, recorder: Recorder) -> dict[Kind, LimitLevel]:
        """What is left, for the answer's head."""
        if self._limiter.is_empty or recorder.target is None:
            return {}
        return self._limiter.levels(recorder.context.caller, recorder.target.model)

    def take(self, record: RequestRecord) -> None:
        self._settle(record, last=True)

    def attempt(self, record: RequestRecord) -> None:
        """The end of one, while the request goes on with another."""
        self._settle(record, last=False)

    def _settle(self, record: RequestRecord, *, last: bool) -> None:
        if record.admission is None:
            return
        usage = record.usage
        tokens = usage.prompt_tokens + usage.completion_tokens
        used = Amounts(tokens, round(usage.audio_seconds * 1e3), cost_of(record))
        self._limiter.settle(record.admission, used, last=last)


def cost_of(record: RequestRecord) -> int:
    """By the list price, in millionths of the currency. Pairs count where all were answered."""
    price = None if record.target is None else record.target.price
    if price is None:
        return 0
    usage = record.usage
    return price.cost(
        prompt=usage.prompt_tokens,
        cached=usage.cached_tokens,
        written=usage.written_tokens,
        output=usage.completion_tokens,
        audio_ms=round(usage.audio_seconds * 1e3),
        pairs=record.pairs,
    )
