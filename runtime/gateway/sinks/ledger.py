"""A sink of request records: the ledger of teams. Where it is not kept, nothing happens here."""

import asyncio
import secrets
import time
from dataclasses import replace

from runtime.gateway.backend import Target
from runtime.gateway.record import RequestRecord
from runtime.gateway.recorder import Recorder
from runtime.gateway.sinks.limits import cost_of
from tenants.ledger.ledger import Ledger
from tenants.ledger.rows import Entry, Settlement
from tenants.limits.limiter import Amounts

MAX_COUNT = 10**15
"""Of each count of a row: a provider may tell any number, a database's have 64 bits, and one row that cannot be written
would keep all others out that came with it."""
_CODE = 64
"""Letters of an error's code: a provider's is its own, and of any length."""


class LedgerSink:
    """machine_price: of the machine's hour, in millionths of the currency; cold: who caused a load is charged it."""

    def __init__(self, ledger: Ledger, machine_price: int = 0, *, cold: bool = True) -> None:
        self._ledger, self._machine_price, self._cold = ledger, machine_price, cold

    def begin(self, recorder: Recorder, target: Target) -> "asyncio.Future[None] | None":
        """Done once the request's beginning is committed; None: nothing is to be waited for."""
        if not self._ledger.is_enabled or recorder.entry is not None:
            return None
        context, caller = recorder.context, recorder.context.caller
        most = Amounts() if recorder.admission is None else recorder.admission.most
        entry = Entry(
            uid=secrets.token_hex(16),
            request=context.id,
            attempt=context.attempt,
            at=time.time(),
            team=caller.team,
            key=caller.key or "",
            endpoint=recorder.endpoint,
            model=target.model,
            revision=target.revision,
            adapter=target.label or "",
            service_class=context.service_class.label,
            source=context.source,
            price=target.price,
            reserved_tokens=most.tokens,
            reserved_micro=most.money,
            reserved_audio_ms=most.audio_ms,
            asked=target.requested[:128],
        )
        if target.routed is not None:
            router, decision = target.routed.router, target.routed.decision
            reason = decision.full_reason[:128]
            entry = replace(entry, router=router, target=decision.target, reason=reason, score=decision.score)
        recorder.entry = entry
        return self._ledger.begin(entry)

    async def flush(self) -> None:
        await self._ledger.flush()

    def attempt(self, record: RequestRecord) -> None:
        self.take(record)  # each has a row

    def take(self, record: RequestRecord) -> None:
        if record.entry is None:
            return
        seconds, usage = record.seconds, record.usage
        device, cold = seconds.get("device", 0.0), seconds.get("cold", 0.0)
        own = self._machine_price * (device + (cold if self._cold else 0.0)) / 3600
        self._ledger.end(
            Settlement(
                record.entry,
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
                min(cost_of(record), MAX_COUNT),
                round(own),
            )
        )
