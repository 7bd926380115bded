"""The ledger in the database: rows and the sums of each hour, changed together."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from registry.storage.database import Database
from tenants.ledger.rows import COUNTS, NAMES, Entry, Settled
from tenants.storage.tables import HOURS, LEDGER, PRICES

SUMS = ("requests", "interrupted", *COUNTS, "lost_micro", "accepted", "rejected")
_BEGUN = (
    "uid", "request", "attempt", "at", "hour", "team", "key", "endpoint", "model", "revision", "adapter",
    "service_class", "source", "price_version", "reserved_tokens", "reserved_micro", "reserved_audio_ms",
    "asked", "router", "target", "reason", "score",
)  # fmt: skip
_ZERO = dict.fromkeys(COUNTS, 0)
_BEGIN = sa.insert(LEDGER)
_END = (
    sa.update(LEDGER)
    .where(LEDGER.c.uid == sa.bindparam("its_uid"))
    .values({name: sa.bindparam(f"its_{name}") for name in ("state", "end", "status", "code", "first_ms", *COUNTS)})
)
_ALIKE = ("hour", *NAMES)
_KEY = [HOURS.c[name] for name in _ALIKE]


@dataclass(frozen=True, slots=True)
class Difference:
    """Sums of an hour that are not those of its rows."""

    hour: int
    names: tuple[str, ...]
    rows: tuple[int, ...]
    kept: tuple[int, ...]


class LedgerTable:
    """Every call is one transaction. server: whose rows these are; several servers may share a database."""

    def __init__(self, database: Database, server: str, currency: str = "USD") -> None:
        self._database, self._server, self._currency = database, server, currency
        insert = sqlite.insert if database.is_sqlite else postgresql.insert
        self._priced: set[str] = set()
        """Versions of prices that are in the database."""
        self._price = insert(PRICES).on_conflict_do_nothing()
        upsert = (sqlite.insert if database.is_sqlite else postgresql.insert)(HOURS)
        grown = {name: HOURS.c[name] + upsert.excluded[name] for name in SUMS}
        self._grow = upsert.on_conflict_do_update(index_elements=_KEY, set_=grown)

    def write(self, begun: Sequence[Entry], ended: Sequence[Settled], *, again: bool = False) -> None:
        """What began, then what ended, of which everything began before or with it. Raises Unavailable.

        again: some of it may be written already: the connection broke at the commit.
        """
        with self._database.write() as connection:
            if begun:
                new = {"server": self._server, "state": "open", **_ZERO}
                rows = [{**{name: getattr(entry, name) for name in _BEGUN}, **new} for entry in begun]
                connection.execute(_BEGIN, rows)
                self._keep_prices(connection, begun)
            if again:
                uids = [one.entry.uid for one in ended]
                query = sa.select(LEDGER.c.uid).where(LEDGER.c.uid.in_(uids), LEDGER.c.state == "open")
                still = set(connection.execute(query).scalars())
                ended = [one for one in ended if one.entry.uid in still]
            if ended:
                connection.execute(_END, [_end(one) for one in ended])
                self._sum(connection, ((one.entry, _counts(one)) for one in ended))
        self._priced.update(entry.price_version for entry in begun)  # committed now

    def _keep_prices(self, connection: sa.Connection, begun: Sequence[Entry]) -> None:
        """Before the first row that is charged by it can be read."""
        for entry in begun:
            if entry.price is not None and entry.price_version not in self._priced:
                told = {"version": entry.price_version, "currency": self._currency, "created": entry.at}
                connection.execute(self._price, {**asdict(entry.price), **told})

    def interrupt(self) -> int:
        """End the rows that an earlier run of this server left open. Returns how many there were."""
        mine = (LEDGER.c.server == self._server) & (LEDGER.c.state == "open")
        with self._database.write() as connection:
            rows = connection.execute(sa.select(LEDGER).where(mine)).all()
            connection.execute(sa.update(LEDGER).where(mine).values(state="interrupted", end="interrupted"))
            self._sum(connection, ((row, {"interrupted": 1, "lost_micro": row.reserved_micro}) for row in rows))
        return len(rows)

    def _sum(self, connection: sa.Connection, ended: Iterable[tuple[Entry | sa.Row[Any], dict[str, int]]]) -> None:
        sums: dict[tuple[object, ...], Counter[str]] = {}
        for entry, counts in ended:
            key = tuple(getattr(entry, name) for name in _ALIKE)
            sums.setdefault(key, Counter()).update({"requests": 1, **counts})
        if sums:  # in one order, so that two servers never wait for each other
            keys = sorted(sums, key=str)
            rows = [{**dict(zip(_ALIKE, key, strict=True)), **{n: sums[key][n] for n in SUMS}} for key in keys]
            connection.execute(self._grow, rows)

    def open_rows(self) -> int:
        with self._database.read() as connection:
            query = sa.select(sa.func.count()).select_from(LEDGER).where(LEDGER.c.state == "open")
            return int(connection.execute(query).scalar_one())

    def differences(self) -> list[Difference]:
        """Hours whose sums are not those of their rows: none, or something outside has changed the tables."""
        alike = [LEDGER.c[name] for name in _ALIKE]
        interrupted = sa.func.sum(sa.case((LEDGER.c.state == "interrupted", 1), else_=0))
        lost = sa.func.sum(sa.case((LEDGER.c.state == "interrupted", LEDGER.c.reserved_micro), else_=0))
        told = (sa.func.sum(sa.case((LEDGER.c.accepted.is_(is_so), 1), else_=0)) for is_so in (True, False))
        counted = [sa.func.count(), interrupted, *(sa.func.sum(LEDGER.c[name]) for name in COUNTS), lost, *told]
        of_rows = sa.select(*alike, *counted).where(LEDGER.c.state != "open").group_by(*alike)
        of_hours = sa.select(*_KEY, *(HOURS.c[name] for name in SUMS))
        with self._database.read() as connection:
            rows, kept = (_by_key(connection.execute(query)) for query in (of_rows, of_hours))
        none = (0,) * len(SUMS)
        found = [(key, rows.get(key, none), kept.get(key, none)) for key in sorted({*rows, *kept}, key=str)]
        return [Difference(int(key[0]), key[1:], told, sums) for key, told, sums in found if told != sums]


def _by_key(rows: Iterable[sa.Row[Any]]) -> dict[tuple[Any, ...], tuple[int, ...]]:
    size = len(_ALIKE)
    return {tuple(row[:size]): tuple(map(int, row[size:])) for row in rows}


def _counts(ended: Settled) -> dict[str, int]:
    return {name: getattr(ended, name) for name in COUNTS}


def _end(ended: Settled) -> dict[str, Any]:
    told = {"state": "settled", "end": ended.end, "status": ended.status, "code": ended.code}
    values = {**told, "first_ms": ended.first_ms, **_counts(ended)}
    return {"its_uid": ended.entry.uid, **{f"its_{name}": value for name, value in values.items()}}
