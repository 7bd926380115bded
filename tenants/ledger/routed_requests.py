"""A router's choices, with the model that answered and its feedback."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from registry.storage.database import Database
from tenants.ledger.attempts import answering_row
from tenants.storage.tables import LEDGER

MAX_ROWS = 200_000
"""Rows that a report reads, newest first."""
_COLUMNS = (
    "team", "request", "attempt", "status", "code", "model", "adapter", "reason", "score", "accepted", "cost_micro",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    target: str
    """The target that answered, maybe another than was chosen: `model`, or `model:adapter`."""
    reason: str
    score: float | None
    accepted: bool | None
    """None: no feedback."""
    cost_micro: int


def routed_requests(database: Database, router: str, since: float, team: str | None = None) -> list[RoutedRequest]:
    """Requests that any version of the router has sent somewhere, newest first. team: None for all."""
    query = (
        sa.select(*(LEDGER.c[name] for name in _COLUMNS))
        .where(LEDGER.c.router.startswith(f"{router}@", autoescape=True), LEDGER.c.at >= since)
        .where(LEDGER.c.router != "", LEDGER.c.source == "api")
        .order_by(LEDGER.c.at.desc(), LEDGER.c.attempt.desc())
        .limit(MAX_ROWS)
    )
    if team is not None:
        query = query.where(LEDGER.c.team == team)
    with database.read() as connection:
        return [_chosen(answering_row(rows)) for rows in _requests(connection.execute(query))]


def _requests(rows: sa.CursorResult[Any]) -> Iterator[list[Any]]:
    """The rows of each, newest first. A request begins with its first attempt: clients may send an id again."""
    under_way: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in rows:
        under_way[row.team, row.request].append(row)
        if row.attempt == 1:
            yield under_way.pop((row.team, row.request))
    yield from under_way.values()


def _chosen(row: Any) -> RoutedRequest:
    adapter = row.adapter.rpartition("@")[0]
    used = f"{row.model}:{adapter}" if adapter else row.model
    return RoutedRequest(used, row.reason, row.score, row.accepted, row.cost_micro)
