"""Reads adapters from the state: three queries, however many there are, each made once."""

import sqlalchemy as sa

from registry.errors import NotFound
from registry.records import ROUTERS, Adapter, AdapterKey, Probe, Version
from registry.state.tables import ADAPTERS, ALIASES, CURRENTS, VERSIONS


def find_id(db: sa.Connection, key: AdapterKey) -> int | None:
    row_id: int | None = db.execute(_ID, key._asdict()).scalar()
    return row_id


def id_of(db: sa.Connection, key: AdapterKey) -> int:
    """Of one that is there."""
    row_id: int = db.execute(_ID, key._asdict()).scalar_one()
    return row_id


def listed(db: sa.Connection, *, routers: bool) -> tuple[Adapter, ...]:
    """All adapters, or all routers, ordered by base and name."""
    return _read(db, _ROUTERS if routers else _ADAPTERS, None)


def one(db: sa.Connection, key: AdapterKey) -> Adapter:
    """NotFound when it is not there."""
    adapters = _read(db, _ONE, key)
    if not adapters:
        raise missing(key)
    return adapters[0]


def missing(key: AdapterKey) -> NotFound:
    """What is told of one that is not there."""
    if key.base == ROUTERS:
        return NotFound(f"There is no router '{key.name}'; GET /v1/routers lists all.", code="router_not_found")
    return NotFound(f"There is no adapter '{key.name}' on model '{key.base}'.", code="adapter_not_found")


def _read(db: sa.Connection, queries: "_Queries", key: AdapterKey | None) -> tuple[Adapter, ...]:
    """With versions, aliases and current version."""
    values = {} if key is None else key._asdict()
    heads = db.execute(queries.heads, values).all()
    keys = {row.id: AdapterKey(row.base, row.name, row.team) for row in heads}
    versions: dict[int, list[Version]] = {id_: [] for id_ in keys}
    for row in db.execute(queries.versions, values):
        probe = None if row.prompt is None else Probe(row.prompt, row.expected)
        versions[row.adapter].append(
            Version(keys[row.adapter], row.number, row.digest, row.created, row.rank, row.bytes, row.source, probe)
        )
    aliases: dict[int, dict[str, int]] = {id_: {} for id_ in keys}
    for row in db.execute(queries.aliases, values):
        aliases[row.adapter][row.alias] = row.number
    adapters = (
        Adapter(
            key=keys[row.id], created=row.created, pinned=bool(row.pinned),
            current=next(v for v in versions[row.id] if v.number == row.current),
            versions=tuple(versions[row.id]), aliases=aliases[row.id], shared=bool(row.shared),
        )
        for row in heads
    )  # fmt: skip
    return tuple(sorted(adapters, key=lambda adapter: adapter.key))  # databases order texts in their own ways


class _Queries:
    """Of the adapters that a condition names."""

    def __init__(self, where: sa.ColumnElement[bool]) -> None:
        top = sa.select(CURRENTS.c.number).where(CURRENTS.c.adapter == ADAPTERS.c.id)
        top = top.order_by(CURRENTS.c.seq.desc()).limit(1)
        self.heads = sa.select(ADAPTERS, top.scalar_subquery().label("current")).where(where)
        of_it = sa.select(VERSIONS).join(ADAPTERS, ADAPTERS.c.id == VERSIONS.c.adapter).where(where)
        self.versions = of_it.order_by(VERSIONS.c.adapter, VERSIONS.c.number)
        named = sa.select(ALIASES).join(ADAPTERS, ADAPTERS.c.id == ALIASES.c.adapter).where(where)
        self.aliases = named.order_by(ALIASES.c.adapter, ALIASES.c.alias)


_KEY = sa.and_(*(ADAPTERS.c[name] == sa.bindparam(name, type_=sa.Text()) for name in AdapterKey._fields))
_ID = sa.select(ADAPTERS.c.id).where(_KEY)
_ONE, _ADAPTERS, _ROUTERS = _Queries(_KEY), _Queries(ADAPTERS.c.base != ROUTERS), _Queries(ADAPTERS.c.base == ROUTERS)
