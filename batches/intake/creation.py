"""Create batches, and validate them: their lines are read by the checker and stored while they are `validating`.

A validation that a crash ended begins again, with the batch's lines removed: at the next start of that server, or by
another one that has closed its epoch.
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
"""Batches of one team that may be under way."""
ANTHROPIC = "anthropic"
MOST_LINES = {ANTHROPIC: 100_000}
"""The most lines a batch may have, by surface, where it is not the usual bound."""
PREFIXES = {ANTHROPIC: "msgbatch"}
"""Prefixes of ids by surface, where they are not `batch`."""
BYTES_PER_TOKEN = 4
"""Bytes of a body per estimated input token: no tokenizer reads a file of 50,000 lines."""
AGAIN_SECONDS = 5.0
"""Seconds until the next try after a failure of the database."""
Resolve = Callable[[BatchRecord, Sequence[str]], Awaitable[Mapping[str, str]]]
"""Resolves each name in a batch as it is now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """`window`: seconds. `body_hash`: of the creating body."""

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
    """limits: of the tokens that a team's unfinished batches hold. reserve: of the disk; None: there is none."""

    def __init__(
        self,
        store: BatchStore,
        files: StoredFiles,
        checker: InputChecker,
        limits: QueueLimiter,
        reserve: DiskReserve | None = None,
    ) -> None:
        self._store, self._files, self._checker, self._limits = store, files, checker, limits
        self._reserve = reserve
        self.resolve: Resolve = _as_named
        """Run at the end of a validation."""
        self.started: Callable[[str], Awaitable[None]] = _do_nothing
        """Called with a batch whose lines may run now."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def create(self, new: NewBatch) -> BatchRecord:
        """Return the batch once it is committed, or the one that the same call created before.

        Raises NotFound for the input file, BadRequest for one of another purpose, QueueFull (too_many_batches),
        FinalConflict for an Idempotency-Key that came with another body, Unavailable (storage_full where the disk has
        only its reserve left).
        """
        self._check_room()
        prefix = PREFIXES.get(new.surface, "batch")
        batch = BatchRecord(
            f"{prefix}_{secrets.token_hex(16)}", new.team, new.key, new.surface, new.endpoint, new.input_file,
            time.time(), new.window, priority=new.priority, metadata=new.metadata, idempotency=new.idempotency,
            body_hash=new.body_hash, callback=new.callback, output_seconds=new.output_seconds,
        )  # fmt: skip
        file = await self._files.get(new.team, new.input_file, "input_file_id")
        if file.purpose != BATCH:
            raise BadRequest(
                f"The purpose of file {quoted(file.id)} is {file.purpose}: upload the input with purpose=batch.",
                param="input_file_id",
                code="wrong_purpose",
            )

        def create(tables: BatchTables) -> BatchRecord | None:
            since, key = batch.created - REPEAT_SECONDS, new.idempotency
            if key and (earlier := tables.batches.find_repeat(new.team, new.surface, key, since)) is not None:
                return earlier
            if len(tables.batches.unfinished(new.team, UNFINISHED)) >= UNFINISHED:
                raise _too_many_error()
            return tables.batches.create(replace(batch, validator=tables.runners.server), since)

        stored = await self._store.write(create)
        if stored is None:
            raise missing_error(new.input_file, "input_file_id")
        if stored.id != batch.id:
            if stored.body_hash != batch.body_hash:
                raise repeat_error()
            return stored
        self._begin(stored)
        return stored

    async def validated(self, id_: str, seconds: float | None = None) -> None:
        """Wait until a batch has left `validating`, or the server stops; at most so long."""
        if (task := self._tasks.get(id_)) is not None:
            await asyncio.wait({task}, timeout=seconds)

    async def resume(self) -> int:
        """Validate what an earlier run of this server left, and one that works no more. Returns how many.

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
        """Stop validations; the next start begins them again."""
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
            except (BadRequest, EngineFailed) as error:  # the database takes no such text, or the checker died of it
                return await self._fail(batch, [BatchFault(error.code, error.message)])
            except FileNotFoundError:
                text = "The input file is gone: upload it again and create another batch."
                return await self._fail(batch, [BatchFault("file_not_found", text)])
            except (RoundhouseError, OSError) as error:
                log.warning("a batch's validation begins again", extra={"batch": batch.id, "cause": str(error)})
                await asyncio.sleep(AGAIN_SECONDS)

    async def _try(self, batch: BatchRecord) -> None:
        if not await self._store.write(lambda tables: tables.lines.begin(batch.id, tables.runners.server)):
            return
        with self._files.content().local_path(batch.input_file) as path:
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
        """Let a batch whose lines are stored begin; fail it where its team's limit has no room for its tokens."""
        if self._limits.is_limited(batch.team):
            refusal = self._limits.refusal(batch.team, tokens, tables.batches.queued(batch.team))
            if refusal is not None:
                self._fail_in(tables, batch, [BatchFault("token_limit_exceeded", refusal)])
                return False
        return tables.batches.start(batch.id, time.time(), resolved, tables.runners.server, tokens)

    async def _add(self, batch: BatchRecord, waiting: list[NewLine]) -> bool:
        """Store the first lines of those that wait. False: the batch is cancelled, or another server validates it."""
        self._check_room()
        lines, waiting[:CHUNK] = waiting[:CHUNK], []
        return await self._store.write(lambda tables: tables.lines.add(batch.id, lines, tables.runners.server))

    def _check_room(self) -> None:
        """Raises Unavailable: lines take room too, and a file makes any number of batches."""
        if self._reserve is not None and self._reserve.is_short:
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
