"""Versioned names with aliases and rollback, for adapters and routers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import sqlalchemy as sa

from registry.errors import BadRequest, Conflict, NotFound
from registry.names import ALIAS, DIGEST_PREFIX, NAME_RULE, VERSION
from registry.records import Versioned
from registry.state.access import TableAccess
from registry.state.tables import VersionTables
from registry.storage.database import inserting, put

MOST_CURRENTS = 100
"""Versions that a name remembers as current, the present one included. Rollbacks return to the others in turn."""
MOST_ALIASES = 1000
"""Aliases of one name. Each is read again with every change, and keeps its version."""


class NameKey(Protocol):
    """A NamedTuple whose fields are the key columns of its tables."""

    def _asdict(self) -> dict[str, Any]: ...


K = TypeVar("K", bound=NameKey)
R = TypeVar("R", bound=Versioned[Any, Any])
Rows = Sequence[sa.Row[Any]]


class VersionTable(ABC, Generic[K, R]):
    """Every write is one transaction that succeeds as a whole or raises.

    Writes block on the database; run them in a thread. Reads come from memory.

    | method       | no such name | exists                                                           |
    |--------------|--------------|------------------------------------------------------------------|
    | point        | NotFound     | makes that version current; rollback returns to the previous one |
    | rollback     | NotFound     | makes the previously current version current; Conflict if none   |
    |              |              | with a version: as `point`                                       |
    | set_alias    | NotFound     | points the alias to that version, whatever it pointed to before  |
    | remove_alias | NotFound     | removes the alias; NotFound if there is none                     |
    | prune        | NotFound     | deletes old versions that are not current, aliased or in use     |
    """

    def __init__(self, access: TableAccess, tables: VersionTables, clock: Callable[[], float]) -> None:
        self._access, self._tables, self._clock = access, tables, clock
        self._queries = _Queries(tables)
        self._cache: tuple[tuple[R, ...], frozenset[K]] | None = None
        """All records, and every name ever used."""
        self.reserved: frozenset[str] = frozenset()
        """Digests whose files are kept although no version here has them."""

    # --- defined by subclasses ---------------------------------------------------------------------------------------
    @abstractmethod
    def _key(self, row: Sequence[Any]) -> K:
        """Make a key from the values of its columns."""

    @abstractmethod
    def _record(self, key: K, head: sa.Row[Any], versions: Rows, aliases: Mapping[str, int]) -> R: ...

    def _used(self, names: Iterable[K]) -> frozenset[K]:
        """Return the names ever used. Subclasses may index them, since this runs in a thread."""
        return frozenset(names)

    @abstractmethod
    def missing(self, key: K) -> NotFound:
        """Return the error for a name that does not exist."""

    # --- reading ---------------------------------------------------------------------------------------------------
    def all(self) -> tuple[R, ...]:
        """Return every record, ordered by key. Only the first call uses the database."""
        return self._read()[0]

    def get(self, key: K) -> R:
        """Return one record. Uses the database as `all` does. Raises NotFound."""
        match = next((record for record in self.all() if record.key == key), None)
        if match is None:
            raise self.missing(key)
        return match

    def ever(self) -> frozenset[K]:
        """Return every name ever used, including deleted ones. Uses the database as `all` does."""
        return self._read()[1]

    def _read(self) -> tuple[tuple[R, ...], frozenset[K]]:
        if self._cache is None or not self._access.alone:
            with self._access.read() as db:
                self._cache = self._load(db)
        return self._cache

    def _reload_one(self, key: K, db: sa.Connection) -> Callable[[], None]:
        """Read one record, since thousands of others take a tenth of a second."""
        assert self._cache is not None
        records, ever = self._cache
        others = [record for record in records if record.key != key]
        changed = self._records(db, self._queries.single, key)
        content = (
            tuple(sorted((*others, *changed), key=lambda record: record.key)),
            ever if key in ever else self._used((*ever, key)),
        )
        return partial(setattr, self, "_cache", content)

    def reload(self, db: sa.Connection) -> Callable[[], None]:
        """Read all records; see `registry.state.access.Load`."""
        return partial(setattr, self, "_cache", self._load(db))

    def _load(self, db: sa.Connection) -> tuple[tuple[R, ...], frozenset[K]]:
        names = db.execute(sa.select(*self._tables.numbers.primary_key))
        return self._records(db, self._queries.every, None), self._used(self._key(row) for row in names)

    def _records(self, db: sa.Connection, queries: "_Selection", key: K | None) -> tuple[R, ...]:
        """Read records with three queries, whatever their number."""
        values = {} if key is None else key._asdict()
        heads = db.execute(queries.heads, values).all()
        versions: dict[int, list[sa.Row[Any]]] = {row.id: [] for row in heads}
        for row in db.execute(queries.versions, values):
            versions[row.owner].append(row)
        aliases: dict[int, dict[str, int]] = {row.id: {} for row in heads}
        for row in db.execute(queries.aliases, values):
            aliases[row.owner][row.alias] = row.number
        keys = {row.id: self._key([getattr(row, name) for name in self._tables.key_names]) for row in heads}
        records = (self._record(keys[row.id], row, versions[row.id], aliases[row.id]) for row in heads)
        return tuple(sorted(records, key=lambda record: record.key))  # databases order texts differently

    def _one(self, db: sa.Connection, key: K) -> R:
        records = self._records(db, self._queries.single, key)
        if not records:
            raise self.missing(key)
        return records[0]

    def _id(self, db: sa.Connection, key: K) -> int | None:
        row_id: int | None = db.execute(self._queries.id, key._asdict()).scalar()
        return row_id

    # --- writing ---------------------------------------------------------------------------------------------------
    @contextmanager
    def _write(self, key: K) -> Iterator[sa.Connection]:
        """Open a transaction that changes one name, and whose commit survives a loss of power."""

        def load(db: sa.Connection) -> Callable[[], None]:
            # Other servers of a fleet may have changed other names, which their revision reports only once.
            is_current = self._cache is not None and self._access.alone and self._access.revision is None
            return self._reload_one(key, db) if is_current else self.reload(db)

        with self._access.change(load) as db:
            yield db

    @contextmanager
    def _change(self, key: K) -> Iterator[tuple[sa.Connection, R, int]]:
        """Open a transaction on an existing name, with its record and row id. Raises NotFound."""
        with self._write(key) as db:
            record, row_id = self._one(db, key), self._id(db, key)
            assert row_id is not None
            yield db, record, row_id

    def _add_version(self, db: sa.Connection, key: K, values: Mapping[str, Any]) -> None:
        """Add a version to a name, new or not, and make it the current one."""
        row_id, now = self._id(db, key), self._clock()
        if row_id is None:
            heads = self._tables.heads
            insert = sa.insert(heads).values(**key._asdict(), created=now).returning(heads.c.id)
            row_id = db.execute(insert).scalar_one()
        numbers = self._tables.numbers
        first = inserting(db, numbers).values(**key._asdict(), last=1)
        next_ = first.on_conflict_do_update(index_elements=self._tables.key_names, set_={"last": numbers.c.last + 1})
        number: int = db.execute(next_.returning(numbers.c.last)).scalar_one()
        db.execute(sa.insert(self._tables.versions).values(owner=row_id, number=number, created=now, **values))
        self._make_current(db, row_id, number)

    def _make_current(self, db: sa.Connection, row_id: int, number: int) -> None:
        currents = self._tables.currents
        db.execute(sa.insert(currents).values(owner=row_id, number=number))
        stack = sa.select(currents.c.seq).where(currents.c.owner == row_id).order_by(currents.c.seq.desc())
        oldest = stack.offset(MOST_CURRENTS).limit(1).scalar_subquery()
        db.execute(sa.delete(currents).where(currents.c.owner == row_id, currents.c.seq <= oldest))

    def point(self, key: K, ref: str) -> R:
        """Make the version that `ref` names the current one."""
        with self._change(key) as (db, record, row_id):
            version = record.version(ref)
            if version.number != record.current.number:
                self._make_current(db, row_id, version.number)
            return self._one(db, key)

    def rollback(self, key: K, ref: str | None = None) -> R:
        """Go back to a version, by default the previously current one; a second call goes back one more."""
        if ref:
            return self.point(key, ref)
        with self._change(key) as (db, record, row_id):
            currents = self._tables.currents
            query = sa.select(currents.c.seq).where(currents.c.owner == row_id).order_by(currents.c.seq)
            stack = db.execute(query).scalars().all()
            if len(stack) < 2:
                raise Conflict(
                    f"{record.title} has nothing to roll back to: {record.current.tag} is its first current version.",
                    code="nothing_to_roll_back",
                )
            db.execute(sa.delete(currents).where(currents.c.seq == stack[-1]))
            return self._one(db, key)

    def set_alias(self, key: K, alias: str, ref: str | None = None) -> R:
        """Point `alias` to the version that `ref` names, by default the current one.

        Raises Conflict (too_many_aliases) for a new one beyond MOST_ALIASES.
        """
        check_alias(alias)
        with self._write(key) as db:
            return self._move_alias(db, key, alias, ref)

    def _move_alias(self, db: sa.Connection, key: K, alias: str, ref: str | None) -> R:
        record = self._one(db, key)
        version = record.version(ref)
        if alias not in record.aliases and len(record.aliases) >= MOST_ALIASES:
            raise Conflict(
                f"{record.title} has {MOST_ALIASES} aliases, the most that one name may have. Remove some first.",
                code="too_many_aliases",
            )
        if record.aliases.get(alias) != version.number:
            put(db, self._tables.aliases, {"owner": self._id(db, key), "alias": alias, "number": version.number})
        return self._one(db, key)

    def remove_alias(self, key: K, alias: str) -> R:
        """Remove an alias. Raises NotFound (alias_not_found)."""
        with self._change(key) as (db, record, row_id):
            aliases = self._tables.aliases
            delete = sa.delete(aliases).where(aliases.c.owner == row_id, aliases.c.alias == alias)
            if not db.execute(delete).rowcount:
                raise NotFound(f"{record.title} has no alias '{alias}'.", code="alias_not_found")
            return self._one(db, key)

    def prune(self, key: K, most: int, in_use: Collection[str] = ()) -> R:
        """Delete all versions but the newest `most`, those with an alias, and those with a digest in `in_use`.

        Neither the current version is deleted nor the one that `rollback` would return to.
        """
        with self._change(key) as (db, record, row_id):
            versions, currents = self._tables.versions, self._tables.currents
            stack = sa.select(currents.c.number).where(currents.c.owner == row_id).order_by(currents.c.seq.desc())
            kept = {*db.execute(stack.limit(2)).scalars(), *record.aliases.values()}
            kept |= {version.number for version in record.versions if version.digest in in_use}
            newest = [version.number for version in record.versions[-most:]]
            old = versions.c.number < newest[0], versions.c.number.not_in(kept)
            db.execute(sa.delete(versions).where(versions.c.owner == row_id, *old))
            self._mend_stack(db, row_id, newest[-1])
            return self._one(db, key)

    def _mend_stack(self, db: sa.Connection, row_id: int, newest: int) -> None:
        """Keep the stack of current versions free of equal neighbours, and never empty."""
        before, currents = None, self._tables.currents
        stack = sa.select(currents.c.seq, currents.c.number).where(currents.c.owner == row_id).order_by(currents.c.seq)
        for seq, number in db.execute(stack).all():
            if number == before:
                db.execute(sa.delete(currents).where(currents.c.seq == seq))
            before = number
        if before is None:
            self._make_current(db, row_id, newest)

    def _delete(self, db: sa.Connection, row_id: int) -> None:
        """Delete a name with all versions. If it is registered again, its version numbers continue."""
        db.execute(sa.delete(self._tables.heads).where(self._tables.heads.c.id == row_id))


def check_alias(alias: str) -> None:
    """Raise BadRequest for an invalid alias, or one that looks like a version or digest."""
    if not ALIAS.match(alias) or VERSION.match(alias) or DIGEST_PREFIX.match(alias):
        raise BadRequest(
            f"'{alias[:80]}' is not a valid alias: {NAME_RULE}; and it must not look like a version (v3).",
            param="alias",
        )


# --- queries, each built once ----------------------------------------------------------------------------------------
class _Selection:
    """Heads, versions and aliases of the names that a condition selects."""

    def __init__(self, tables: VersionTables, where: sa.ColumnElement[bool]) -> None:
        heads, versions, currents, aliases = tables.heads, tables.versions, tables.currents, tables.aliases
        top = sa.select(currents.c.number).where(currents.c.owner == heads.c.id)
        top = top.order_by(currents.c.seq.desc()).limit(1)
        self.heads = sa.select(heads, top.scalar_subquery().label("current")).where(where)
        selected = sa.select(versions).join(heads, heads.c.id == versions.c.owner).where(where)
        self.versions = selected.order_by(versions.c.owner, versions.c.number)
        named = sa.select(aliases).join(heads, heads.c.id == aliases.c.owner).where(where)
        self.aliases = named.order_by(aliases.c.owner, aliases.c.alias)


class _Queries:
    def __init__(self, tables: VersionTables) -> None:
        key = sa.and_(*(tables.heads.c[name] == sa.bindparam(name, type_=sa.Text()) for name in tables.key_names))
        self.id = sa.select(tables.heads.c.id).where(key)
        self.single, self.every = _Selection(tables, key), _Selection(tables, sa.true())
