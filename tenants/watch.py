"""The keyring of a running server: kept up to date as keys are made and revoked, by this process or another one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from registry.base.threads import Threads

if TYPE_CHECKING:  # a server without keys loads no database
    from tenants.keys.accounts import AccountTable
    from tenants.keys.table import KeyTable
    from tenants.limits.table import LimitTable

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from registry.errors import Unavailable
from tenants.caller import Caller, Person
from tenants.key_settings import FILE, KeySettings
from tenants.keys import secret
from tenants.keys.keyring import KeyEntry, Keyring, TeamEntry

if TYPE_CHECKING:  # a server without keys loads no database
    from registry.storage.database import Database
    from tenants.keys.table import KeyTable


log = logging.getLogger("roundhouse.tenants")
POLL_SECONDS = 0.5
"""Between two looks: a revoked key is refused within twice that."""


class KeyWatch:
    """`tenants.keys.keyring.Callers`.

    `opened` is called once, when there is a database; `changed` whenever a team, key or limit has changed.

    | keys                         | requests without a key                  | cost each half second |
    |------------------------------|-----------------------------------------|-----------------------|
    | none was ever made           | accepted on loopback or with `open`     | one SELECT            |
    | none, but people sign in     | with `open` accepted, inference only    | one SELECT            |
    | there are some               | with `open` accepted, inference only    | one SELECT            |
    | no tables could be made      | as if none was ever made; nothing is counted | one stat(2)      |
    | the database does not answer | as before; at the start it is an error  | one try               |
    | the database of a fleet is at an older state than before | as before, until the next start | one SELECT |
    | it has never answered yet    | 503, with or without a key              | one try               |

    The last: tables came while the server ran, and it may not read them. That there are no keys is then not known.
    """

    def __init__(
        self,
        settings: KeySettings,
        opened: "Callable[[Database], Awaitable[None]] | None" = None,
        changed: "Callable[[Database], Awaitable[None]] | None" = None,
    ) -> None:
        self._settings, self._opened, self._changed = settings, opened, changed
        self._reported_revision = -1
        self._database: Database | None = None
        self._table: KeyTable | None = None
        self._revision = -1
        self._ring = self._keyring({}, bytes(32), (), {})
        self._task: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()
        """One look at a time: it opens the database once, and no older ring takes the place of a newer one."""
        self._failed, self._was_read = False, False
        """Whether the last refresh failed; whether any refresh read the tables."""
        self._is_refused = False
        """The fleet's database is at an older state: a revoked key may be active in it."""

    @property
    def is_unclaimed(self) -> bool:
        """See `Keyring.is_unclaimed`."""
        return self._ring.is_unclaimed

    def identify(self, keys: Sequence[str]) -> Caller:
        return self._readable_ring().identify(keys)

    def by_id(self, id_: str, team: str) -> Caller:
        return self._readable_ring().by_id(id_, team)

    def by_exact_id(self, id_: str) -> Caller:
        return self._readable_ring().by_exact_id(id_)

    def member(self, person: Person) -> Caller:
        return self._readable_ring().member(person)

    def _readable_ring(self) -> Keyring:
        if self._failed and not self._was_read:
            raise Unavailable(
                "This server cannot read its keys and refuses all requests until it can. See its log.",
                code="keys_unreadable",
                retry_after=5,
            )
        return self._ring

    async def start(self) -> None:
        """Raises what keeps the keys from being read."""
        await self.look()
        self._task = asyncio.create_task(self._watch(), name="keys")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        async with self._looking:
            if self._database is not None:
                await asyncio.to_thread(self._database.close)

    async def tables(self) -> "tuple[KeyTable, Database]":
        """Open the tables, creating them if need be. Raises the reason why that fails."""
        if self._table is None:
            await asyncio.shield(self._look(make=True))
        if self._is_refused:
            raise older_state()
        assert self._table is not None
        assert self._database is not None
        return self._table, self._database

    async def make_tables(self) -> None:
        """Make the tables ahead of the first key: usage counts from the start, by the team of an open server.

        A failure is logged, and the server serves without them.
        """
        existed = self._settings.has_tables()
        try:
            await self.tables()
        except Exception as error:  # whatever it is: models can answer without a ledger
            log.error("no tables for teams and usage could be made: usage is not counted", exc_info=error)
            if not existed:  # else a later look would find half of a database, and refuse all requests
                for suffix in ("", "-wal", "-shm"):
                    (self._settings.data_dir / f"{FILE}{suffix}").unlink(missing_ok=True)

    def derive(self, use: str) -> bytes:
        """A secret that is the same at all servers with these tables. Once they are open."""
        assert self._table is not None
        return hmac.digest(self._table.pepper, f"roundhouse {use}".encode(), "sha256")

    def refuse_database(self) -> None:
        """Read and write no keys any more: those known go on."""
        self._is_refused = True

    async def look(self) -> None:
        """Look for changes; once it returns, every change that was made before counts."""
        await asyncio.shield(self._look())  # the thread goes on when its waiter leaves, and so does the lock

    async def _look(self, *, make: bool = False) -> None:
        async with self._looking:
            if not make and self._table is None and not self._settings.has_tables():
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
            except Exception as error:  # whatever it is: the next look may succeed
                if not self._failed:
                    meanwhile = "those known go on" if self._was_read else "requests are refused until they can be"
                    log.error(f"keys cannot be read: {meanwhile}", exc_info=error)
                self._failed = True

    def _read(self) -> None:
        if self._table is None:
            from tenants.keys.table import KeyTable
            from tenants.storage.opening import open_tables

            settings = self._settings
            database = open_tables(settings.data_dir, settings.database)
            database.set_timeouts()
            try:
                table = KeyTable(database, secret.load_pepper(settings.data_dir, settings.pepper))
            except BaseException:
                database.close()
                raise
            self._database, self._table = database, table
        revision = self._table.revision()
        if self._settings.in_fleet and revision < self._revision:
            self._is_refused = True
        if self._is_refused:
            raise older_state()
        if revision == self._revision:
            return
        self._revision, snapshot, archived, teams = self._table.snapshot()
        self._ring = self._keyring(snapshot, self._table.pepper, archived, teams)
        log.info("keys", extra={"keys": len(snapshot), "open": self._ring.is_open})

    def _keyring(
        self, keys: dict[str, KeyEntry], secret: bytes, archived: Sequence[str], teams: dict[str, TeamEntry]
    ) -> Keyring:
        settings = self._settings
        is_open = settings.open or (settings.loopback and not keys and not settings.sign_in)
        return Keyring(keys, secret, is_open=is_open, archived=archived, teams=teams, sign_in=settings.sign_in)


def older_state() -> Unavailable:
    return Unavailable(
        "The fleet's database is at an older state than this server has seen, and is not used. Bring the newer state "
        "back, or start the fleet's servers again to go on with the older one.",
        code="database_unavailable",
    )


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tables:
    keys: "KeyTable"
    accounts: "AccountTable"
    limits: "LimitTable"


class Administration:
    def __init__(self, watch: KeyWatch) -> None:
        self._watch = watch
        self._threads = Threads("database of teams")

    async def refresh(self) -> None:
        """Look for changes of keys that were made just now. Raises Unavailable."""
        await self._watch.look()

    async def do(self, work: Callable[[Tables], T]) -> T:
        """Run work in a thread; the first use makes the tables. Raises what the work raises, Unavailable, QueueFull."""
        keys, database = await self._watch.tables()
        from tenants.keys.accounts import AccountTable
        from tenants.limits.table import LimitTable

        done = await self._threads.run(work, Tables(keys, AccountTable(database), LimitTable(database)))
        await self._watch.look()
        return done
