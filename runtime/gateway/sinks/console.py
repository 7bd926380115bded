"""The last requests, for the console."""

import time

from console.history import RequestRoute, RequestRow
from console.state import Console
from runtime.gateway.record import RequestRecord
from runtime.gateway.target import Target
from tenants.ledger.rows import BATCH


class ConsoleSink:
    """Keeps the last requests, except batch lines, with transcripts for teams that store them."""

    def __init__(self, console: Console) -> None:
        self._history, self._texts = console.history, console.texts

    def take(self, record: RequestRecord) -> None:
        context, target, usage, seconds = record.context, record.target, record.usage, record.seconds
        if context.source == BATCH:  # thousands of batch lines would displace interactive requests
            return
        at = round(time.time(), 3)
        if record.transcript is not None:
            self._texts.add(context.caller.team, context.id, at, record.transcript)
        self._history.take(
            RequestRow(
                id=context.id,
                at=at,
                team=context.caller.team,
                endpoint=record.endpoint,
                asked=target.recorded_name if target else "",
                model=target.model if target else "",
                adapter=(target.adapter or "") if target else "",
                digest=target.version.digest if target and target.version else "",
                provider=target.provider if target else "",
                replica=record.replica,
                replica_reason=record.replica_reason or "",
                route=_route(target),
                service_class=context.service_class.label,
                source=context.source,
                end=record.end.value,
                status=record.status,
                code=record.code,
                causes=record.causes,
                total=seconds["total"],
                first=seconds.get("first"),
                is_stream=record.is_stream,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                audio_seconds=usage.audio_seconds,
                cached_tokens=usage.cached_tokens,
                failed_attempts=list(record.failed_attempts),
                warning=record.warning,
                limits=list(record.admission.warnings) if record.admission is not None else [],
                pool=record.pool,
                key=context.caller.key or "",
            )
        )


def _route(target: Target | None) -> RequestRoute | None:
    if target is None or target.routed is None:
        return None
    decision = target.routed.decision
    return RequestRoute(
        router=target.routed.router,
        target=decision.target,
        reason=decision.full_reason,
        score=decision.score,
        scores=dict(decision.scores),
        alternatives=list(decision.alternatives),
        saw=dict(decision.saw),
    )
