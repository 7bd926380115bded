"""The files and batches of a running server, for HTTP and the console."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from cachetools import LRUCache

from batches.callbacks.addresses import CallbackAddresses
from batches.callbacks.service import CallbackService
from batches.content.folder import FolderBytes
from batches.content.pieces import PieceBytes
from batches.content.protocol import FileBytes
from batches.intake.checker import InputChecker
from batches.intake.creation import BatchCreator, NewBatch
from batches.intake.stored_files import FileLimits, StoredFiles
from batches.looks import look_repeatedly
from batches.output import OutputKind
from batches.records import BatchRecord, BatchState
from batches.storage.opening import prepare
from batches.store import BatchStore, BatchTables
from registry.base.wording import quoted
from registry.errors import FinalConflict, NotFound, RoundhouseError
from registry.storage.reserve import DiskReserve
from tenants.limits.stored import QueueLimiter

log = logging.getLogger("roundhouse.batches")
SWEEP_SECONDS = 60.0
FORECAST_SECONDS = 0.5
"""Longest time that the answer to a creation waits for a forecast."""
UNWRITTEN = "The ledger's database accepts no rows now, for example because its disk is full: lines wait until it does."
FULL = "The server's disk has only its reserve left: lines wait until there is room for their answers."
OUTPUT_SECONDS = 30 * 86_400
"""Seconds for which answers of an ended batch are stored, unless its creation requested otherwise."""
MOST_SIZES = 10_000
"""Output files whose sizes are remembered."""


class BatchService:
    """addresses: where callbacks may go. queue_limits: limits on tokens of unfinished batches.

    is_unwritten: whether the ledger's database accepts no rows now, so that no line can end. reserve: disk space that
    lines and their answers must not use.
    """

    def __init__(
        self,
        store: BatchStore,
        data_dir: Path,
        limits: FileLimits,
        addresses: CallbackAddresses,
        queue_limits: QueueLimiter,
        reserve: DiskReserve,
        is_unwritten: Callable[[], bool] = lambda: False,
    ) -> None:
        self.store, self._is_unwritten, self._reserve = store, is_unwritten, reserve
        self._folder, self._data_dir = FolderBytes(data_dir), data_dir
        self._pieces: FileBytes | None = None
        self._changed = asyncio.Event()
        self.output_sizes: LRUCache[tuple[str, OutputKind], int] = LRUCache(MOST_SIZES)
        """Bytes of output files by batch and kind, known only once all their lines have been read."""
        checker = InputChecker()
        self.files = StoredFiles(store, self._content, checker, limits)
        self.callbacks = CallbackService(store, addresses)
        self.creator = BatchCreator(store, self.files, checker, queue_limits, reserve)
        self._wake: Callable[[], None] = lambda: None

    def _content(self) -> FileBytes:
        """Return the store of bytes: the database if several gateways may share it. Called once that is open."""
        if self._pieces is None and (database := self.store.shared_database) is not None:
            prepare(database)  # bytes are stored before the first row
            self._pieces = PieceBytes(database, self._data_dir)
        return self._pieces or self._folder

    @property
    def incoming(self) -> Path:
        """Folder for unfinished uploads."""
        return self._folder.incoming

    async def get(self, team: str, id_: str, surface: str | None = None) -> BatchRecord:
        """Return a batch. Raises NotFound if it is unknown, deleted or another team's; Unavailable, QueueFull."""
        batch = await self.store.find(lambda tables: tables.batches.get(id_, team), None, team)
        if batch is None or surface not in (None, batch.surface):
            raise missing_batch_error(id_)
        return self._with_wait(batch)

    async def list(
        self, team: str, surface: str, after: str | None, limit: int, *, newest: bool = True, param: str = "after"
    ) -> tuple[Sequence[BatchRecord], bool]:
        """Return a page, and whether more follow. Raises BadRequest for an unknown `after`, Unavailable, QueueFull."""
        batches, more = await self.store.page(
            lambda tables, most: tables.batches.list(team, surface, after=after, limit=most, newest=newest),
            after,
            limit,
            team,
            param,
        )
        return [self._with_wait(batch) for batch in batches], more

    async def recent(self, team: str | None, limit: int) -> Sequence[BatchRecord]:
        """Return the newest batches of a team, or of all. Raises Unavailable, QueueFull."""
        none: Sequence[BatchRecord] = []
        batches = await self.store.find(lambda tables: tables.batches.recent(team, limit), none, team or "")
        return [self._with_wait(batch) for batch in batches]

    def _with_wait(self, batch: BatchRecord) -> BatchRecord:
        """Return the batch with reasons to wait that its row cannot contain."""
        if batch.state is not BatchState.IN_PROGRESS:
            return batch
        if self._is_unwritten():
            return replace(batch, waits=UNWRITTEN, waits_until=None)
        return replace(batch, waits=FULL, waits_until=None) if self._reserve.is_short else batch

    async def failures(self, batch: BatchRecord) -> Mapping[str, int]:
        """Return the number of failed lines by code. Raises Unavailable, QueueFull."""
        return await self.store.read(lambda tables: tables.lines.failures(batch.id), batch.team)

    async def create_of_requests(self, new: NewBatch, lines: Path, count: int) -> BatchRecord:
        """Create a batch from requests instead of an uploaded file, and wait until it is validated.

        Raises what `BatchCreator.create` raises, and StorageFull.
        """
        file = await self.files.add_requests(new.team, lines, count)
        try:
            batch = await self.creator.create(replace(new, input_file=file.id))
        finally:
            await asyncio.shield(self.files.hide(file))
        await self.creator.validated(batch.id)
        return await self.get(new.team, batch.id)

    async def create(self, new: NewBatch) -> BatchRecord:
        """Create a batch from an uploaded file. Includes its forecast if that is ready in a moment.

        Raises what `BatchCreator.create` raises.
        """
        batch = await self.creator.create(new)
        await self.creator.validated(batch.id, FORECAST_SECONDS)
        return await self.get(new.team, batch.id)

    async def cancel(self, team: str, id_: str, surface: str | None = None) -> BatchRecord:
        """Start cancelling a batch, and return it. Running lines may still end.

        Raises NotFound, Unavailable, and FinalConflict if the batch has ended.
        """
        await self.get(team, id_, surface)
        if not await self.store.write(lambda tables: tables.batches.cancel(id_, time.time())):
            batch = await self.get(team, id_, surface)
            raise FinalConflict(
                f"Batch {quoted(id_)} is {batch.state.value} and cannot be cancelled any more.",
                code="batch_ended",
            )
        self._wake()
        return await self.get(team, id_, surface)

    async def delete(self, team: str, id_: str, surface: str | None = None) -> None:
        """Delete an ended batch and its results. Raises NotFound, Unavailable, and FinalConflict if it is running."""
        batch = await self.get(team, id_, surface)
        if not await self.store.write(lambda tables: tables.batches.delete(id_, team, time.time())):
            raise FinalConflict(
                f"Batch {quoted(id_)} is {batch.state.value}: cancel it, and delete it once it has ended.",
                code="batch_running",
            )
        await self.forget(id_)

    async def remove_old(self, now: float) -> int:
        """Delete the answers of batches that are past their storage time. Returns the number of batches.

        Raises Unavailable, QueueFull.
        """
        old = await self.store.read(lambda tables: tables.batches.with_old_results(now, OUTPUT_SECONDS))
        for id_ in old:
            await self.forget(id_)
        return len(old)

    async def has_lines(self, batch: BatchRecord, kind: OutputKind) -> bool:
        """Whether lines of an output file are still stored. Raises Unavailable, QueueFull."""
        completed = kind is OutputKind.OUTPUT
        return await self.store.read(lambda tables: tables.lines.has_results(batch.id, completed=completed), batch.team)

    async def forget(self, id_: str, *kinds: OutputKind) -> None:
        """Delete the lines of an ended batch in these files, or in all. Raises Unavailable."""
        for kind in kinds or OutputKind:
            completed = kind is OutputKind.OUTPUT
            self.output_sizes.pop((id_, kind), None)
            while await self.store.write(partial(_forget_lines, id_, completed)):
                pass

    async def read_line(self, file_id: str, offset: int, length: int) -> bytes:
        """Return the request of a line. Raises FileNotFoundError, OSError, Unavailable."""
        return await asyncio.to_thread(self._content().read, file_id, offset, length)

    def set_worker(self, wake: Callable[[], None], forecast: Callable[[str], Awaitable[None]]) -> None:
        """Set callbacks. wake: for lines that may run and cancelled batches. forecast: for a batch that starts."""

        async def started(id_: str) -> None:
            await forecast(id_)
            wake()

        self._wake, self.creator.started = wake, started

    async def open(self) -> None:
        """Remove remains of uploads that a crash interrupted. Called before the first request."""
        try:
            if await self.store.opened():
                await self.files.tidy()
        except (RoundhouseError, OSError) as error:  # they only take up space
            log.warning("cannot remove remains of earlier uploads", extra={"cause": str(error)})

    async def run(self) -> None:
        """Resume validations after a crash, and remove expired files and answers. Runs until cancelled."""
        await look_repeatedly(self._sweep, self._changed, SWEEP_SECONDS, "cannot check files and batches for work")

    async def _sweep(self) -> None:
        if not await self.store.opened():
            return
        errors: list[Exception] = []
        for step in (
            self.creator.resume,
            self.files.sweep,
            self.files.remove_orphans,
            partial(self.remove_old, time.time()),
            partial(self.callbacks.forget, time.time()),
        ):
            try:
                await step()
            except Exception as error:  # any error: the other steps do not depend on it
                errors.append(error)
        if errors:
            raise ExceptionGroup("steps that failed", errors)

    def wake(self) -> None:
        """Check which lines may still run, because keys or teams have changed."""
        self._wake()

    def look(self) -> None:
        """Take over the work of a dead server soon."""
        self._changed.set()

    async def close(self) -> None:
        await self.creator.close()
        await self.callbacks.close()


def _forget_lines(id_: str, completed: bool, tables: BatchTables) -> int:
    return tables.lines.forget(id_, completed=completed)


def missing_batch_error(id_: str) -> NotFound:
    return NotFound(f"There is no batch {quoted(id_)}; it may have been deleted.", code="batch_not_found")
