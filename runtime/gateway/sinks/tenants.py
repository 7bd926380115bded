"""Usage of teams: the ledger, and the limits, which also admit requests.

| server                        | ledger          | limits                                                             |
|-------------------------------|-----------------|--------------------------------------------------------------------|
| while its tables are created  | nothing         | nothing                                                            |
| without keys and limits       | a row per request, not awaited | reserve                                             |
| with keys, without limits     | a row per request | reserve, so that a limit set later counts running requests       |
| with limits                   | a row per request | reserve and refuse                                               |

Without keys and limits nobody is billed, so requests do not wait for commits and continue if the ledger cannot be
written. If the server is killed, its last rows may be lost. Batch lines always wait.

Each attempt at a fall-back is admitted separately, since it may cost more, and has its own row.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from models.tasks import Call, task_of
from models.tasks.kind import Demand
from runtime.gateway.record import RequestRecord
from runtime.gateway.request import Request
from runtime.gateway.target import Target
from runtime.scheduling.admission import REVOKED
from tenants.caller import Caller
from tenants.costs.prices import PriceList
from tenants.ledger.ledger import Ledger
from tenants.ledger.rows import BATCH, Entry, Settlement
from tenants.limits.limiter import Amounts, Limiter
from tenants.limits.meters import LimitLevel
from tenants.limits.records import MAX_AMOUNT, Kind

FREE = PriceList()
MAX_COUNT = 10**15
"""Largest count in a row. A provider may report any number, and a row that exceeds 64 bits would fail its whole
transaction."""
MOST_UNWAITED = 10_000
"""Most rows waiting for a transaction that no request awaits. Further requests are not counted."""
UNKNOWN_CONTEXT = 32_768
"""Assumed context length in tokens if it is unknown."""
_CODE = 64
"""Most characters of an error's code, since a provider's may have any length."""


class LedgerSink:
    """Writes the beginning and end of each request to the ledger.

    Args:
        machine_price: millionths of the currency per hour.
        cold: whether requests pay for the loads they cause.
        is_lenient: whether nobody is billed at present.
    """

    def __init__(
        self,
        ledger: Ledger,
        machine_price: int = 0,
        *,
        cold: bool = True,
        is_lenient: Callable[[], bool] = lambda: False,
    ) -> None:
        self._ledger, self._machine_price, self._cold, self._is_lenient = ledger, machine_price, cold, is_lenient

    @property
    def is_journalled(self) -> bool:
        return self._ledger.journalled > 0

    @property
    def is_failing(self) -> bool:
        """Whether requests are refused because the ledger cannot be written."""
        return self._ledger.is_failing and not self._is_lenient()

    @property
    def is_uncounted(self) -> bool:
        """Whether requests currently run without rows."""
        return self._ledger.is_failing and self._is_lenient()

    def begin(self, request: Request, target: Target) -> "asyncio.Future[None] | None":
        """Begin an attempt. Returns a future that ends once the beginning is committed, or None."""
        if not self._ledger.is_enabled or request.attempt.entry is not None:
            return None
        attempt, context, caller = request.attempt, request.context, request.context.caller
        lenient = context.line is None and self._is_lenient()
        if lenient and (self._ledger.is_failing or self._ledger.backlog > MOST_UNWAITED):
            return None
        most = Amounts() if attempt.admission is None else attempt.admission.most
        entry = Entry(
            uid=secrets.token_hex(16),
            request=context.id,
            attempt=len(request.tried) + 1,
            at=self._ledger.clock(),
            team=caller.team,
            key=caller.key or "",
            endpoint=request.endpoint,
            model=target.model,
            revision=target.revision,
            adapter=target.label or "",
            service_class=context.service_class.label,
            source=context.source,
            price=target.price,
            reserved_tokens=most.tokens,
            reserved_micro=most.money,
            reserved_audio_ms=most.audio_ms,
            asked=target.recorded_name[:128],
        )
        if target.routed is not None:
            router, decision = target.routed.router, target.routed.decision
            reason = decision.full_reason[:128]
            entry = replace(entry, router=router, target=decision.target, reason=reason, score=decision.score)
        attempt.entry, attempt.is_end_awaited = entry, not lenient
        if not lenient:
            return self._ledger.begin(entry)
        self._ledger.note(entry)
        return None

    async def flush(self) -> None:
        if not self._is_lenient():
            await self._ledger.flush()

    def attempt(self, record: RequestRecord) -> None:
        if record.entry is not None:  # each attempt has a row
            self._ledger.end(self._settlement(record, record.entry), soon=self._is_lenient())

    def take(self, record: RequestRecord) -> None:
        if record.entry is None:
            return
        settled, line = self._settlement(record, record.entry), record.context.line
        has_run = "queue" in record.seconds and record.code != REVOKED
        rider = None if line is None else line.rider(settled, reached_engine=has_run)
        self._ledger.end(settled, rider, soon=line is None and self._is_lenient())

    def _settlement(self, record: RequestRecord, entry: Entry) -> Settlement:
        seconds, usage = record.seconds, record.charged
        device, cold = seconds.get("device", 0.0), seconds.get("cold", 0.0)
        own = self._machine_price * (device + (cold if self._cold else 0.0)) / 3600
        return Settlement(
            entry,
            record.end.value,
            record.status,
            None if record.code is None else record.code.replace("\0", "")[:_CODE],
            min(usage.prompt_tokens, MAX_COUNT),
            min(usage.cached_tokens, MAX_COUNT),
            min(usage.completion_tokens, MAX_COUNT),
            min(round(usage.audio_seconds * 1e3), MAX_COUNT),
            round(seconds.get("queue", 0.0) * 1e3),
            round(seconds["first"] * 1e3) if "first" in seconds else None,
            round(seconds["total"] * 1e3),
            record.pairs,
            round(device * 1e6),
            round(cold * 1e3),
            min(record.cost, MAX_COUNT),
            round(own),
        )


def demand_of(calls: Sequence[Call], context: int | None, audio_seconds: float) -> Demand:
    """Sum the most that a request's calls can use. audio_seconds: the longest recording allowed.

    A token is at least one byte of the body, and no sequence is longer than the context, so the bound holds for every
    tokenizer. Text that a chat template adds, such as a preamble, or an embedding model's own prompt is not in the body
    and not counted.
    """
    demands = [task_of(call).demand(call, context or UNKNOWN_CONTEXT, audio_seconds) for call in calls]
    if len(demands) == 1:
        return demands[0]
    fields: tuple[Callable[[Demand], int], ...] = (
        lambda d: d.prompt, lambda d: d.output, lambda d: d.requested_output, lambda d: d.audio_ms, lambda d: d.pairs,
    )  # fmt: skip
    return Demand(*(sum(map(value, demands)) for value in fields))


def amounts(demand: Demand, price: PriceList) -> Amounts:
    """Convert a demand to amounts to reserve, capped at the largest possible limit."""
    money = price.most(prompt=demand.prompt, output=demand.output, audio_ms=demand.audio_ms, pairs=demand.pairs)
    return Amounts(
        min(demand.prompt + demand.output, MAX_AMOUNT),
        min(demand.audio_ms, MAX_AMOUNT),
        min(money, MAX_AMOUNT),
        min(demand.requested_output, MAX_AMOUNT),
    )


class LimitSink:
    """Reserves the most that a request can use within limits, and returns or charges the difference at its end.

    audio_seconds: the longest recording allowed.
    """

    def __init__(self, limiter: Limiter, ledger: Ledger, audio_seconds: float) -> None:
        self._limiter, self._ledger, self._audio_seconds = limiter, ledger, audio_seconds

    async def admit(self, request: Request, context_of: Callable[[Target], int | None]) -> None:
        """Reserve the most that the attempt can use. Raises LimitExceeded, and Unavailable if limits are unknown."""
        attempt, target = request.attempt, request.target
        counts = self._ledger.is_enabled or not self._limiter.is_empty
        if not counts or target is None:
            return
        demand = demand_of(request.calls, context_of(target), self._audio_seconds)
        reserved = amounts(demand, target.price or FREE)
        caller, before = request.context.caller, attempt.admission
        is_line = request.context.source == BATCH  # rates are for interactive requests; batches have their own bounds
        if self._limiter.is_shared:
            await self._limiter.prepare(caller, target.model, reserved, before, spends_only=is_line)
        attempt.admission = self._limiter.admit(caller, target.model, reserved, before, spends_only=is_line)

    def leave(self, request: Request) -> None:
        """Release an attempt's reservation, because another server admits the request."""
        attempt = request.attempt
        if attempt.admission is not None:
            self._limiter.settle(attempt.admission, Amounts())
            attempt.admission = None

    def affords(
        self, caller: Caller, calls: Sequence[Call], context_of: Callable[[Target], int | None]
    ) -> Callable[[Target], bool]:
        """Return a function that tells whether the caller's budgets cover the most these calls can cost at a target."""

        @cache
        def demand(context: int | None) -> Demand:
            return demand_of(calls, context, self._audio_seconds)

        def affords(target: Target) -> bool:
            left = None if self._limiter.is_empty else self._limiter.spendable(caller, target.model)
            if left is None or target.price is None:
                return True
            return amounts(demand(context_of(target)), target.price).money <= left

        return affords

    def has_room(self, caller: Caller, target: Target, call: Call) -> bool:
        """Whether the caller's limits allow a call in addition to the request that needs it."""
        if self._limiter.is_empty:
            return True
        demand = demand_of((call,), None, self._audio_seconds)
        return self._limiter.has_room(caller, target.model, amounts(demand, target.price or FREE))

    def levels(self, request: Request) -> dict[Kind, LimitLevel]:
        """What remains of the caller's limits, for the answer's headers."""
        if self._limiter.is_empty or request.target is None:
            return {}
        return self._limiter.levels(request.context.caller, request.target.model)

    def take(self, record: RequestRecord) -> None:
        """Settle a request. A batch line is settled when the ledger knows whether its attempt counts."""
        line = record.context.line
        if line is None or record.entry is None:
            self._settle(record, last=True)
        else:
            line.when_ended(lambda counts: self._settle(record, last=True, counts=counts))

    def attempt(self, record: RequestRecord) -> None:
        """Record the end of an attempt that another one follows."""
        self._settle(record, last=False)

    def _settle(self, record: RequestRecord, *, last: bool, counts: bool = True) -> None:
        if record.admission is None:
            return
        usage = record.charged
        tokens = usage.prompt_tokens + usage.completion_tokens
        used = Amounts(tokens, round(usage.audio_seconds * 1e3), record.cost)
        self._limiter.settle(record.admission, used if counts else Amounts(), last=last)
