"""A sink of request records: a log line for each end that somebody may want to look into."""

import logging

from runtime.gateway.record import End, RequestRecord

log = logging.getLogger("roundhouse.requests")
WARNED = frozenset({End.ENGINE_DIED, End.FAILED, End.DEADLINE})


class RequestLog:
    def take(self, record: RequestRecord) -> None:
        level = logging.WARNING if record.end in WARNED else logging.DEBUG
        if not log.isEnabledFor(level):
            return
        target = record.target
        told = {
            "request_id": record.context.id,
            "team": record.context.caller.team,
            "endpoint": record.endpoint,
            "model": target.model if target else None,
            "adapter": target.label if target else None,
            "end": record.end.value,
            "status": record.status,
            "code": record.code,
            "seconds": round(record.seconds["total"], 4),
        }
        log.log(level, "request ended", extra={name: value for name, value in told.items() if value is not None})
