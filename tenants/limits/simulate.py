"""Replays the ledger against a limit, to count the requests it would have refused."""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from registry.errors import BadRequest, LimitExceeded
from registry.storage.database import Database
from tenants.caller import Caller
from tenants.keys.table import lines, rotation_chain
from tenants.ledger.rows import BATCH
from tenants.limits.history import of_model, spent_of, used_of
from tenants.limits.limiter import Admission, Amounts, Limiter
from tenants.limits.records import Limit
from tenants.storage.tables import LEDGER


@dataclass(frozen=True, slots=True)
class Outcome:
    """first, last: arrival of the first and last refused request, in seconds since the epoch."""

    requests: int
    refused: int
    first: float | None = None
    last: float | None = None


def simulate(database: Database, limit: Limit, zone: ZoneInfo, begin: float, end: float) -> Outcome:
    """Replay requests in order; each holds its reservation until it ends. Raises Unavailable, BadRequest.

    Retries count as one request. A budget starts with what its period had spent before `begin`.
    """
    if limit.kind.is_stored:
        raise BadRequest(f"{limit.kind} counts stored adapters, and the ledger records requests: set it to try it.")
    if limit.kind.is_queued:
        raise BadRequest(f"{limit.kind} counts lines of batches before they run: set it with --mode shadow to try it.")
    replayed = [LEDGER.c.at >= begin, LEDGER.c.at < end]
    if not limit.kind.is_spend:
        replayed.append(LEDGER.c.source != BATCH)
    if limit.model:
        replayed.append(of_model(LEDGER.c.model, limit.model))
    with database.read() as connection:
        line = rotation_chain(limit.subject, lines(connection))
        replayed.append(LEDGER.c.team == limit.subject if limit.owner == "team" else LEDGER.c.key.in_(line))
        query = sa.select(LEDGER).where(*replayed).order_by(LEDGER.c.at, LEDGER.c.uid)
        spent = spent_of(connection, limit, line, zone, begin, begin) if limit.kind.is_spend else 0
        retries = sa.select(LEDGER.c.request).where(*replayed, LEDGER.c.attempt > 1)
        further = Counter(connection.execute(retries).scalars())
        rows = connection.execution_options(yield_per=1000).execute(query)
        return _Replay(limit, zone, begin, spent, further).of(rows)


@dataclass(slots=True)
class _Request:
    """further: attempts at it that have not been replayed yet."""

    further: int
    admission: Admission | None = None
    running: int = 0
    is_refused: bool = False


class _Replay:
    """further: number of retries by request id."""

    def __init__(self, limit: Limit, zone: ZoneInfo, begin: float, spent: int, further: Counter[str]) -> None:
        self._now, self._further = begin, further
        self._line = limit.subject if limit.owner == "key" else None
        self._limiter = Limiter(clock=lambda: round(self._now * 1e9), wall=lambda: self._now)
        self._limiter.replace([limit], {limit.subject: zone}, (), {limit.id: spent})
        self._running: list[tuple[float, str, _Request, Admission, Amounts]] = []
        self._tried: dict[str, _Request] = {}
        """Requests with attempts to come. If an id was reused, its attempts count for the first request."""

    def of(self, rows: Iterable[Any]) -> Outcome:
        requests, refused, first, last = 0, 0, None, None
        for row in rows:
            self._end_until(row.at)
            self._now = row.at
            request, is_new = self._request(row)
            requests += is_new
            if not request.is_refused and not self._is_let_in(row, request):
                refused, first, last = refused + 1, row.at if first is None else first, row.at
        return Outcome(requests, refused, first, last)

    def _request(self, row: Any) -> tuple[_Request, bool]:
        """Return the request of an attempt, and whether this is its first row."""
        is_further = row.attempt > 1
        known_request = self._tried.get(row.request) if is_further else None
        request = known_request or _Request(self._further.pop(row.request, 0))
        request.further -= is_further
        if known_request is None and request.further > 0:
            self._tried[row.request] = request
        elif known_request is not None and request.further == 0:
            del self._tried[row.request]
        return request, known_request is None

    def _is_let_in(self, row: Any, request: _Request) -> bool:
        used = used_of(row)
        most = Amounts(
            max(used.tokens, row.reserved_tokens),
            max(used.audio_ms, row.reserved_audio_ms),
            max(used.money, row.reserved_micro),
        )
        before = request.admission
        try:
            caller = Caller(row.team, row.key or None, line=self._line)
            request.admission = admission = self._limiter.admit(caller, row.model, most, before)
        except LimitExceeded:
            request.is_refused = True
            if before is not None and not request.running:
                self._limiter.settle(before, Amounts())
            return False
        request.running += 1
        heapq.heappush(self._running, (row.at + row.total_ms / 1e3, row.uid, request, admission, used))
        return True

    def _end_until(self, at: float) -> None:
        while self._running and self._running[0][0] <= at:
            self._now, _, request, admission, used = heapq.heappop(self._running)
            request.running -= 1
            is_last = not request.running and (request.is_refused or not request.further)
            self._limiter.settle(admission, used, last=is_last)
