"""What a router chose, with what was said of it afterwards."""

from dataclasses import dataclass

import sqlalchemy as sa

from registry.storage.database import Database
from tenants.storage.tables import LEDGER

MAX_ROWS = 200_000
"""Rows that a report reads, newest first."""


@dataclass(frozen=True, slots=True)
class Chosen:
    target: str
    reason: str
    score: float | None
    accepted: bool | None
    """None: nobody has said anything."""
    cost_micro: int


def chosen(database: Database, router: str, since: float) -> list[Chosen]:
    """Requests that any version of the router has sent somewhere, newest first."""
    columns = (LEDGER.c.target, LEDGER.c.reason, LEDGER.c.score, LEDGER.c.accepted, LEDGER.c.cost_micro)
    query = (
        sa.select(*columns)
        .where(LEDGER.c.router.startswith(f"{router}@", autoescape=True), LEDGER.c.at >= since)
        .where(LEDGER.c.router != "", LEDGER.c.source == "api")
        .order_by(LEDGER.c.at.desc())
        .limit(MAX_ROWS)
    )
    with database.read() as connection:
        return [Chosen(*row) for row in connection.execute(query)]
