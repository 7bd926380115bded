"""Creates batches and validates them: while a batch is `validating`, its lines are checked and stored.

A validation that a crash interrupted starts again without the batch's old lines: at the next start of that server, or
on another server that has closed its epoch.
"""

import asyncio
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from batches.check_process import InputLine, InputSummary
from batches.intake.checker import InputChecker
from batches.intake.stored_files import BATCH, REPEAT_SECONDS, StoredFiles, missing_error, repeat_error
from batches.records import CHUNK, BatchFault, BatchRecord, BatchState, NewLine
from batches.store import BatchStore, BatchTables
from registry.base.wording import quoted
from registry.errors import BadRequest, EngineFailed, QueueFull, RoundhouseError
from registry.storage.reserve import DiskReserve
from tenants.limits.stored import QueueLimiter

log = logging.getLogger("roundhouse.batches")
UNFINISHED = 100
"""Most unfinished batches of one team."""
ANTHROPIC = "anthropic"
MOST_LINES = {ANTHROPIC: 100_000}
"""Most lines of a batch by API, if other than the default."""
PREFIXES = {ANTHROPIC: "msgbatch"}
"""Prefixes of ids by API, if other than `batch`."""
BYTES_PER_TOKEN = 4
"""Bytes of a body per estimated input token. Tokenizing 50,000 lines would take too long."""
AGAIN_SECONDS = 5.0
"""Seconds before a retry after the database failed or memory ran out."""
Resolve = Callable[[BatchRecord, Sequence[str]], Awaitable[Mapping[str, str]]]
"""Returns what each name in a batch refers to now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """`window`: seconds. `body_hash`: of the request that creates it."""

    team: str
    key: str
    surface: str
    endpoint: str
    window: int
    input_file: str = ""
    priority: int = 1
    metadata: Mapping[str, str] = field(default_factory=dict)
    idempotency: str = ""
    body_hash: str = ""
    callback: str = ""
    output_seconds: int | None = None


async def _as_named(_: BatchRecord, names: Sequence[str]) -> Mapping[str, str]:
    return {}


async def _do_nothing(_: str) -> None:
    return


class BatchCreator:
    """limits: on tokens of a team's unfinished batches. reserve: of the disk."""

    def __init__(
        self,
        store: BatchStore,
        files: StoredFiles,
        checker: InputChecker,
        limits: QueueLimiter,
        reserve: DiskReserve,
    ) -> None:
        self._store, self._files, self._checker, self._limits = store, files, checker, limits
        self._reserve = reserve
        self.resolve: Resolve = _as_named
        """Called at the end of a validation."""
        self.started: Callable[[str], Awaitable[None]] = _do_nothing
        """Called with the id of a batch whose lines may run now."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def create(self, new: NewBatch) -> BatchRecord:
        """Return the batch once it is committed, or the batch that an identical call created earlier.

        Raises NotFound for a missing input file, BadRequest if it has another purpose, QueueFull (too_many_batches),
        FinalConflict if its Idempotency-Key was used with another body, and Unavailable (storage_full if the disk has
        only its reserve left).
        """
        self._check_room()
        prefix = PREFIXES.get(new.surface, "batch")
        batch = BatchRecord(
            f"{prefix}_{secrets.token_hex(16)}", new.team, new.key, new.surface, new.endpoint, new.input_file,
            time.time(), new.window, priority=new.priority, metadata=new.metadata, idempotency=new.idempotency,
            body_hash=new.body_hash, callback=new.callback, output_seconds=new.output_seconds,
        )  # fmt: skip
        since, key = batch.created - REPEAT_SECONDS, new.idempotency

        def repeated(tables: BatchTables) -> BatchRecord | None:
            return tables.batches.find_repeat(new.team, new.surface, key, since)

        def create(tables: BatchTables) -> BatchRecord | None:
            if key and (earlier := repeated(tables)) is not None:
                return earlier
            if len(tables.batches.unfinished(new.team)) >= UNFINISHED:
                raise _too_many_error()
            return tables.batches.create(replace(batch, validator=tables.runners.server), since)

        stored = await self._store.find(repeated, None, new.team) if key else None
        if stored is None:  # otherwise its file may be deleted by now
            await self._check_file(new)
            stored = await self._store.write(create)
        if stored is None:
            raise missing_error(new.input_file, "input_file_id")
        if stored.id != batch.id:
            if stored.body_hash != batch.body_hash:
                raise repeat_error()
            return stored
        self._begin(stored)
        return stored

    async def _check_file(self, new: NewBatch) -> None:
        file = await self._files.get(new.team, new.input_file, "input_file_id")
        if file.purpose != BATCH:
            raise BadRequest(
                f"The purpose of file {quoted(file.id)} is {file.purpose}: upload the input with purpose=batch.",
                param="input_file_id",
                code="wrong_purpose",
            )

    async def validated(self, id_: str, seconds: float | None = None) -> None:
        """Wait until a batch is no longer `validating` or the server stops, for at most `seconds`."""
        if (task := self._tasks.get(id_)) is not None:
            await asyncio.wait({task}, timeout=seconds)

    async def resume(self) -> int:
        """Resume validations of an earlier run of this server and of dead servers. Returns how many.

        Raises Unavailable, QueueFull.
        """
        batches = await self._store.read(lambda tables: tables.batches.unfinished())
        if not any(batch.state is BatchState.VALIDATING and batch.id not in self._tasks for batch in batches):
            return 0
        mine = await self._store.write(lambda tables: tables.runners.take_validations())
        left = [batch for batch in batches if batch.id in mine and batch.id not in self._tasks]
        for batch in left:
            self._begin(batch)
        return len(left)

    async def close(self) -> None:
        """Stop validations. The next start resumes them."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # --- validation -------------------------------------------------------------------------------------------------
    def _begin(self, batch: BatchRecord) -> None:
        task = asyncio.create_task(self._validate(batch), name=f"validate-{batch.id}")
        self._tasks[batch.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(batch.id, None))

    async def _validate(self, batch: BatchRecord) -> None:
        while True:
            try:
                return await self._try(batch)
            except (BadRequest, EngineFailed) as error:  # the database rejects such text, or the checker died
                return await self._fail(batch, [BatchFault(error.code, error.message)])
            except FileNotFoundError:
                text = "The input file was deleted: upload it again and create another batch."
                return await self._fail(batch, [BatchFault("file_not_found", text)])
            except (RoundhouseError, OSError) as error:
                log.warning("the validation of a batch will be retried", extra={"batch": batch.id, "cause": str(error)})
                await asyncio.sleep(AGAIN_SECONDS)

    async def _try(self, batch: BatchRecord) -> None:
        if not await self._store.write(lambda tables: tables.lines.begin(batch.id, tables.runners.server)):
            return
        async with self._files.local_path(batch.input_file) as path:
            job = self._files.job(path, batch.endpoint, MOST_LINES.get(batch.surface))
            sizes, number, waiting = Counter[str](), 0, list[NewLine]()
            async with self._checker.check(job, batch.team) as answers:
                async for answer in answers:
                    if isinstance(answer, InputSummary):
                        summary = answer
                        break
                    waiting += [_line(number + place, line) for place, line in enumerate(answer.lines)]
                    number += len(answer.lines)
                    for line in answer.lines:
                        sizes[line.model] += line.length
                    if len(waiting) >= CHUNK and not await self._add(batch, waiting):
                        return
        if summary.fault_count:
            await self._fail(batch, summary.faults, summary.fault_count)
            return
        while waiting:
            if not await self._add(batch, waiting):
                return
        resolved = await self.resolve(batch, sorted(sizes.keys() - {""}))
        tokens = Counter[str]()
        for name, size in sizes.items():
            tokens[resolved.get(name, name)] += math.ceil(size / BYTES_PER_TOKEN)
        if await self._store.write(lambda tables: self._start(tables, batch, resolved, tokens)):
            await self.started(batch.id)

    def _start(
        self, tables: BatchTables, batch: BatchRecord, resolved: Mapping[str, str], tokens: Mapping[str, int]
    ) -> bool:
        """Start a batch whose lines are stored, or fail it if its team's limit has no room for its tokens."""
        if self._limits.is_limited(batch.team):
            refusal = self._limits.refusal(batch.team, tokens, tables.batches.queued(batch.team))
            if refusal is not None:
                self._fail_in(tables, batch, [BatchFault("token_limit_exceeded", refusal)])
                return False
        return tables.batches.start(batch.id, time.time(), resolved, tables.runners.server, tokens)

    async def _add(self, batch: BatchRecord, waiting: list[NewLine]) -> bool:
        """Store the first of the waiting lines. Returns False if the batch is not validated here any more."""
        self._check_room()
        lines, waiting[:CHUNK] = waiting[:CHUNK], []
        return await self._store.write(lambda tables: tables.lines.add(batch.id, lines, tables.runners.server))

    def _check_room(self) -> None:
        """Raise Unavailable if the disk is short: lines take space, too, and one file can create many batches."""
        if self._reserve.is_short:
            raise self._reserve.full_error()

    async def _fail(self, batch: BatchRecord, faults: Sequence[BatchFault], count: int | None = None) -> None:
        await self._store.write(lambda tables: self._fail_in(tables, batch, faults, count))

    def _fail_in(
        self, tables: BatchTables, batch: BatchRecord, faults: Sequence[BatchFault], count: int | None = None
    ) -> None:
        tables.batches.fail(batch.id, time.time(), faults, count, tables.runners.server)


def _line(number: int, line: InputLine) -> NewLine:
    return NewLine(number, line.custom_id, line.model, line.offset, line.length)


def _too_many_error() -> QueueFull:
    return QueueFull(
        f"Your team has {UNFINISHED} batches that are not finished: wait for one of them, or cancel it.",
        code="too_many_batches",
        retry_after=60,
    )
