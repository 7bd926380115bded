"""Files of teams: stored atomically, checked, listed, deleted, and removed when they expire."""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from batches.check_process import InputJob, InputSummary
from batches.content.protocol import FileBytes
from batches.intake.checker import InputChecker
from batches.intake.split import SplitJob, SplitSummary
from batches.records import URLS, FileRecord, FileState
from batches.store import BatchStore, BatchTables
from registry.base.wording import quoted, size_words
from registry.errors import BadRequest, FinalConflict, NotFound, StorageFull
from registry.storage.files import FULL

log = logging.getLogger("roundhouse.batches")
BATCH = "batch"
PURPOSES = (BATCH, "user_data", "evals")
DAY = 86_400
LIFE_SECONDS = 30 * DAY
"""Lifetime of a file in seconds, unless its upload sets one."""
UNREAD_SECONDS = 3600
"""Lifetime of a batch's input in seconds if a crash prevents the batch's creation."""
REPEAT_SECONDS = DAY
"""Seconds for which an Idempotency-Key is remembered."""
TEAM_SHARE = 0.75
"""Part of the disk that one team's files may take, so that it cannot keep the others from uploading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """`disk`: bytes of all files. `largest`: bytes of one. The others bound a batch's input: lines and their number."""

    disk: int
    largest: int
    line_bytes: int
    values: int
    lines: int = 50_000

    @property
    def team_disk(self) -> int:
        """Most bytes of one team's files. One file of the largest size always fits."""
        return max(int(TEAM_SHARE * self.disk), min(self.disk, self.largest))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """`life`: seconds. `body_hash`: of the whole upload, if it has an Idempotency-Key."""

    team: str
    name: str
    purpose: str
    life: int = LIFE_SECONDS
    idempotency: str = ""
    body_hash: str = ""


class StoredFiles:
    """content: returns the store of bytes, once the database is known."""

    def __init__(
        self, store: BatchStore, content: Callable[[], FileBytes], checker: InputChecker, limits: FileLimits
    ) -> None:
        self._store, self.content, self._checker, self._limits = store, content, checker, limits

    # --- create -----------------------------------------------------------------------------------------------------
    async def add(self, new: NewFile, source: Path, size: int) -> FileRecord:
        """Store a complete upload. Its bytes are durable before its row is written.

        Raises StorageFull, FinalConflict if its Idempotency-Key was used with another file, Unavailable, QueueFull.
        """
        if (earlier := await self._repeated(new)) is not None:
            return earlier
        await self._check_room(new.team, size)
        now = time.time()
        file = FileRecord(
            f"file-{secrets.token_hex(16)}", new.team, new.name, new.purpose, size, now, now + new.life,
            idempotency=new.idempotency, body_hash=new.body_hash,
        )  # fmt: skip
        if file.purpose == BATCH:
            file = _with_check(file, await self._checker.summarise(self.job(source), file.team))
        return await self.insert(file, source)

    async def insert(self, file: FileRecord, source: Path) -> FileRecord:
        """Store the bytes and the row of a file. Raises what `add` raises."""
        content = self.content
        try:
            await asyncio.to_thread(lambda: content().store(file.id, source))
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise StorageFull(
                "The disk for files is full. Nothing was stored; delete files that you do not need.",
                code="storage_full",
            ) from error

        def create(tables: BatchTables) -> FileRecord:
            self._check_space(file.size, _stored_bytes(tables, file.team))
            return tables.files.create(file, file.created - REPEAT_SECONDS)

        stored: FileRecord | None = None
        try:
            stored = await self._store.write(create)
        finally:
            if stored is None or stored.id != file.id:  # a concurrent duplicate call
                await asyncio.shield(asyncio.to_thread(lambda: content().delete(file.id)))
        if stored.body_hash != file.body_hash:
            raise repeat_error()
        return stored

    async def split(
        self, team: str, body: Path, form: Literal["messages", "requests"], urls: Sequence[str], most: int
    ) -> SplitSummary:
        """Replace a body by its requests, one per line. Raises BadRequest for the first fault, EngineFailed."""
        out = body.with_name(f"{body.name}.jsonl")
        try:
            summary = await self._checker.split(
                SplitJob(
                    path=body, out=out, form=form, urls=tuple(urls), most=most, line_bytes=self._limits.line_bytes,
                    values=self._limits.values,
                ),
                team,
            )  # fmt: skip
            if summary.fault:
                raise BadRequest(summary.fault, param=summary.param or None)
            await asyncio.to_thread(os.replace, out, body)
        finally:
            await asyncio.to_thread(out.unlink, missing_ok=True)
        return summary

    async def add_requests(self, team: str, source: Path, lines: int) -> FileRecord:
        """Store the input of a batch that was sent without a file. It is removed when no batch reads it.

        Raises StorageFull, Unavailable.
        """
        size, now = (await asyncio.to_thread(source.stat)).st_size, time.time()
        await self._check_room(team, size)
        id_ = f"file-{secrets.token_hex(16)}"
        file = FileRecord(id_, team, "requests.jsonl", BATCH, size, now, now + UNREAD_SECONDS, lines=lines)
        return await self.insert(file, source)

    async def hide(self, file: FileRecord) -> None:
        """Hide a file from its team. `sweep` removes it when no batch reads it. Raises Unavailable."""
        await self._store.write(lambda tables: tables.files.delete(file.id, file.team, time.time()))

    def job(self, path: Path, url: str | None = None, most_lines: int | None = None) -> InputJob:
        """Return a job for the checker. url: what each line must name, None for any supported url."""
        limits = self._limits
        return InputJob(
            path=path, urls=URLS, url=url, most_lines=most_lines or limits.lines, line_bytes=limits.line_bytes,
            values=limits.values,
        )  # fmt: skip

    async def _repeated(self, new: NewFile) -> FileRecord | None:
        """Return the file that an identical call created earlier. Raises FinalConflict."""
        if not new.idempotency:
            return None
        since = time.time() - REPEAT_SECONDS
        file = await self._store.find(
            lambda tables: tables.files.find_repeat(new.team, new.idempotency, since), None, new.team
        )
        if file is not None and file.body_hash != new.body_hash:
            raise repeat_error()
        return file

    async def _check_room(self, team: str, size: int) -> None:
        """Check that a file fits now. Raises StorageFull, Unavailable, QueueFull."""
        self._check_space(size, await self._store.find(lambda tables: _stored_bytes(tables, team), (0, 0), team))

    def _check_space(self, size: int, stored: tuple[int, int]) -> None:
        """Raise StorageFull if a file does not fit. stored: bytes of all files, and of the team's."""
        (whole, own), limits = stored, self._limits
        if whole + size > limits.disk:
            raise StorageFull(
                f"Files take {size_words(whole)} of the {size_words(limits.disk)} that this server has for them "
                "(--files-disk): delete files that you do not need. Nothing was stored.",
                code="storage_full",
            )
        if own + size > limits.team_disk:
            raise StorageFull(
                f"Your team's files take {size_words(own)} of the {size_words(limits.team_disk)} that one team may "
                "have (three quarters of --files-disk): delete files that you do not need. Nothing was stored.",
                code="storage_full",
            )

    # --- read -------------------------------------------------------------------------------------------------------
    async def get(self, team: str, id_: str, param: str | None = None) -> FileRecord:
        """Return a file. Raises NotFound if unknown, deleted, expired or another team's; Unavailable, QueueFull."""
        file = await self._store.find(lambda tables: tables.files.get(id_, team), None, team)
        if file is None or (file.expires is not None and file.expires <= time.time()):
            raise missing_error(id_, param)
        return file

    async def list(
        self, team: str, purpose: str | None, after: str | None, limit: int, *, newest: bool
    ) -> tuple[Sequence[FileRecord], bool]:
        """Return a page, and whether more follow. Raises BadRequest for an unknown `after`, Unavailable, QueueFull."""
        return await self._store.page(
            lambda tables, most: tables.files.list(
                team, purpose=purpose, after=after, limit=most, newest=newest, now=time.time()
            ),
            after,
            limit,
            team,
        )

    @asynccontextmanager
    async def local_path(self, id_: str) -> AsyncIterator[Path]:
        """Provide a file as a path for the duration of the context, copied from the database if it is there.

        Raises FileNotFoundError, OSError, Unavailable.
        """
        opened = await asyncio.to_thread(lambda: self.content().local_path(id_))
        path = await asyncio.to_thread(opened.__enter__)
        try:
            yield path
        finally:
            await asyncio.to_thread(opened.__exit__, None, None, None)

    # --- remove -----------------------------------------------------------------------------------------------------
    async def delete(self, team: str, id_: str) -> None:
        """Hide a file from its team, and remove its bytes unless a batch reads them. Raises NotFound, Unavailable."""
        await self.get(team, id_)
        if not await self._store.write(lambda tables: tables.files.delete(id_, team, time.time())):
            raise missing_error(id_)
        await self.sweep()

    async def tidy(self) -> None:
        """Remove bytes that a crash left without a row. Only before files can be added.

        Raises Unavailable, QueueFull, OSError.
        """
        ids = await self._store.read(lambda tables: tables.files.ids())
        if removed := await asyncio.to_thread(self.content().keep_only, ids):
            log.info("removed files without a row", extra={"files": removed})

    async def remove_orphans(self) -> None:
        """Remove bytes that another server left without a row. Raises Unavailable, OSError."""
        if removed := await asyncio.to_thread(self.content().remove_orphans):
            log.info("removed files without a row", extra={"files": removed})

    async def sweep(self) -> int:
        """Remove deleted and expired files that no unfinished batch reads. Returns how many."""
        content, removed = await asyncio.to_thread(self.content), 0
        while unused := await self._store.read(lambda tables: tables.files.unused(time.time())):
            for file in unused:
                await asyncio.to_thread(content.delete, file.id)
                await self._store.write(lambda tables, id_=file.id: tables.files.remove(id_))  # type: ignore[misc]
            removed += len(unused)
        return removed


def _stored_bytes(tables: BatchTables, team: str) -> tuple[int, int]:
    return tables.files.stored()[1], tables.files.stored(team)[1]


def _with_check(file: FileRecord, summary: InputSummary) -> FileRecord:
    if not summary.fault_count:
        return replace(file, lines=summary.lines)
    first = summary.faults[0]
    where = "" if first.line is None else f"Line {first.line}: "
    more = "" if summary.fault_count == 1 else f" ({summary.fault_count} faults in all)"
    return replace(file, state=FileState.ERROR, details=f"{where}{first.message}{more}", lines=summary.lines)


def missing_error(id_: str, param: str | None = None) -> NotFound:
    """Return the error for a missing file: the same for an unknown, a deleted and another team's file."""
    return NotFound(
        f"There is no file {quoted(id_)}; it may have been deleted or expired.", code="file_not_found", param=param
    )


def repeat_error() -> FinalConflict:
    return FinalConflict(
        "This Idempotency-Key was used for another request less than a day ago: use a new key for each new request.",
        code="idempotency_conflict",
    )
