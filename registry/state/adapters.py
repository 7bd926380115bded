"""Tables of adapters and routers in the state, based on `VersionTable`."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from registry.errors import BadRequest, Conflict, NotFound
from registry.names import ADAPTER, DIGEST, NAME_RULE
from registry.records import (
    Adapter,
    AdapterKey,
    NewVersion,
    Probe,
    RegisteredVersion,
    RouterKey,
    RouterRecord,
    RouterVersion,
    UsedNames,
    Version,
)
from registry.state.access import TableAccess
from registry.state.tables import ADAPTERS, DIGESTS, ROUTERS
from registry.state.versions import Rows, VersionTable, check_alias
from registry.storage.database import inserting

REMEMBERED_SECONDS = 90 * 86_400
"""Time for which the state knows a removed digest. Servers of a fleet that were away for longer keep their copies."""


class AdapterTable(VersionTable[AdapterKey, Adapter]):
    """The `VersionTable` of adapters, with these methods in addition:

    | method         | no such adapter | exists                                                               |
    |----------------|-----------------|----------------------------------------------------------------------|
    | register       | v1, current     | next version, current; else only probe and origin of base change |
    | delete_version | NotFound        | Conflict while current or aliased, unless `force`                    |
    | delete         | NotFound        | Conflict while aliased or pinned, unless `force`                     |
    """

    def __init__(self, access: TableAccess, clock: Callable[[], float]) -> None:
        super().__init__(access, ADAPTERS, clock)

    def _key(self, row: Sequence[Any]) -> AdapterKey:
        return AdapterKey(*row)

    def _record(self, key: AdapterKey, head: sa.Row[Any], versions: Rows, aliases: Mapping[str, int]) -> Adapter:
        records = tuple(
            Version(
                key, row.number, row.digest, row.created, row.rank, row.bytes, row.source,
                None if row.prompt is None else Probe(row.prompt, row.expected), row.base_origin,
            )
            for row in versions
        )  # fmt: skip
        current = next(version for version in records if version.number == head.current)
        return Adapter(key, head.created, bool(head.pinned), current, records, aliases, bool(head.shared))

    def _used(self, names: Iterable[AdapterKey]) -> UsedNames:
        used = UsedNames(names)
        used.owned  # noqa: B018  it is computed here, and not on the event loop
        return used

    def missing(self, key: AdapterKey) -> NotFound:
        return NotFound(f"There is no adapter '{key.name}' on model '{key.base}'.", code="adapter_not_found")

    # --- versions --------------------------------------------------------------------------------------------------
    def register(
        self, key: AdapterKey, new: NewVersion, alias: str | None = None, shared: bool | None = None
    ) -> RegisteredVersion:
        """Make `new` the current version and point `alias` to it, in one transaction.

        If `shared` is None an existing adapter stays shared or private; a new one is private.
        Raises BadRequest for a name, digest or alias that does not match its pattern.
        """
        if alias is not None:
            check_alias(alias)
        if not ADAPTER.match(key.name):
            raise BadRequest(f"'{key.name[:80]}' is not a valid adapter name: {NAME_RULE}.", param="name")
        if not DIGEST.match(new.digest):
            raise BadRequest("A digest is 'sha256:' and 64 hex digits.", param="digest")
        with self._write(key) as db:
            row_id = self._id(db, key)
            if row_id is None:
                self._access.check_free(db, key.name, "an adapter's name")
            is_new = row_id is None or self._one(db, key).current.digest != new.digest
            if is_new:
                insert_digest(db, new.digest, new.bytes)
                probe = {"prompt": new.probe and new.probe.prompt, "expected": new.probe and new.probe.expected}
                values = {"digest": new.digest, "bytes": new.bytes, "source": new.source, "rank": new.rank, **probe}
                self._add_version(db, key, values | {"base_origin": new.base_origin})
            else:
                versions, current = ADAPTERS.versions, self._one(db, key).current
                same = (versions.c.owner == row_id) & (versions.c.number == current.number)
                changed: dict[str, str | None] = {"base_origin": new.base_origin}
                if new.probe is not None:
                    changed |= {"prompt": new.probe.prompt, "expected": new.probe.expected}
                db.execute(sa.update(versions).where(same).values(changed))
            version = self._one(db, key).current
            if alias is not None:
                self._move_alias(db, key, alias, version.tag)
            if shared is not None:
                self._share(db, key, shared)
            return RegisteredVersion(self._one(db, key), version, is_new)

    def delete_version(self, key: AdapterKey, ref: str, *, force: bool = False) -> Adapter | None:
        """Delete a version. Returns the changed adapter, or None if it was the last version.

        With `force` its aliases are deleted, too; if it was current, the previous current version becomes current, or
        the newest if there is none.
        """
        with self._change(key) as (db, adapter, row_id):
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
            if not remaining:
                self._delete(db, row_id)
                return None
            versions = ADAPTERS.versions
            db.execute(sa.delete(versions).where(versions.c.owner == row_id, versions.c.number == version.number))
            self._mend_stack(db, row_id, remaining[-1])
            return self._one(db, key)

    def delete(self, key: AdapterKey, *, force: bool = False) -> None:
        with self._change(key) as (db, adapter, row_id):
            uses = [f"alias '{alias}'" for alias in adapter.aliases] + (["its pin"] if adapter.pinned else [])
            if uses and not force:
                raise Conflict(
                    f"Adapter '{key}' is held by {', '.join(uses)}. Remove these first, or force the deletion.",
                    code="adapter_in_use",
                )
            self._delete(db, row_id)

    def remember_base(self, base: str, base_origin: str) -> None:
        """Note the origin of a base for its adapters' versions from before it was noted."""
        heads, versions = ADAPTERS.heads, ADAPTERS.versions
        owners = sa.select(heads.c.id).where(heads.c.base == base)
        unknown = versions.c.owner.in_(owners) & versions.c.base_origin.is_(None)
        with self._access.change(self.reload) as db:
            db.execute(sa.update(versions).where(unknown).values(base_origin=base_origin))

    # --- pins and sharing ------------------------------------------------------------------------------------------
    def pin(self, key: AdapterKey, pinned: bool = True) -> Adapter:
        """Pin the adapter to a device place, or unpin it. Idempotent."""
        with self._change(key) as (db, _, row_id):
            db.execute(sa.update(ADAPTERS.heads).where(ADAPTERS.heads.c.id == row_id).values(pinned=int(pinned)))
            return self._one(db, key)

    def share(self, key: AdapterKey, shared: bool) -> Adapter:
        """Let all teams use the adapter, or only its own. Idempotent."""
        with self._change(key) as (db, _, _row_id):
            self._share(db, key, shared)
            return self._one(db, key)

    def _share(self, db: sa.Connection, key: AdapterKey, shared: bool) -> None:
        heads = ADAPTERS.heads
        db.execute(sa.update(heads).where(heads.c.id == self._id(db, key)).values(shared=int(shared)))

    # --- garbage ---------------------------------------------------------------------------------------------------
    def garbage(self, on_disk: Collection[str] = ()) -> tuple[str, ...]:
        """Return digests without a version: those that are not removed yet, and removed ones that are `on_disk`."""
        with self._access.database.read() as db:
            used = set(self.reserved)
            used |= set(db.execute(sa.select(ADAPTERS.versions.c.digest).distinct()).scalars())
            known = db.execute(sa.select(DIGESTS.c.digest, DIGESTS.c.removed)).all()
        stored = set(on_disk)
        return tuple(sorted({row.digest for row in known if row.removed is None or row.digest in stored} - used))

    def unknown(self, on_disk: Collection[str]) -> frozenset[str]:
        """Return the digests in `on_disk` that the state has never had, or removed long ago."""
        with self._access.database.read() as db:
            known = set(db.execute(sa.select(DIGESTS.c.digest)).scalars())
        return frozenset(on_disk) - known - self.reserved

    def announce(self, digest: str, size: int) -> None:
        """Make a digest known before its files exist, so that they are garbage if its registration is interrupted."""
        with self._access.database.write() as db:
            insert_digest(db, digest, size)

    def mark_removed(self, digest: str) -> bool:
        """Mark an unused digest as removed, before its files are deleted. Returns False if a version uses it.

        Other servers with a copy delete theirs, if they look within `REMEMBERED_SECONDS`. The caller holds its store's
        lock until the files are deleted, so that no registration can intervene.
        """
        versions, now = ADAPTERS.versions, self._clock()
        with self._access.database.write() as db:
            if db.execute(sa.select(versions.c.number).where(versions.c.digest == digest).limit(1)).first():
                return False
            db.execute(sa.update(DIGESTS).where(DIGESTS.c.digest == digest).values(removed=now))
            is_old = DIGESTS.c.removed < now - REMEMBERED_SECONDS
            db.execute(sa.delete(DIGESTS).where(is_old, DIGESTS.c.digest.not_in(sa.select(versions.c.digest))))
            return True


def insert_digest(db: sa.Connection, digest: str, size: int) -> None:
    """Insert a digest, or mark it as not removed."""
    insert = inserting(db, DIGESTS).values(digest=digest, bytes=size)
    db.execute(insert.on_conflict_do_update(index_elements=["digest"], set_={"removed": None}))


class RouterTable(VersionTable[RouterKey, RouterRecord]):
    """The `VersionTable` of routers. `routing.routers.content` stores their content in files."""

    def __init__(self, access: TableAccess, clock: Callable[[], float]) -> None:
        super().__init__(access, ROUTERS, clock)

    def _key(self, row: Sequence[Any]) -> RouterKey:
        return RouterKey(*row)

    def _record(self, key: RouterKey, head: sa.Row[Any], versions: Rows, aliases: Mapping[str, int]) -> RouterRecord:
        records = tuple(RouterVersion(row.number, row.digest, row.created, row.bytes, row.source) for row in versions)
        current = next(version for version in records if version.number == head.current)
        return RouterRecord(key, head.created, current, records, aliases)

    def missing(self, key: RouterKey) -> NotFound:
        return NotFound(f"There is no router '{key.name}'; GET /v1/routers lists all.", code="router_not_found")

    def register(self, key: RouterKey, digest: str, size: int, source: str, alias: str | None = None) -> bool:
        """Make this content current and point `alias` to it. Returns False if it was already current."""
        if alias is not None:
            check_alias(alias)
        with self._write(key) as db:
            row_id = self._id(db, key)
            if row_id is None:
                self._access.check_free(db, key.name, "a router's name")
            is_new = row_id is None or self._one(db, key).current.digest != digest
            if is_new:
                self._add_version(db, key, {"digest": digest, "bytes": size, "source": source})
            if alias is not None:
                self._move_alias(db, key, alias, None)
            return is_new

    def delete(self, key: RouterKey, *, force: bool = False) -> None:
        """Delete a router with all versions. Raises Conflict while aliases point to it, unless `force`."""
        with self._change(key) as (db, router, row_id):
            if router.aliases and not force:
                uses = ", ".join(f"alias '{alias}'" for alias in router.aliases)
                raise Conflict(
                    f"Router '{key.name}' is held by {uses}. Remove these first, or force the deletion.",
                    code="router_in_use",
                )
            self._delete(db, row_id)
