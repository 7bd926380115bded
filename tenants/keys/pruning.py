"""Deletes keys that ended long ago."""

import sqlalchemy as sa

from registry.storage.database import Database
from tenants.keys.table import lines
from tenants.storage.tables import CHANGED, KEYS, LIMITS

BATCH = 500
"""Keys per transaction."""


def prune_keys(database: Database, before: float) -> int:
    """Delete keys that were revoked or expired before a moment, with their limits. Returns how many.

    The first key of a rotation chain stays as long as another of the chain does, because the chain's limits are stored
    under it. One key stays in any case, so that an emptied table never means 'open'. Raises Unavailable.
    """
    with database.read() as connection:
        rows = connection.execute(sa.select(KEYS.c.id, KEYS.c.created, KEYS.c.expires, KEYS.c.revoked)).all()
        firsts = lines(connection)
    ended = {row.id for row in rows if min(row.revoked or before, row.expires or before) < before}
    stays = {row.id for row in rows} - ended or {row.id for row in sorted(rows, key=lambda row: row.created)[-1:]}
    stays |= {firsts[id_] for id_ in stays if id_ in firsts}
    gone = sorted(ended - stays)
    for start in range(0, len(gone), BATCH):
        some = gone[start : start + BATCH]
        with database.write_durably() as connection:
            for id_ in stays & firsts.keys():
                cut = (KEYS.c.id == id_) & KEYS.c.replaces.in_(some)
                connection.execute(sa.update(KEYS).where(cut).values(replaces=firsts[id_]))
            connection.execute(sa.delete(LIMITS).where(LIMITS.c.owner == "key", LIMITS.c.subject.in_(some)))
            connection.execute(sa.delete(KEYS).where(KEYS.c.id.in_(some)))
            connection.execute(CHANGED)
    return len(gone)
