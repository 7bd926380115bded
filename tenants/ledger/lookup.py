"""Requests in the ledger, and what a router chose.

There is one row per attempt. `runtime.http.attempts` makes one after another, so the last row is the one that answered.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sa

from registry.base.wording import quoted
from registry.errors import Conflict, NotFound
from registry.storage.database import Database
from tenants.ledger.rows import NAMES
from tenants.storage.tables import HOURS, LEDGER

MAX_ROWS = 100
"""Most rows of one id: clients may reuse ids often."""


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """Money is in millionths of the server's currency, as stored."""

    uid: str
    attempt: int
    at: float
    team: str
    key: str
    endpoint: str
    asked: str
    model: str
    revision: str
    adapter: str
    service_class: str
    source: str
    state: str
    end: str | None
    status: int | None
    code: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    audio_ms: int
    pairs: int
    queue_ms: int
    first_ms: int | None
    total_ms: int
    device_us: int
    cold_ms: int
    cost_micro: int
    own_micro: int
    price_version: str
    reserved_tokens: int
    reserved_micro: int
    accepted: bool | None
    router: str
    target: str
    reason: str
    score: float | None


def rows_of(database: Database, request: str, team: str | None) -> list[LedgerRow]:
    """Return the rows of a request id, newest first. team: None for all. Raises Unavailable."""
    columns = [LEDGER.c[name] for name in LedgerRow.__struct_fields__]
    query = sa.select(*columns).where(LEDGER.c.request == request)
    if team is not None:
        query = query.where(LEDGER.c.team == team)
    with database.read() as connection:
        rows = connection.execute(query.order_by(LEDGER.c.at.desc(), LEDGER.c.attempt.desc()).limit(MAX_ROWS))
        return [LedgerRow(**row) for row in rows.mappings()]


MAX_ROUTED_ROWS = 200_000
"""Most rows that a report reads, newest first."""
_COLUMNS = (
    "team", "request", "attempt", "model", "adapter", "reason", "score", "accepted", "cost_micro",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    target: str
    """The target that answered, which may differ from the chosen one: `model` or `model:adapter`."""
    reason: str
    score: float | None
    accepted: bool | None
    """None without feedback."""
    cost_micro: int


def routed_requests(database: Database, router: str, since: float, team: str | None = None) -> list[RoutedRequest]:
    """Return requests that any version of the router sent somewhere, newest first. team: None for all."""
    start, chooser = f"{router}@", LEDGER.c.router
    begins = (  # SQLite's LIKE would take 'Auto@v1' for one of 'auto'; PostgreSQL orders texts by its locale
        (chooser >= start) & (chooser < f"{router}{chr(ord('@') + 1)}")
        if database.is_sqlite
        else sa.func.substr(chooser, 1, len(start)) == start
    )
    query = (
        sa.select(*(LEDGER.c[name] for name in _COLUMNS))
        .where(begins, LEDGER.c.at >= since)
        .where(chooser != "", LEDGER.c.source == "api")
        .order_by(LEDGER.c.at.desc(), LEDGER.c.attempt.desc())
        .limit(MAX_ROUTED_ROWS)
    )
    if team is not None:
        query = query.where(LEDGER.c.team == team)
    with database.read() as connection:
        return [_chosen(row) for row in _last_attempts(connection.execute(query))]


def _last_attempts(rows: sa.CursorResult[Any]) -> Iterator[Any]:
    """Yield the last row of each request. A first attempt starts a request: clients may reuse ids."""
    pending: dict[tuple[str, str], Any] = {}
    for row in rows:
        last = pending.setdefault((row.team, row.request), row)
        if row.attempt == 1:
            del pending[row.team, row.request]
            yield last
    yield from pending.values()


def _chosen(row: Any) -> RoutedRequest:
    adapter = row.adapter.rpartition("@")[0]
    used = f"{row.model}:{adapter}" if adapter else row.model
    return RoutedRequest(used, row.reason, row.score, row.accepted, row.cost_micro)


def judge(database: Database, team: str, request: str, accepted: bool) -> str | None:
    """Store the verdict on a team's last request with this id; the last verdict counts.

    Returns its model, or None if the verdict is unchanged.

    Raises NotFound, Conflict if it is still running, Unavailable.
    """
    query = sa.select(LEDGER).where(LEDGER.c.request == request, LEDGER.c.team == team)
    query = query.order_by(LEDGER.c.at.desc(), LEDGER.c.attempt.desc()).limit(1).with_for_update()
    with database.write() as connection:
        row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFound(
                f"No request {quoted(request)} of your team is in the ledger. Send the X-Request-Id of its answer.",
                code="request_not_found",
                param="request_id",
            )
        if row.state == "open":
            raise Conflict("This request has not ended yet. Send the feedback once it has.", code="request_running")
        if row.accepted == accepted:
            return None
        connection.execute(sa.update(LEDGER).where(LEDGER.c.uid == row.uid).values(accepted=accepted))
        raised, other = (HOURS.c.accepted, HOURS.c.rejected) if accepted else (HOURS.c.rejected, HOURS.c.accepted)
        alike = [HOURS.c[name] == getattr(row, name) for name in ("hour", *NAMES)]
        changed: dict[sa.Column[int], sa.ColumnElement[int]] = {raised: raised + 1}
        if row.accepted is not None:
            changed[other] = other - 1
        connection.execute(sa.update(HOURS).where(*alike).values(changed))
        return str(row.model)
