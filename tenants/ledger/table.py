"""The ledger in the database: rows and hourly sums, always changed together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import add, attrgetter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from registry.storage.database import Database, PreparedStatement
from tenants.ledger.pruning import first_kept_hour
from tenants.ledger.rows import BATCH, COUNTS, NAMES, Entry, Rider, Settlement
from tenants.storage.tables import HOURS, LEDGER, PRICES

SUMS = ("requests", "interrupted", *COUNTS, "lost_micro", "accepted", "rejected")
_BEGUN = (
    "uid", "request", "attempt", "at", "hour", "team", "key", "endpoint", "model", "revision", "adapter",
    "service_class", "source", "price_version", "reserved_tokens", "reserved_micro", "reserved_audio_ms",
    "asked", "router", "target", "reason", "score",
)  # fmt: skip
_ENDED = ("revision", "end", "status", "code", "first_ms", *COUNTS)
_ZEROS = (0,) * len(COUNTS)
_END, _END_LATE = (
    sa.update(LEDGER)
    .where(LEDGER.c.uid == sa.bindparam("its_uid"), LEDGER.c.state == sa.literal_column(f"'{state}'"))
    .values({"state": sa.bindparam("its_state"), **{name: sa.bindparam(f"its_{name}") for name in _ENDED}})
    for state in ("open", "interrupted")
)
_begun, _ended, _counts = attrgetter(*_BEGUN), attrgetter("entry.uid", *_ENDED), attrgetter(*COUNTS)
_ALIKE = ("hour", *NAMES)
_KEY = [HOURS.c[name] for name in _ALIKE]
_alike = attrgetter(*_ALIKE)
_NO_RIDERS: Mapping[str, Rider] = {}
_NOTHING_RESERVED = {"reserved_tokens": 0, "reserved_micro": 0, "reserved_audio_ms": 0}


@dataclass(frozen=True, slots=True)
class Difference:
    """Sums of an hour that do not match its rows."""

    hour: int
    names: tuple[str, ...]
    rows: tuple[int, ...]
    sums: tuple[int, ...]


class _RowState(NamedTuple):
    """A row that may end."""

    is_open: bool
    reserved_micro: int


class _NotOpen(Exception):
    """Some rows had already ended: roll back, and write only those still open."""


class LedgerTable:
    """Each call is one transaction.

    Args:
        server: id of the server that owns these rows; several servers may share a database.
        in_fleet: other servers end this server's rows if it is silent for long; its own ends replace theirs.
    """

    def __init__(self, database: Database, server: str, currency: str = "USD", *, in_fleet: bool = False) -> None:
        self._database, self._server, self._currency, self._in_fleet = database, server, currency, in_fleet
        insert = sqlite.insert if database.is_sqlite else postgresql.insert
        self._priced: set[str] = set()
        """Versions of prices that are in the database."""
        self._price = insert(PRICES).on_conflict_do_nothing()
        upsert = insert(HOURS)
        grown = {name: HOURS.c[name] + upsert.excluded[name] for name in SUMS}
        grow = upsert.on_conflict_do_update(index_elements=_KEY, set_=grown)
        dialect = database.engine.dialect
        names = (*_BEGUN, "server", "state", *COUNTS)
        self._begin = PreparedStatement(sa.insert(LEDGER), dialect, names)
        self._begin_again = PreparedStatement(insert(LEDGER).on_conflict_do_nothing(), dialect, names)
        ends = ("its_uid", *(f"its_{name}" for name in _ENDED), "its_state")
        self._end, self._end_late = (PreparedStatement(end, dialect, ends) for end in (_END, _END_LATE))
        self._grow = PreparedStatement(grow, dialect, (*_ALIKE, *SUMS))

    def write(
        self,
        begun: Sequence[Entry],
        ended: Sequence[Settlement],
        *,
        again: bool = False,
        riders: Mapping[str, Rider] = _NO_RIDERS,
    ) -> None:
        """Write beginnings, then ends. Each end's beginning was written earlier or in this call. Raises Unavailable.

        riders: by the uid of their rows.

        again: some rows may be written already, because the connection broke at the commit or the server was killed
            before it cleared the journal. Existing rows stay as they are, unless they are open and end now, or another
            server of the fleet ended them because this one was silent.
        """
        try:
            self._write(begun, ended, again, riders)
        except _NotOpen:
            self._write(begun, ended, True, riders)
        self._priced.update(entry.price_version for entry in begun)  # committed now

    def _write(
        self, begun: Sequence[Entry], ended: Sequence[Settlement], again: bool, riders: Mapping[str, Rider]
    ) -> None:
        with self._database.write() as connection:
            if riders:
                ended = [one if _may_ride(connection, one, riders) else _without_answer(one) for one in ended]
            if begun:
                new = (self._server, "open", *_ZEROS)
                begin = self._begin_again if again else self._begin
                begin.run(connection, [(*_begun(entry), *new) for entry in begun])
                self._keep_prices(connection, begun)
            if again:
                firsts = {one.entry.uid: one for one in reversed(ended)}  # a row ends once
                states = self._states(connection, firsts)
                self._write_late(connection, firsts, states)
                ended = [first for uid, first in firsts.items() if uid in states and states[uid].is_open]
            if ended:
                if self._end.run(connection, [(*_ended(one), "settled") for one in ended]) < len(ended) and not again:
                    raise _NotOpen
                self._sum(connection, ((one.entry, (1, 0, *_counts(one), 0, 0, 0)) for one in ended))
                for one in ended if riders else ():
                    if (rider := riders.get(one.entry.uid)) is not None:
                        rider.write(connection)

    def _states(self, connection: sa.Connection, uids: Iterable[str]) -> dict[str, _RowState]:
        """Return the rows that may end: open ones, and ours ended by others, except batch lines, which are repeated."""
        which = LEDGER.c.state == "open"
        if self._in_fleet:
            swept = (LEDGER.c.state == "interrupted") & (LEDGER.c.server == self._server) & (LEDGER.c.source != BATCH)
            which |= swept
        columns = (LEDGER.c.uid, LEDGER.c.state, LEDGER.c.reserved_micro)
        query = sa.select(*columns).where(LEDGER.c.uid.in_(list(uids)), which)
        rows = connection.execute(query.with_for_update())
        return {row.uid: _RowState(row.state == "open", row.reserved_micro) for row in rows}

    def _write_late(
        self, connection: sa.Connection, ended: Mapping[str, Settlement], states: Mapping[str, _RowState]
    ) -> None:
        """Replace the charge of the highest possible cost with the true cost."""
        late = [(one, states[uid]) for uid, one in ended.items() if uid in states and not states[uid].is_open]
        self._end_late.run(connection, [(*_ended(one), "settled") for one, _ in late])
        self._sum(connection, ((one.entry, (0, -1, *_counts(one), -row.reserved_micro, 0, 0)) for one, row in late))

    def _keep_prices(self, connection: sa.Connection, begun: Sequence[Entry]) -> None:
        """Store prices before the first row that is charged by them can be read."""
        for entry in begun:
            if entry.price is not None and entry.price_version not in self._priced:
                version = {"version": entry.price_version, "currency": self._currency, "created": entry.at}
                connection.execute(self._price, {**asdict(entry.price), **version})

    def interrupt(self, *, alone: bool = False) -> int:
        """End the rows that an earlier run of this server left open. Returns how many there were.

        Each counts as the most that it could have cost, except attempts at batch lines, which are repeated.

        alone: no other server uses the database, so rows of other servers come from the one a backup was made of.
        """
        with self._database.write() as connection:
            return self._interrupt(connection, sa.true() if alone else LEDGER.c.server == self._server)

    def interrupt_server(self, server: str) -> int:
        """Like `interrupt`, for another server that is dead. If its own ends arrive later, they count."""
        with self._database.write() as connection:
            return self._interrupt(connection, LEDGER.c.server == server)

    def interrupt_lines(self, connection: sa.Connection, server: str) -> int:
        """End the open rows of another server's batch lines, in the transaction that takes these lines over."""
        return self._interrupt(connection, (LEDGER.c.server == server) & (LEDGER.c.source == BATCH))

    def _interrupt(self, connection: sa.Connection, which: sa.ColumnElement[bool]) -> int:
        mine = which & (LEDGER.c.state == "open")
        repeated = sa.update(LEDGER).where(mine, LEDGER.c.source == BATCH)
        connection.execute(repeated.values(**_NOTHING_RESERVED))
        rows = connection.execute(sa.select(LEDGER).where(mine).with_for_update()).all()
        connection.execute(sa.update(LEDGER).where(mine).values(state="interrupted", end="interrupted"))
        self._sum(connection, ((row, (1, 1, *_ZEROS, row.reserved_micro, 0, 0)) for row in rows))
        return len(rows)

    def _sum(self, connection: sa.Connection, ended: Iterable[tuple[Entry | sa.Row[Any], tuple[int, ...]]]) -> None:
        """Add to the hourly sums. ended: rows, each with its contribution to each of `SUMS`."""
        sums: dict[tuple[object, ...], tuple[int, ...]] = {}
        for entry, counts in ended:
            key = _alike(entry)
            sums[key] = tuple(map(add, sums[key], counts)) if key in sums else counts
        keys = sorted(sums, key=str)  # always in the same order, so that two servers never deadlock
        self._grow.run(connection, [(*key, *sums[key]) for key in keys])

    def open_rows(self) -> int:
        with self._database.read() as connection:
            query = sa.select(sa.func.count()).select_from(LEDGER).where(LEDGER.c.state == "open")
            return int(connection.execute(query).scalar_one())

    def differences(self) -> list[Difference]:
        """Return the hours whose sums do not match their rows: none, unless something else changed the tables.

        Hours whose rows were deleted are skipped (`tenants.ledger.pruning`).
        """
        alike = [LEDGER.c[name] for name in _ALIKE]
        interrupted = sa.func.sum(sa.case((LEDGER.c.state == "interrupted", 1), else_=0))
        lost_cost = sa.func.sum(sa.case((LEDGER.c.state == "interrupted", LEDGER.c.reserved_micro), else_=0))
        judged = (sa.func.sum(sa.case((LEDGER.c.accepted.is_(is_so), 1), else_=0)) for is_so in (True, False))
        counted = [sa.func.count(), interrupted, *(sa.func.sum(LEDGER.c[name]) for name in COUNTS), lost_cost, *judged]
        of_rows = sa.select(*alike, *counted).where(LEDGER.c.state != "open").group_by(*alike)
        of_hours = sa.select(*_KEY, *(HOURS.c[name] for name in SUMS))
        with self._database.read() as connection:
            since = first_kept_hour(connection)
            queries = of_rows.where(LEDGER.c.hour >= since), of_hours.where(HOURS.c.hour >= since)
            rows, sums_stored = (_by_key(connection.execute(query)) for query in queries)
        none = (0,) * len(SUMS)
        compared = [
            (key, rows.get(key, none), sums_stored.get(key, none)) for key in sorted({*rows, *sums_stored}, key=str)
        ]
        return [Difference(int(key[0]), key[1:], judged, sums) for key, judged, sums in compared if judged != sums]


def _may_ride(connection: sa.Connection, settled: Settlement, riders: Mapping[str, Rider]) -> bool:
    rider = riders.get(settled.entry.uid)
    return rider is None or rider.may_write(connection)


def _without_answer(settled: Settlement) -> Settlement:
    """Return the end of an attempt whose answer nobody receives or pays for."""
    return Settlement(settled.entry, "cancelled", None, None, total_ms=settled.total_ms)


def _by_key(rows: Iterable[sa.Row[Any]]) -> dict[tuple[Any, ...], tuple[int, ...]]:
    size = len(_ALIKE)
    return {tuple(row[:size]): tuple(map(int, row[size:])) for row in rows}
