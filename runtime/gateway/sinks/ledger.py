"""A sink of request records: the ledger of teams. Where it is not kept, nothing happens here."""

import asyncio
import secrets
import time

from runtime.gateway.backend import Target
from runtime.gateway.record import Recorder, RequestRecord
from tenants.ledger.keeping import Ledger
from tenants.ledger.rows import Entry, Settled


class LedgerSink:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def begin(self, recorder: Recorder, target: Target) -> "asyncio.Future[None] | None":
        """Done once the request's beginning is committed; None: nothing is to be waited for."""
        if not self._ledger.is_kept or recorder.entry is not None:
            return None
        context, caller = recorder.context, recorder.context.caller
        recorder.entry = Entry(
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
            service_class=context.service_class.name.lower(),
            source=context.source,
        )
        return self._ledger.begin(recorder.entry)

    async def written(self) -> None:
        await self._ledger.written()

    def take(self, record: RequestRecord) -> None:
        if record.entry is None:
            return
        seconds, usage = record.seconds, record.usage
        self._ledger.end(
            Settled(
                record.entry,
                record.end.value,
                record.status,
                record.code,
                usage.prompt_tokens,
                usage.cached_tokens,
                usage.completion_tokens,
                round(usage.audio_seconds * 1e3),
                round(seconds.get("queue", 0.0) * 1e3),
                round(seconds["first"] * 1e3) if "first" in seconds else None,
                round(seconds["total"] * 1e3),
            )
        )
