"""Deletes keys that ended long ago."""

import sqlalchemy as sa

from registry.storage.database import Database
from tenants.keys.table import lines
from tenants.storage.tables import CHANGED, KEYS, LIMITS

PORTION = 500
"""Keys per transaction."""


def prune_keys(database: Database, before: float) -> int:
    """Delete keys that were revoked or expired before a moment, with their limits. Returns how many.

    The first key of a rotation chain stays as long as another of the chain does, because the chain's limits are stored
    under it. One key stays in any case, so that an emptied table never means 'open'. Raises Unavailable.
    """
    columns = KEYS.c.id, KEYS.c.replaces, KEYS.c.created, KEYS.c.expires, KEYS.c.revoked
    with database.write_durably() as connection:
        rows, firsts = connection.execute(sa.select(*columns)).all(), lines(connection)
        ended = {row.id for row in rows if min(row.revoked or before, row.expires or before) < before}
        stays = {row.id for row in rows} - ended
        if rows and not stays:
            stays = {max(rows, key=lambda row: row.created).id}
        stays |= {firsts[id_] for id_ in stays if id_ in firsts}
        gone = sorted(ended - stays)
        for row in rows:  # all at once, because its limits are found through the chain
            if row.id in stays and row.replaces is not None and row.replaces not in stays:
                query = sa.update(KEYS).where(KEYS.c.id == row.id)
                connection.execute(query.values(replaces=firsts[row.id]))
    for start in range(0, len(gone), PORTION):
        some = gone[start : start + PORTION]
        with database.write_durably() as connection:
            connection.execute(sa.delete(LIMITS).where(LIMITS.c.owner == "key", LIMITS.c.subject.in_(some)))
            connection.execute(sa.delete(KEYS).where(KEYS.c.id.in_(some)))
            connection.execute(CHANGED)
    return len(gone)
