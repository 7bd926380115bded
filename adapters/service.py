"""Registration, versions and lookup of adapters."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

from msgspec import structs

from adapters.checker import Checker
from adapters.content.copies import PART, CopyReader, CopyWriter
from adapters.content.forms import CONFIG, TENSORS, inner_folder
from adapters.fetch import FetchedAdapter, Fetcher, disk_errors
from adapters.jobs import Job
from adapters.store import AdapterNotes, Store
from adapters.types import AdapterSource, Base, CheckedAdapter, StoredAdapter
from registry.base.threads import run_to_end
from registry.base.turns import FairTurns
from registry.bounds import Bounds
from registry.errors import BadRequest, Conflict, NotFound, RoundhouseError, Unavailable
from registry.names import ADAPTER, DEFAULT_TEAM, NAME_RULE
from registry.records import Adapter, AdapterKey, NewVersion, Probe, RegisteredVersion, Version
from registry.state.adapters import AdapterTable
from registry.state.database import State
from registry.state.versions import check_alias
from registry.storage.reserve import DiskReserve

log = logging.getLogger("roundhouse.adapters")


class AdapterService:
    """One per gateway. All methods run on its event loop; file work and checks run in threads and processes.

    Args:
        data: the data directory; `store/`, `notes/` and `incoming/` in it belong to this class.
        state: open; the caller closes it after this.
        bounds: limits on adapters.
        leased: whether running or waiting requests use the digest; called before anything is deleted.
        workers: number of checking processes that are kept warm.
        reserve: reserved space on the disk of `data`, which registrations must not use.
    """

    def __init__(
        self,
        data: Path,
        state: State,
        *,
        leased: Callable[[str], bool],
        bounds: Bounds | None = None,
        workers: int = 2,
        reserve: DiskReserve | None = None,
    ) -> None:
        self.store, self.notes = Store(data / "store"), AdapterNotes(data / "notes")
        self.bounds = bounds or Bounds()
        self.checker = Checker(workers)
        self._turns = FairTurns(workers)
        self.incoming = data.absolute() / "incoming"
        """Folder of incoming adapters, including uploads. It is on the store's disk, and emptied at start."""
        self.reserve = reserve or DiskReserve(data)
        self._fetcher = Fetcher(self.incoming, self.bounds, self.reserve)
        self._state, self._leased = state, leased
        self.stored_digests: frozenset[str] = frozenset()
        """Digests whose files are here. Replaced when one is added or removed."""
        self._unknown = frozenset[str]()
        """Stored digests that the state does not know, as last logged."""
        self._names: WeakValueDictionary[AdapterKey, asyncio.Lock] = WeakValueDictionary()
        # Held by commits and collections, so that no digest is collected between its storing and its registration.
        self._store_lock = asyncio.Lock()

    async def start(self, *, warm: bool = True) -> None:
        """Clean up after a killed process, start the checking processes, and collect garbage.

        warm: if False, as without any base, a checking process starts with the first adapter.
        """
        unfinished = await asyncio.to_thread(self._clean)
        if unfinished:
            log.info("removed unfinished adapters", extra={"count": unfinished})
        self.stored_digests = frozenset(await asyncio.to_thread(self.store.digests))
        if warm:
            await self.checker.start()
        await self.collect()

    async def close(self) -> None:
        """End the checking processes. A running registration fails and leaves nothing behind."""
        await self.checker.close()

    # --- registration --------------------------------------------------------------------------------------------
    async def validate(
        self, base: Base, source: AdapterSource, *, team: str = DEFAULT_TEAM, trusted: bool = False
    ) -> CheckedAdapter:
        """Check an adapter without storing it.

        Raises Unfit with every fault at once, TooLarge, NotFound, BadRequest.
        """
        async with self._fetcher.fetched(source, team) as fetched:
            return await self._check(fetched, base, team=team, trusted=trusted)

    async def register(
        self,
        name: str,
        base: Base,
        source: AdapterSource,
        *,
        probe: Probe | None = None,
        alias: str | None = None,
        team: str = DEFAULT_TEAM,
        shared: bool | None = None,
        accept: Callable[[CheckedAdapter], None] = lambda _: None,
        trusted: bool = False,
    ) -> RegisteredVersion:
        """Check, normalise and store an adapter as the current version of the team's `name` on `base`.

        Serialised per name. The same content again makes no new version (`created` is False). `alias` is moved in the
        same transaction. Beyond `Bounds.adapter_versions`, the oldest versions without an alias or requests are
        removed, and the caller must do for digests that became unreferenced what it does after `remove`.
        accept: called with the result before it is stored, while no other registration commits; its exceptions are
            passed on.
        trusted: the adapter may bring a chat template, which is a program.

        Raises as `validate`, and EngineFailed (check_failed), Unavailable (disk_full, storage_full). Then nothing has
        changed.
        """
        if not ADAPTER.match(name):
            raise BadRequest(f"'{name[:80]}' is not a valid adapter name: {NAME_RULE}.", param="name")
        if alias is not None:
            check_alias(alias)
        key = AdapterKey(base.id, name, team)
        async with self._name_lock(key), self._fetcher.fetched(source, team) as fetched:
            with disk_errors(), self.store.writing() as out:
                checked = await self._check(fetched, base, out, team=team, trusted=trusted)
                new = NewVersion(checked.digest, checked.rank, checked.bytes, fetched.words, probe, base.origin)
                # A commit that has begun finishes even if the caller has left.
                store = partial(self._store_files, out, checked)
                registered = await run_to_end(self._commit(key, new, alias, shared, partial(accept, checked), store))
            try:
                registered = await self._prune(registered)
            except RoundhouseError as error:  # it is registered; the name's next version prunes again
                log.warning("old versions of an adapter stay for now", extra={"cause": error.message})
        details = {"adapter": str(key), "version": registered.version.tag, "digest": checked.digest}
        log.info("adapter registered", extra=details)
        for note in checked.notes:
            log.warning("a note on a registered adapter", extra={**details, "note": note})
        return registered

    async def _commit(
        self,
        key: AdapterKey,
        new: NewVersion,
        alias: str | None,
        shared: bool | None,
        accept: Callable[[], None],
        store: Callable[[], None],
    ) -> RegisteredVersion:
        """Store the files, then the state, so that a crash leaves garbage but never a dangling name."""
        async with self._store_lock:
            accept()
            await asyncio.to_thread(self._state.adapters.announce, new.digest, new.bytes)
            await asyncio.to_thread(store)
            self.stored_digests |= {new.digest}
            return await asyncio.to_thread(self._state.adapters.register, key, new, alias, shared)

    def _store_files(self, out: Path, checked: CheckedAdapter) -> None:
        self.store.commit(out, checked.digest)
        self.notes.write(checked.digest, checked.notes)

    async def _prune(self, registered: RegisteredVersion) -> RegisteredVersion:
        """Remove old versions beyond the bound."""
        adapter, most, table = registered.adapter, self.bounds.adapter_versions, self._state.adapters
        aliased = set(adapter.aliases.values())
        old = [version for version in adapter.versions[:-most] if version.number not in aliased]
        in_use = {version.digest for version in old if self._leased(version.digest)}
        if all(version.digest in in_use for version in old):
            return registered
        pruned = await asyncio.to_thread(table.prune, adapter.key, most, in_use)
        removed = [version for version in adapter.versions if version not in pruned.versions]
        garbage = set(await asyncio.to_thread(table.garbage, {version.digest for version in removed}))
        if removed:
            tags = ", ".join(version.tag for version in removed[:10])
            log.info("removed old versions of an adapter", extra={"adapter": str(adapter.key), "versions": tags})
        unreferenced = tuple(dict.fromkeys(one.digest for one in removed if one.digest in garbage))
        return replace(registered, adapter=pruned, unreferenced=unreferenced)

    # --- lookup --------------------------------------------------------------------------------------------------
    def stored(self, version: Version) -> StoredAdapter:
        """Return the stored content of a version in the state or a catalog. Touches no file."""
        return StoredAdapter(version.digest, self.store.path(version.digest), version.rank, version.bytes)

    async def ready(self, digest: str) -> None:
        """Check (by stat) that the stored files are unchanged. Call it before staging.

        Raises EngineFailed (code adapter_damaged) if files are missing or changed.
        """
        await asyncio.to_thread(self.store.check, digest)

    def list(self, base: str | None = None) -> list[Adapter]:
        """Return all adapters, or those of one base."""
        return [adapter for adapter in self._state.adapters.all() if base is None or adapter.key.base == base]

    def show(self, key: AdapterKey) -> Adapter:
        """Return an adapter. Raises NotFound."""
        return self._state.adapters.get(key)

    # --- changes -------------------------------------------------------------------------------------------------
    async def change(self, key: AdapterKey, change: Callable[[AdapterTable, AdapterKey], Adapter]) -> Adapter:
        """Change aliases or the current version by a method of the table. Raises NotFound, Conflict, BadRequest."""
        return await self._locked(key, lambda: change(self._state.adapters, key))

    async def pin(self, key: AdapterKey, pinned: bool) -> Adapter:
        return await self._locked(key, lambda: self._state.adapters.pin(key, pinned))

    async def share(self, key: AdapterKey, shared: bool) -> Adapter:
        """Let all teams use an adapter, or only its own."""
        return await self._locked(key, lambda: self._state.adapters.share(key, shared))

    async def remove(self, key: AdapterKey, ref: str | None = None, *, force: bool = False) -> tuple[str, ...]:
        """Remove an adapter, or one version of it. Returns digests that became unreferenced.

        Raises Conflict while it is leased, aliased, pinned or (a version) current, unless forced. The caller must have
        the placement forget the digests; the next `collect` without a lease deletes the files.
        """
        async with self._name_lock(key):
            adapter = self._state.adapters.get(key)
            versions = adapter.versions if ref is None else (adapter.version(ref),)
            in_use = [version.tag for version in versions if self._leased(version.digest)]
            if in_use and not force:
                raise Conflict(
                    f"Requests are using {', '.join(in_use)} of adapter '{key}'. Wait for them, or force the deletion.",
                    code="adapter_in_use",
                )
            table = self._state.adapters
            if ref is None:
                await asyncio.to_thread(table.delete, key, force=force)
            else:
                await asyncio.to_thread(table.delete_version, key, versions[0].tag, force=force)
            garbage = set(await asyncio.to_thread(table.garbage, {version.digest for version in versions}))
        return tuple(dict.fromkeys(version.digest for version in versions if version.digest in garbage))

    async def collect(self) -> tuple[str, ...]:
        """Delete stored digests without a version and without requests. Returns them.

        A failed deletion is logged and tried again the next time.
        """
        removed = []
        async with self._store_lock:
            for digest in await asyncio.to_thread(self._garbage):
                if not self._leased(digest) and await asyncio.to_thread(self._state.adapters.mark_removed, digest):
                    try:
                        await asyncio.to_thread(self.store.remove, digest)
                        await asyncio.to_thread(self.notes.remove, digest)
                    except OSError as error:
                        folder, cause = str(self.store.path(digest)), error.strerror
                        log.error(
                            "a removed adapter's files cannot be deleted", extra={"folder": folder, "cause": cause}
                        )
                    else:
                        removed.append(digest)
                        self.stored_digests -= {digest}
        return tuple(removed)

    def _garbage(self) -> Sequence[str]:
        """Return digests without a version. Logs stored ones that the state does not know, and leaves them.

        The state knows digests before they are stored, and for a while after their removal. If it does not, it was lost
        or is in another database than before, and files that it names would be gone for good.
        """
        table, stored = self._state.adapters, self.store.digests()
        unknown = table.unknown(stored)
        if unknown and unknown != self._unknown:
            log.error(
                "the store has adapters that the state does not know: it was lost, or is in another database "
                "(--database). Their files are kept. If nothing needs them, delete their folders",
                extra={"store": str(self.store.root), "adapters": len(unknown), "folders": sorted(unknown)[:10]},
            )
        self._unknown = unknown
        return table.garbage(stored)

    def unused(self) -> frozenset[str]:
        """Return stored digests that no name refers to any more. Those that the state does not know stay."""
        table = self._state.adapters
        used = {version.digest for adapter in table.all() for version in adapter.versions}
        self._unknown -= used  # another server has registered them meanwhile
        return self.stored_digests - used - table.reserved - self._unknown

    # --- copies for other servers ----------------------------------------------------------------------------------
    async def open_copy(self, digest: str) -> CopyReader:
        """Open the files as one stream. Raises NotFound."""
        if digest in self.stored_digests:
            with contextlib.suppress(OSError):
                return await asyncio.to_thread(CopyReader, self.store.path(digest))
        raise NotFound(f"The files of adapter {digest[:19]}… are not here.", code="adapter_not_found")

    async def take_copy(self, version: Version, stream: AsyncIterator[bytes]) -> None:
        """Store another server's copy of a version. A wrong copy leaves nothing behind.

        Raises Unfit (wrong_copy), Unavailable (disk_full, storage_full), and errors of the stream.
        """
        with self.reserve.hold(version.bytes), disk_errors(), self.store.writing() as out:
            with CopyWriter(out, version.bytes) as writer:
                async for part in _joined(stream):
                    await asyncio.to_thread(writer.write, part)
                await asyncio.to_thread(writer.finish, version.digest)
            await run_to_end(self._store_copy(out, version.digest))

    async def _store_copy(self, out: Path, digest: str) -> None:
        async with self._store_lock:
            await asyncio.to_thread(self.store.commit, out, digest)
            self.stored_digests |= {digest}

    # --- inside --------------------------------------------------------------------------------------------------
    async def _check(
        self, fetched: FetchedAdapter, base: Base, out: Path | None = None, *, team: str, trusted: bool
    ) -> CheckedAdapter:
        """Check a source and write its normalised form into `out`. Raises as `Checker.check`, or storage_full.

        Teams take turns. Only the adapter whose turn it is reserves room on the disk: each takes up to half of the
        rest, so those that wait would soon have it all.
        """
        async with self._turns.take(team):
            return await self._check_now(fetched, base, out, trusted=trusted)

    async def _check_now(
        self, fetched: FetchedAdapter, base: Base, out: Path | None, *, trusted: bool
    ) -> CheckedAdapter:
        path, most = fetched.path, int(self.bounds.unpacked_bytes)
        job = Job(path, base, self.bounds, unpack_to=fetched.unpack_to, out=out, trusted=trusted)
        if fetched.unpack_to is None:
            with self.reserve.hold(0 if out is None else await asyncio.to_thread(_source_bytes, path)):
                return await self.checker.check(job)
        with self.reserve.hold_pair(most, path.stat().st_size) as room:
            try:
                return await self.checker.check(structs.replace(job, file_bytes=room))
            except Unavailable as error:
                if error.code == "disk_full" and room < most:
                    raise self.reserve.full_error() from error
                raise

    async def _locked(self, key: AdapterKey, change: Callable[[], Adapter]) -> Adapter:
        async with self._name_lock(key):
            return await asyncio.to_thread(change)

    def _name_lock(self, key: AdapterKey) -> asyncio.Lock:
        """Return the lock of a name, which exists while it is held or waited for."""
        return self._names.setdefault(key, asyncio.Lock())

    def _clean(self) -> int:
        self._fetcher.start()
        return self.store.start()


def _source_bytes(folder: Path) -> int:
    """Return the size of an adapter's files. Normalising does not enlarge them."""
    with contextlib.suppress(ValueError, OSError):  # the check reports what is wrong
        folder = inner_folder(folder)
    return sum(file.stat().st_size for name in (CONFIG, TENSORS) if (file := folder / name).is_file())


async def _joined(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Join a body's parts into larger pieces, since each costs a call in a thread."""
    pending = bytearray()
    async for data in stream:
        pending += data
        if len(pending) >= PART:
            yield bytes(pending)
            pending.clear()
    yield bytes(pending)
