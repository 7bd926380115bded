"""Lines of rotations: a key, its successor, that one's successor. Limits of one of them are those of the whole line."""

import sqlalchemy as sa

from tenants.storage.tables import KEYS


def lines(connection: sa.Connection) -> dict[str, str]:
    """Of each key that is a successor the first of its line."""
    query = sa.select(KEYS.c.id, KEYS.c.replaces).where(KEYS.c.replaces.is_not(None))
    before: dict[str, str] = {row.id: row.replaces for row in connection.execute(query)}
    found = {}
    for id_ in before:
        first = id_
        while first in before:
            first = before[first]
        found[id_] = first
    return found


def line_of(id_: str, known: dict[str, str]) -> list[str]:
    """All keys of the line that a key is of, the first one first. known: what `lines` told."""
    first = known.get(id_, id_)
    return [first, *(other for other, its_first in known.items() if its_first == first)]
