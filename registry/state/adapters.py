"""Adapters in the state: versions, the current one, aliases, pins and garbage."""

import sqlite3
import time
from collections.abc import Callable, Iterable

from registry.errors import BadRequest, Conflict, NotFound
from registry.names import ADAPTER, ALIAS, DIGEST, DIGEST_PREFIX, NAME_RULE, VERSION
from registry.records import ROUTERS, Adapter, AdapterKey, NewVersion, Probe, Registered, Version
from registry.state.schema import StateDatabase


class AdapterTable:
    """Every write is one transaction: it happens whole, or an error is raised and nothing has changed.

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
        self, database: StateDatabase, clock: Callable[[], float] = time.time, *, routers: bool = False
    ) -> None:
        """routers: it is those that `all` lists, and not adapters."""
        self._database = database
        self._clock = clock
        self._listed = f"a.base {'=' if routers else '<>'} ?"

    # --- reading ---------------------------------------------------------------------------------------------------
    def all(self) -> tuple[Adapter, ...]:
        """Every adapter, ordered by base and name."""
        with self._database.read() as db:
            return _read(db, self._listed, (ROUTERS,))

    def get(self, key: AdapterKey) -> Adapter:
        """One adapter; NotFound (code adapter_not_found) when it is not there."""
        with self._database.read() as db:
            return _one(db, key)

    def ever(self) -> frozenset[AdapterKey]:
        """Every name that was ever given, also those of adapters that were deleted."""
        with self._database.read() as db:
            return frozenset(AdapterKey(*row) for row in db.execute("SELECT base, name, team FROM numbers"))

    # --- versions --------------------------------------------------------------------------------------------------
    def register(
        self, key: AdapterKey, new: NewVersion, alias: str | None = None, shared: bool | None = None
    ) -> Registered:
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
        with self._database.write() as db:
            registered = self._register(db, key, new)
            if alias is not None:
                self._move_alias(db, key, alias, registered.version.tag)
            if shared is not None:
                self._share(db, key, shared)
            return Registered(_one(db, key), registered.version, registered.created)

    def _register(self, db: sqlite3.Connection, key: AdapterKey, new: NewVersion) -> Registered:
        now = self._clock()
        row = db.execute("SELECT id FROM adapters WHERE base = ? AND name = ? AND team = ?", key).fetchone()
        if row is not None:
            adapter = _one(db, key)
            if adapter.current.digest == new.digest:
                return self._same_content(db, adapter, new.probe)
            number_of = int(row["id"])
        else:
            made = db.execute("INSERT INTO adapters (base, name, team, created) VALUES (?, ?, ?, ?)", (*key, now))
            number_of = int(made.lastrowid or 0)
        (number,) = db.execute(
            "INSERT INTO numbers VALUES (?, ?, ?, 1) ON CONFLICT DO UPDATE SET last = last + 1 RETURNING last", key
        ).fetchone()
        db.execute("INSERT INTO digests VALUES (?, ?) ON CONFLICT DO NOTHING", (new.digest, new.bytes))
        probe = new.probe
        db.execute(
            "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (number_of, number, new.digest, now, new.rank, new.bytes, new.source)
            + ((probe.prompt, probe.expected) if probe else (None, None)),
        )
        db.execute("INSERT INTO currents (adapter, number) VALUES (?, ?)", (number_of, number))
        adapter = _one(db, key)
        return Registered(adapter, adapter.current, created=True)

    def _same_content(self, db: sqlite3.Connection, adapter: Adapter, probe: Probe | None) -> Registered:
        """No new version; a probe that is given takes the place of the version's own."""
        current = adapter.current
        if probe is not None and probe != current.probe:
            db.execute(
                "UPDATE versions SET prompt = ?, expected = ? WHERE adapter = ? AND number = ?",
                (probe.prompt, probe.expected, _id(db, adapter.key), current.number),
            )
            adapter = _one(db, adapter.key)
        return Registered(adapter, adapter.current, created=False)

    def point(self, key: AdapterKey, ref: str) -> Adapter:
        """Make the version that `ref` names the current one."""
        with self._database.write() as db:
            adapter = _one(db, key)
            version = adapter.version(ref)
            if version.number != adapter.current.number:
                db.execute("INSERT INTO currents (adapter, number) VALUES (?, ?)", (_id(db, key), version.number))
            return _one(db, key)

    def rollback(self, key: AdapterKey) -> Adapter:
        """Go back to the version that was current before; a second call goes back one more."""
        with self._database.write() as db:
            before, row = _one(db, key), _id(db, key)
            (depth,) = db.execute("SELECT count(*) FROM currents WHERE adapter = ?", (row,)).fetchone()
            if depth < 2:
                raise Conflict(
                    f"{key.what} '{key}' has nothing to go back to: {before.current.tag} is its first current version.",
                    code="nothing_to_roll_back",
                )
            db.execute("DELETE FROM currents WHERE seq = (SELECT max(seq) FROM currents WHERE adapter = ?)", (row,))
            return _one(db, key)

    def delete_version(self, key: AdapterKey, ref: str, *, force: bool = False) -> Adapter | None:
        """Forget one version. Returns what is left; None: it was the last one and the adapter is gone.

        With `force` its aliases go too; if it was current, the one before it is, else the newest that is left.
        """
        with self._database.write() as db:
            adapter = _one(db, key)
            version = adapter.version(ref)
            held = [f"alias '{alias}'" for alias, number in adapter.aliases.items() if number == version.number]
            if version.number == adapter.current.number:
                held.insert(0, "it is the current version")
            if held and not force:
                raise Conflict(
                    f"Version {version.tag} of '{key}' is in use: {', '.join(held)}. "
                    "Point these elsewhere first, or force the deletion.",
                    code="adapter_in_use",
                )
            left = [v.number for v in adapter.versions if v.number != version.number]
            row = _id(db, key)
            if not left:
                db.execute("DELETE FROM adapters WHERE id = ?", (row,))
                return None
            db.execute("DELETE FROM versions WHERE adapter = ? AND number = ?", (row, version.number))
            _mend_stack(db, row, left[-1])
            return _one(db, key)

    def delete(self, key: AdapterKey, *, force: bool = False) -> None:
        """Forget the adapter with all versions. Its numbers go on from where they stood if the name comes back."""
        with self._database.write() as db:
            adapter = _one(db, key)
            held = [f"alias '{alias}'" for alias in adapter.aliases] + (["its pin"] if adapter.pinned else [])
            if held and not force:
                raise Conflict(
                    f"{key.what} '{key}' is held by {', '.join(held)}. Remove these first, or force the deletion.",
                    code="adapter_in_use",
                )
            db.execute("DELETE FROM adapters WHERE id = ?", (_id(db, key),))

    # --- aliases and pins ------------------------------------------------------------------------------------------
    def set_alias(self, key: AdapterKey, alias: str, ref: str | None = None) -> Adapter:
        """Point `alias` to the version that `ref` names (None: the current one). The move is atomic."""
        check_alias(alias)
        with self._database.write() as db:
            return self._move_alias(db, key, alias, ref)

    def _move_alias(self, db: sqlite3.Connection, key: AdapterKey, alias: str, ref: str | None) -> Adapter:
        adapter = _one(db, key)
        version = adapter.version(ref)
        if adapter.aliases.get(alias) != version.number:
            db.execute("REPLACE INTO aliases VALUES (?, ?, ?)", (_id(db, key), alias, version.number))
        return _one(db, key)

    def remove_alias(self, key: AdapterKey, alias: str) -> Adapter:
        """NotFound (code alias_not_found) when the adapter has no such alias."""
        with self._database.write() as db:
            _one(db, key)
            if not db.execute("DELETE FROM aliases WHERE adapter = ? AND alias = ?", (_id(db, key), alias)).rowcount:
                raise NotFound(f"{key.what} '{key}' has no alias '{alias}'.", code="alias_not_found")
            return _one(db, key)

    def pin(self, key: AdapterKey, pinned: bool = True) -> Adapter:
        """Keep the adapter in a device place, or let it go again. Safe to repeat."""
        with self._database.write() as db:
            if _one(db, key).pinned != pinned:
                db.execute("UPDATE adapters SET pinned = ? WHERE id = ?", (pinned, _id(db, key)))
            return _one(db, key)

    def share(self, key: AdapterKey, shared: bool) -> Adapter:
        """Let all teams use it, or only its own. Safe to repeat."""
        with self._database.write() as db:
            _one(db, key)
            self._share(db, key, shared)
            return _one(db, key)

    def _share(self, db: sqlite3.Connection, key: AdapterKey, shared: bool) -> None:
        db.execute("UPDATE adapters SET shared = ? WHERE id = ?", (shared, _id(db, key)))

    # --- garbage ---------------------------------------------------------------------------------------------------
    def garbage(self, on_disk: Iterable[str] = ()) -> tuple[str, ...]:
        """Digests that no version refers to: once registered ones, and those of `on_disk` that never were."""
        with self._database.read() as db:
            used = {row[0] for row in db.execute("SELECT DISTINCT digest FROM versions")}
            known = {row[0] for row in db.execute("SELECT digest FROM digests")}
        return tuple(sorted((known | set(on_disk)) - used))

    def forget(self, digest: str) -> bool:
        """Take an unreferenced digest off the list before its files are removed. False: it is in use, keep the files.

        The caller holds its store's lock from here until the files are gone, so that no registration comes between.
        """
        with self._database.write() as db:
            if db.execute("SELECT 1 FROM versions WHERE digest = ? LIMIT 1", (digest,)).fetchone():
                return False
            db.execute("DELETE FROM digests WHERE digest = ?", (digest,))
            return True


def check_alias(alias: str) -> None:
    """BadRequest when it breaks the rule for names, or looks like a version or a digest."""
    if not ALIAS.match(alias) or VERSION.match(alias) or DIGEST_PREFIX.match(alias):
        raise BadRequest(
            f"'{alias[:80]}' is no alias: {NAME_RULE}; and it must not look like a version (v3).", param="alias"
        )


def _id(db: sqlite3.Connection, key: AdapterKey) -> int:
    return int(db.execute("SELECT id FROM adapters WHERE base = ? AND name = ? AND team = ?", key).fetchone()[0])


def _one(db: sqlite3.Connection, key: AdapterKey) -> Adapter:
    found = _read(db, "a.base = ? AND a.name = ? AND a.team = ?", key)
    if not found and key.base == ROUTERS:
        raise NotFound(f"There is no router '{key.name}'; GET /v1/routers lists all.", code="router_not_found")
    if not found:
        raise NotFound(f"There is no adapter '{key.name}' on model '{key.base}'.", code="adapter_not_found")
    return found[0]


def _read(db: sqlite3.Connection, where: str, values: tuple[str, ...]) -> tuple[Adapter, ...]:
    """Adapters with versions, aliases and current version; three queries, however many there are."""
    heads = db.execute(
        "SELECT a.*, (SELECT number FROM currents c WHERE c.adapter = a.id ORDER BY seq DESC LIMIT 1) AS current "
        f"FROM adapters a WHERE {where} ORDER BY a.base, a.name, a.team",
        values,
    ).fetchall()
    keys = {row["id"]: AdapterKey(row["base"], row["name"], row["team"]) for row in heads}
    versions: dict[int, list[Version]] = {id_: [] for id_ in keys}
    query = "FROM {} v JOIN adapters a ON a.id = v.adapter WHERE " + where
    for row in db.execute("SELECT v.* " + query.format("versions") + " ORDER BY v.adapter, v.number", values):
        probe = None if row["prompt"] is None else Probe(row["prompt"], row["expected"])
        versions[row["adapter"]].append(
            Version(keys[row["adapter"]], row["number"], row["digest"], row["created"], row["rank"], row["bytes"],
                    row["source"], probe)
        )  # fmt: skip
    aliases: dict[int, dict[str, int]] = {id_: {} for id_ in keys}
    for row in db.execute("SELECT v.* " + query.format("aliases") + " ORDER BY v.adapter, v.alias", values):
        aliases[row["adapter"]][row["alias"]] = row["number"]
    return tuple(
        Adapter(
            key=keys[row["id"]], created=row["created"], pinned=bool(row["pinned"]),
            current=next(v for v in versions[row["id"]] if v.number == row["current"]),
            versions=tuple(versions[row["id"]]), aliases=aliases[row["id"]], shared=bool(row["shared"]),
        )
        for row in heads
    )  # fmt: skip


def _mend_stack(db: sqlite3.Connection, row: int, newest: int) -> None:
    """After a version has left the stack of current ones: no two equal neighbours, and never empty."""
    before = None
    for seq, number in db.execute("SELECT seq, number FROM currents WHERE adapter = ? ORDER BY seq", (row,)).fetchall():
        if number == before:
            db.execute("DELETE FROM currents WHERE seq = ?", (seq,))
        before = number
    if before is None:
        db.execute("INSERT INTO currents (adapter, number) VALUES (?, ?)", (row, newest))
