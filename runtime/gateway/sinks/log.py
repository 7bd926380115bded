"""A sink of request records: one log line for each. What a client did wrong is no warning."""

import logging

from runtime.gateway.record import End, RequestRecord

log = logging.getLogger("roundhouse.requests")
WARNING_ENDS = frozenset({End.ENGINE_DIED, End.FAILED, End.DEADLINE})


class RequestLog:
    def take(self, record: RequestRecord) -> None:
        level = logging.WARNING if record.end in WARNING_ENDS else logging.INFO
        if not log.isEnabledFor(level):
            return
        target, usage, seconds = record.target, record.usage, record.seconds
        fields = {
            "request_id": record.context.id,
            "team": record.context.caller.team,
            "endpoint": record.endpoint,
            "model": target.model if target else None,
            "adapter": target.label if target else None,
            "end": record.end.value,
            "status": record.status,
            "code": record.code,
            "prompt_tokens": usage.prompt_tokens or None,
            "cached_tokens": usage.cached_tokens or None,
            "completion_tokens": usage.completion_tokens or None,
            "audio_seconds": round(usage.audio_seconds, 2) or None,
            "seconds": round(seconds["total"], 4),
            **{f"{name}_seconds": round(seconds[name], 4) for name in ("queue", "load", "first") if name in seconds},
        }
        log.log(level, "request ended", extra={name: value for name, value in fields.items() if value is not None})
