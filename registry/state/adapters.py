"""Adapters in the state: versions, the current one, aliases, pins and garbage."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from registry.errors import BadRequest, Conflict, NotFound
from registry.names import ADAPTER, ALIAS, DIGEST, DIGEST_PREFIX, NAME_RULE, VERSION
from registry.records import Adapter, AdapterKey, NewVersion, Probe, RegisteredVersion
from registry.state import adapter_rows as rows
from registry.state.tables import ADAPTERS, ALIASES, CURRENTS, DIGESTS, NUMBERS, VERSIONS
from registry.storage.database import Database, inserting, put


class AdapterTable:
    """Every write is one transaction: it happens whole, or an error is raised and nothing has changed.

    Writes wait for the database, so call them in threads. Who reads waits for nothing: the state is in memory.

    | method         | no such adapter | exists                                                             |
    |----------------|-----------------|--------------------------------------------------------------------|
    | register       | v1, current     | next version, current; digest of the current one: at most its probe |
    | point          | NotFound        | that version is current; rollback comes back to the one before     |
    | rollback       | NotFound        | the version that was current before; Conflict when there is none   |
    | set_alias      | NotFound        | alias points to that version, whatever it pointed to before        |
    | delete_version | NotFound        | Conflict while current or aliased, unless `force`                  |
    | delete         | NotFound        | Conflict while aliased or pinned, unless `force`                   |
    """

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.time,
        *,
        routers: bool = False,
        alone: bool = True,
    ) -> None:
        """routers: it is those that `all` lists, and not adapters. alone: nobody else writes."""
        self._database = database
        self._clock = clock
        self._routers = routers
        self._alone, self._writing = alone, threading.Lock()
        self._cache: tuple[tuple[Adapter, ...], frozenset[AdapterKey]] | None = None
        """What there is, and every name there ever was."""

    # --- reading ---------------------------------------------------------------------------------------------------
    def all(self) -> tuple[Adapter, ...]:
        """Every adapter, ordered by base and name. Only the first call asks the database."""
        return self._read()[0]

    def get(self, key: AdapterKey) -> Adapter:
        """One adapter; NotFound (code adapter_not_found) when it is not there. As `all`."""
        match = next((adapter for adapter in self.all() if adapter.key == key), None)
        if match is None:
            raise rows.missing(key)
        return match

    def ever(self) -> frozenset[AdapterKey]:
        """Every name that was ever given, also those of adapters that were deleted. As `all`."""
        return self._read()[1]

    def _read(self) -> tuple[tuple[Adapter, ...], frozenset[AdapterKey]]:
        if self._cache is None or not self._alone:
            with self._writing, self._database.read() as db:
                self._cache = self._load(db)
        return self._cache

    def _load(self, db: sa.Connection) -> tuple[tuple[Adapter, ...], frozenset[AdapterKey]]:
        names = db.execute(sa.select(NUMBERS.c.base, NUMBERS.c.name, NUMBERS.c.team))
        return rows.listed(db, routers=self._routers), frozenset(AdapterKey(*row) for row in names)

    @contextmanager
    def _write(self) -> Iterator[sa.Connection]:
        """What it has changed is known once it is committed, and then survives a loss of power."""
        with self._writing:
            with self._database.write() as db:
                yield db
                content = self._load(db)
            self._cache = content
        self._database.sync()

    # --- versions --------------------------------------------------------------------------------------------------
    def register(
        self, key: AdapterKey, new: NewVersion, alias: str | None = None, shared: bool | None = None
    ) -> RegisteredVersion:
        """Make `new` the current version, and point `alias` to it: both, or nothing.

        shared: None leaves it as it is; a new adapter is then its team's alone. Raises BadRequest for a name, digest or
        alias that does not match its pattern.
        """
        if alias is not None:
            check_alias(alias)
        if not ADAPTER.match(key.name):
            raise BadRequest(f"'{key.name[:80]}' is no adapter name: {NAME_RULE}.", param="name")
        if not DIGEST.match(new.digest):
            raise BadRequest("A digest is 'sha256:' and 64 hex digits.", param="digest")
        with self._write() as db:
            registered = self._register(db, key, new)
            if alias is not None:
                self._move_alias(db, key, alias, registered.version.tag)
            if shared is not None:
                self._share(db, key, shared)
            return RegisteredVersion(rows.one(db, key), registered.version, registered.created)

    def _register(self, db: sa.Connection, key: AdapterKey, new: NewVersion) -> RegisteredVersion:
        now = self._clock()
        row_id = rows.find_id(db, key)
        if row_id is not None:
            adapter = rows.one(db, key)
            if adapter.current.digest == new.digest:
                return self._same_content(db, adapter, new.probe)
        else:
            insert = sa.insert(ADAPTERS).values(**key._asdict(), created=now).returning(ADAPTERS.c.id)
            row_id = db.execute(insert).scalar_one()
        counted = inserting(db, NUMBERS).values(**key._asdict(), last=1)
        grown = counted.on_conflict_do_update(index_elements=AdapterKey._fields, set_={"last": NUMBERS.c.last + 1})
        number: int = db.execute(grown.returning(NUMBERS.c.last)).scalar_one()
        db.execute(inserting(db, DIGESTS).values(digest=new.digest, bytes=new.bytes).on_conflict_do_nothing())
        probe = new.probe
        values = {
            "adapter": row_id, "number": number, "digest": new.digest, "created": now, "rank": new.rank,
            "bytes": new.bytes, "source": new.source, "prompt": probe and probe.prompt,
            "expected": probe and probe.expected,
        }  # fmt: skip
        db.execute(sa.insert(VERSIONS).values(values))
        _make_current(db, row_id, number)
        adapter = rows.one(db, key)
        return RegisteredVersion(adapter, adapter.current, created=True)

    def _same_content(self, db: sa.Connection, adapter: Adapter, probe: Probe | None) -> RegisteredVersion:
        """No new version; a probe that is given takes the place of the version's own."""
        current = adapter.current
        if probe is not None and probe != current.probe:
            of_version = (VERSIONS.c.adapter == rows.id_of(db, adapter.key)) & (VERSIONS.c.number == current.number)
            db.execute(sa.update(VERSIONS).where(of_version).values(prompt=probe.prompt, expected=probe.expected))
            adapter = rows.one(db, adapter.key)
        return RegisteredVersion(adapter, adapter.current, created=False)

    def point(self, key: AdapterKey, ref: str) -> Adapter:
        """Make the version that `ref` names the current one."""
        with self._write() as db:
            adapter = rows.one(db, key)
            version = adapter.version(ref)
            if version.number != adapter.current.number:
                _make_current(db, rows.id_of(db, key), version.number)
            return rows.one(db, key)

    def rollback(self, key: AdapterKey) -> Adapter:
        """Go back to the version that was current before; a second call goes back one more."""
        with self._write() as db:
            before, row = rows.one(db, key), rows.id_of(db, key)
            of_it = CURRENTS.c.adapter == row
            stack = db.execute(sa.select(CURRENTS.c.seq).where(of_it).order_by(CURRENTS.c.seq)).scalars().all()
            if len(stack) < 2:
                raise Conflict(
                    f"{key.what} '{key}' has nothing to go back to: {before.current.tag} is its first current version.",
                    code="nothing_to_roll_back",
                )
            db.execute(sa.delete(CURRENTS).where(CURRENTS.c.seq == stack[-1]))
            return rows.one(db, key)

    def delete_version(self, key: AdapterKey, ref: str, *, force: bool = False) -> Adapter | None:
        """Forget one version. Returns what is left; None: it was the last one and the adapter is gone.

        With `force` its aliases go too; if it was current, the one before it is, else the newest that is left.
        """
        with self._write() as db:
            adapter = rows.one(db, key)
            version = adapter.version(ref)
            uses = [f"alias '{alias}'" for alias, number in adapter.aliases.items() if number == version.number]
            if version.number == adapter.current.number:
                uses.insert(0, "it is the current version")
            if uses and not force:
                raise Conflict(
                    f"Version {version.tag} of '{key}' is in use: {', '.join(uses)}. "
                    "Point these elsewhere first, or force the deletion.",
                    code="adapter_in_use",
                )
            remaining = [v.number for v in adapter.versions if v.number != version.number]
            row = rows.id_of(db, key)
            if not remaining:
                db.execute(sa.delete(ADAPTERS).where(ADAPTERS.c.id == row))
                return None
            db.execute(sa.delete(VERSIONS).where(VERSIONS.c.adapter == row, VERSIONS.c.number == version.number))
            _mend_stack(db, row, remaining[-1])
            return rows.one(db, key)

    def delete(self, key: AdapterKey, *, force: bool = False) -> None:
        """Forget the adapter with all versions. Its numbers go on from where they stood if the name comes back."""
        with self._write() as db:
            adapter = rows.one(db, key)
            uses = [f"alias '{alias}'" for alias in adapter.aliases] + (["its pin"] if adapter.pinned else [])
            if uses and not force:
                raise Conflict(
                    f"{key.what} '{key}' is held by {', '.join(uses)}. Remove these first, or force the deletion.",
                    code="adapter_in_use",
                )
            db.execute(sa.delete(ADAPTERS).where(ADAPTERS.c.id == rows.id_of(db, key)))

    # --- aliases and pins ------------------------------------------------------------------------------------------
    def set_alias(self, key: AdapterKey, alias: str, ref: str | None = None) -> Adapter:
        """Point `alias` to the version that `ref` names (None: the current one). The move is atomic."""
        check_alias(alias)
        with self._write() as db:
            return self._move_alias(db, key, alias, ref)

    def _move_alias(self, db: sa.Connection, key: AdapterKey, alias: str, ref: str | None) -> Adapter:
        adapter = rows.one(db, key)
        version = adapter.version(ref)
        if adapter.aliases.get(alias) != version.number:
            put(db, ALIASES, {"adapter": rows.id_of(db, key), "alias": alias, "number": version.number})
        return rows.one(db, key)

    def remove_alias(self, key: AdapterKey, alias: str) -> Adapter:
        """NotFound (code alias_not_found) when the adapter has no such alias."""
        with self._write() as db:
            rows.one(db, key)
            its = sa.delete(ALIASES).where(ALIASES.c.adapter == rows.id_of(db, key), ALIASES.c.alias == alias)
            if not db.execute(its).rowcount:
                raise NotFound(f"{key.what} '{key}' has no alias '{alias}'.", code="alias_not_found")
            return rows.one(db, key)

    def pin(self, key: AdapterKey, pinned: bool = True) -> Adapter:
        """Keep the adapter in a device place, or let it go again. Safe to repeat."""
        with self._write() as db:
            if rows.one(db, key).pinned != pinned:
                db.execute(sa.update(ADAPTERS).where(ADAPTERS.c.id == rows.id_of(db, key)).values(pinned=int(pinned)))
            return rows.one(db, key)

    def share(self, key: AdapterKey, shared: bool) -> Adapter:
        """Let all teams use it, or only its own. Safe to repeat."""
        with self._write() as db:
            rows.one(db, key)
            self._share(db, key, shared)
            return rows.one(db, key)

    def _share(self, db: sa.Connection, key: AdapterKey, shared: bool) -> None:
        db.execute(sa.update(ADAPTERS).where(ADAPTERS.c.id == rows.id_of(db, key)).values(shared=int(shared)))

    # --- garbage ---------------------------------------------------------------------------------------------------
    def garbage(self, on_disk: Iterable[str] = ()) -> tuple[str, ...]:
        """Digests that no version refers to: once registered ones, and those of `on_disk` that never were."""
        with self._database.read() as db:
            used = set(db.execute(sa.select(VERSIONS.c.digest).distinct()).scalars())
            registered = set(db.execute(sa.select(DIGESTS.c.digest)).scalars())
        return tuple(sorted((registered | set(on_disk)) - used))

    def forget(self, digest: str) -> bool:
        """Take an unreferenced digest off the list before its files are removed. False: it is in use, keep the files.

        The caller holds its store's lock from here until the files are gone, so that no registration comes between.
        """
        with self._database.write() as db:
            if db.execute(sa.select(VERSIONS.c.number).where(VERSIONS.c.digest == digest).limit(1)).first():
                return False
            db.execute(sa.delete(DIGESTS).where(DIGESTS.c.digest == digest))
            return True


def check_alias(alias: str) -> None:
    """BadRequest when it breaks the rule for names, or looks like a version or a digest."""
    if not ALIAS.match(alias) or VERSION.match(alias) or DIGEST_PREFIX.match(alias):
        raise BadRequest(
            f"'{alias[:80]}' is no alias: {NAME_RULE}; and it must not look like a version (v3).", param="alias"
        )


def _make_current(db: sa.Connection, adapter: int, number: int) -> None:
    db.execute(sa.insert(CURRENTS).values(adapter=adapter, number=number))


def _mend_stack(db: sa.Connection, row: int, newest: int) -> None:
    """After a version has left the stack of current ones: no two equal neighbours, and never empty."""
    before = None
    stack = sa.select(CURRENTS.c.seq, CURRENTS.c.number).where(CURRENTS.c.adapter == row).order_by(CURRENTS.c.seq)
    for seq, number in db.execute(stack).all():
        if number == before:
            db.execute(sa.delete(CURRENTS).where(CURRENTS.c.seq == seq))
        before = number
    if before is None:
        _make_current(db, row, newest)
