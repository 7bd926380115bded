"""Epochs of servers, within transactions that depend on one."""

import sqlalchemy as sa

from batches.storage.tables import RUNNERS


def is_open(connection: sa.Connection, epoch: int) -> bool:
    """Whether an epoch is open; it then stays open until this transaction ends."""
    query = sa.select(RUNNERS.c.closed).where(RUNNERS.c.epoch == epoch).with_for_update(read=True)
    row = connection.execute(query).one_or_none()
    return row is not None and row.closed is None
