"""Feedback on answers, stored on the request's row and in its hour's sums."""

import sqlalchemy as sa

from registry.base.wording import quoted
from registry.errors import Conflict, NotFound
from registry.storage.database import Database
from tenants.ledger.attempts import answering_row, last_request
from tenants.ledger.lookup import MAX_ROWS
from tenants.ledger.rows import NAMES
from tenants.storage.tables import HOURS, LEDGER


def judge(database: Database, team: str, request: str, accepted: bool) -> str | None:
    """Judge the answer to a team's last request of this id; the last verdict counts.

    Returns its model; None: the verdict was the same already.

    Raises NotFound, Conflict for one that is under way, Unavailable.
    """
    query = sa.select(LEDGER).where(LEDGER.c.request == request, LEDGER.c.team == team)
    query = query.order_by(LEDGER.c.at.desc(), LEDGER.c.attempt.desc()).limit(MAX_ROWS).with_for_update()
    with database.write() as connection:
        rows = last_request(connection.execute(query).all())
        if not rows:
            raise NotFound(
                f"No request {quoted(request)} of your team is in the ledger. Send the X-Request-Id of its answer.",
                code="request_not_found",
                param="request_id",
            )
        row = answering_row(rows)
        if row.state == "open":
            raise Conflict("This request is under way yet. Say it after its end.", code="request_running")
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
