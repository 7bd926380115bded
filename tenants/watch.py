"""The keyring of a running server, updated when this or another process creates or revokes keys."""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from registry.base.threads import Threads
from registry.errors import Unavailable
from registry.storage.database import Database
from registry.storage.files import make_private_file
from tenants.key_settings import FILE, HAD_KEYS, KeySettings
from tenants.keys import secret
from tenants.keys.accounts import AccountTable
from tenants.keys.keyring import KeyEntry, Keyring, TeamEntry
from tenants.keys.table import KeyTable
from tenants.limits.table import LimitTable
from tenants.storage.opening import open_tables

T = TypeVar("T")
log = logging.getLogger("roundhouse.tenants")
POLL_SECONDS = 0.5
"""Interval between refreshes. A revoked key is refused within twice this time."""


class KeyWatch:
    """`opened` is called once, when the database is first opened; `changed` after any change of a team, key or limit.

    | keys                            | requests without a key                     | cost each half second |
    |---------------------------------|--------------------------------------------|-----------------------|
    | none was ever made              | accepted on loopback or with `open`        | one SELECT            |
    | none, but people sign in        | accepted with `open`, inference only       | one SELECT            |
    | some                            | accepted with `open`, inference only       | one SELECT            |
    | tables could not be created     | as if none was ever made; no usage counted | one stat(2)           |
    | some before, none now           | as before; an error at startup             | one SELECT            |
    | database down                   | as before; an error at startup             | one attempt           |
    | fleet database in older state   | as before, until the next start            | one SELECT            |
    | tables never read               | 503, with or without a key                 | one attempt           |

    The last row: tables appeared while the server ran, but it cannot read them. It cannot know that there are no keys.
    """

    def __init__(
        self,
        settings: KeySettings,
        opened: Callable[[Database], Awaitable[None]] | None = None,
        changed: Callable[[Database], Awaitable[None]] | None = None,
    ) -> None:
        self._settings, self._opened, self._changed = settings, opened, changed
        self._reported_revision = -1
        self._database: Database | None = None
        self._table: KeyTable | None = None
        self._revision = -1
        self._ring = self._ring_of({}, bytes(32), (), {})
        self._task: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()
        """Serialises refreshes: the database is opened once, and an older ring never replaces a newer one."""
        self._failed, self._was_read = False, False
        """Whether the last refresh failed, and whether any refresh succeeded."""
        self._is_refused = False
        """The fleet's database is in an older state, in which a revoked key may still be active."""

    @property
    def is_unclaimed(self) -> bool:
        """See `Keyring.is_unclaimed`."""
        return self._ring.is_unclaimed

    def keyring(self) -> Keyring:
        """Return the keys as last read. Raises Unavailable if they were never read."""
        if self._failed and not self._was_read:
            raise Unavailable(
                "This server cannot read its keys and refuses all requests until it can. See its log.",
                code="keys_unreadable",
                retry_after=5,
            )
        return self._ring

    async def start(self) -> None:
        """Read the keys and start polling. Raises the error if the keys cannot be read."""
        await self.look()
        self._task = asyncio.create_task(self._watch(), name="keys")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        async with self._looking:
            if self._database is not None:
                await asyncio.to_thread(self._database.close)

    async def tables(self) -> tuple[KeyTable, Database]:
        """Return the tables, creating them if needed. Raises the error if that fails."""
        if self._table is None:
            await asyncio.shield(self._look(make=True))
        if self._is_refused:
            raise older_state()
        assert self._table is not None
        assert self._database is not None
        return self._table, self._database

    async def make_tables(self) -> None:
        """Create the tables before the first key, so that an open server's usage counts from the start.

        A failure is logged, and the server runs without them.
        """
        existed = self._settings.has_tables()
        try:
            await self.tables()
        except Exception as error:  # any error: models can answer without a ledger
            log.error("cannot create the tables of teams and usage: usage is not counted", exc_info=error)
            if not existed:  # else the next refresh would find a partial database and refuse all requests
                for suffix in ("", "-wal", "-shm"):
                    (self._settings.data_dir / f"{FILE}{suffix}").unlink(missing_ok=True)

    def derive(self, use: str) -> bytes:
        """Return a secret that is the same on all servers with these tables. They must be open."""
        assert self._table is not None
        return hmac.digest(self._table.pepper, f"roundhouse {use}".encode(), "sha256")

    def refuse_database(self) -> None:
        """Stop reading and writing keys. The known keys stay valid."""
        self._is_refused = True

    async def look(self) -> None:
        """Refresh the keyring. Every change committed before the call is in effect when it returns."""
        await asyncio.shield(self._look())  # the thread outlives a cancelled caller, so the lock must, too

    async def _look(self, *, make: bool = False) -> None:
        async with self._looking:
            if not make and self._table is None and not self._settings.has_tables():
                if (lost := self._settings.lost_keys_error()) is not None:
                    raise lost
                return
            await asyncio.to_thread(self._read)
            if self._opened is not None and self._database is not None:
                await self._opened(self._database)
                self._opened = None
            if (
                self._changed is not None
                and self._database is not None
                and self._reported_revision != (now := self._revision)
            ):
                await self._changed(self._database)
                self._reported_revision = now
            self._was_read = True

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self.look()
                self._failed = False
            except Exception as error:  # any error: the next refresh may succeed
                if not self._failed:
                    effect = "known keys stay valid" if self._was_read else "requests are refused until they can be"
                    log.error(f"keys cannot be read: {effect}", exc_info=error)
                self._failed = True

    def _read(self) -> None:
        if self._table is None:
            settings = self._settings
            database = open_tables(settings.data_dir, settings.database)
            database.set_timeouts()
            with database.closing_on_error():
                table = KeyTable(database, secret.load_pepper(settings.data_dir, settings.pepper))
            self._database, self._table = database, table
        revision = self._table.revision()
        if self._settings.in_fleet and revision < self._revision:
            self._is_refused = True
        if self._is_refused:
            raise older_state()
        if revision == self._revision:
            return
        now, snapshot, archived, teams = self._table.snapshot()
        if snapshot:
            with suppress(OSError):  # as on a full disk: the next start tries again
                make_private_file(self._settings.data_dir / HAD_KEYS)
        elif (lost := self._settings.lost_keys_error()) is not None:
            raise lost
        self._revision = now
        self._ring = self._ring_of(snapshot, self._table.pepper, archived, teams)
        log.info("keys", extra={"keys": len(snapshot), "open": self._ring.is_open})

    def _ring_of(
        self, keys: dict[str, KeyEntry], secret: bytes, archived: Sequence[str], teams: dict[str, TeamEntry]
    ) -> Keyring:
        settings = self._settings
        is_open = settings.open or (settings.loopback and not keys and not settings.sign_in)
        return Keyring(keys, secret, is_open=is_open, archived=archived, teams=teams, sign_in=settings.sign_in)


def older_state() -> Unavailable:
    return Unavailable(
        "The fleet's database is in an older state than this server has seen, and is not used. Restore the newer "
        "state, or restart the fleet's servers to continue with the older one.",
        code="database_unavailable",
    )


@dataclass(frozen=True, slots=True)
class Tables:
    database: Database
    keys: KeyTable
    accounts: AccountTable
    limits: LimitTable


class Administration:
    def __init__(self, watch: KeyWatch) -> None:
        self._watch = watch
        self._threads = Threads("database of teams")

    async def refresh(self) -> None:
        """Refresh the keyring, so that changes made just now are in effect. Raises Unavailable."""
        await self._watch.look()

    async def do(self, work: Callable[[Tables], T]) -> T:
        """Run `work` in a thread, creating the tables if needed. Raises its errors, Unavailable, QueueFull."""
        keys, database = await self._watch.tables()
        done = await self._threads.run(work, Tables(database, keys, AccountTable(database), LimitTable(database)))
        await self._watch.look()
        return done
