"""One request as the ledger has it: a row for each attempt."""

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from registry.storage.database import Database

MAX_ROWS = 100
"""Rows of one id: clients may send the same one often."""


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """Money is in millionths of the server's currency, as it is kept."""

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


def rows_of(database: "Database", request: str, team: str | None) -> list[LedgerRow]:
    """Newest first; of one team, or of all. Raises Unavailable."""
    import sqlalchemy as sa

    from tenants.storage.tables import LEDGER

    columns = [LEDGER.c[name] for name in LedgerRow.__struct_fields__]
    query = sa.select(*columns).where(LEDGER.c.request == request)
    if team is not None:
        query = query.where(LEDGER.c.team == team)
    with database.read() as connection:
        rows = connection.execute(query.order_by(LEDGER.c.at.desc(), LEDGER.c.attempt.desc()).limit(MAX_ROWS))
        return [LedgerRow(**row) for row in rows.mappings()]
