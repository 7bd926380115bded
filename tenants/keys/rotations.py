"""Rotation chains: a key and its successors share their limits."""

import sqlalchemy as sa

from tenants.storage.tables import KEYS


def lines(connection: sa.Connection) -> dict[str, str]:
    """Map each rotated key to the first key of its rotation chain."""
    query = sa.select(KEYS.c.id, KEYS.c.replaces).where(KEYS.c.replaces.is_not(None))
    before: dict[str, str] = {row.id: row.replaces for row in connection.execute(query)}
    roots = {}
    for id_ in before:
        first = id_
        while first in before:
            first = before[first]
        roots[id_] = first
    return roots


def rotation_chain(id_: str, roots: dict[str, str]) -> list[str]:
    """All keys of a key's chain, first one first. `roots` comes from `lines`."""
    first = roots.get(id_, id_)
    return [first, *(other for other, its_first in roots.items() if its_first == first)]
