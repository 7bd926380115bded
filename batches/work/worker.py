"""Runs the lines of batches: claims them as the policy decides, runs each, and makes sure that its end is written.

| event                                    | effect                                                                   |
|------------------------------------------|--------------------------------------------------------------------------|
| the first file or batch of the server    | opens an epoch; closes earlier ones of this server, which returns their  |
|                                          | lines                                                                    |
| lines wait, and a model has room         | they are claimed and run                                                 |
| a line's key lost its rights             | its batch is cancelled, with the reason in its faults                    |
| a batch is cancelled, or its window ends | its running lines are stopped; its waiting lines are dropped             |
| another server closed the epoch          | running lines are stopped and write nothing; a new epoch is opened       |
| a budget is spent                        | lines for which it would pay wait, and their batches say until when;     |
|                                          | only for a moment if running lines have reserved what is missing         |
| the server starts to stop                | no more lines are claimed; running lines may finish                      |
| `close`                                  | running lines are stopped and wait again; the epoch is closed            |

Runs as one task on the server's event loop, and one for each running line.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from batches.looks import look_repeatedly
from batches.records import CHUNK, BatchFault, BatchRecord, BatchState, LineState
from batches.store import BatchStore
from batches.work import ends, policy
from batches.work.forecaster import Forecaster, Observe
from batches.work.running import LineAttempt
from batches.work.waiting import WaitingLines
from registry.errors import BudgetExceeded, NotFound, RoundhouseError, Unauthorized, Unavailable
from tenants.caller import Caller

log = logging.getLogger("roundhouse.batches")
POLL_SECONDS = 0.5
"""Longest interval between two updates from the tables."""
COALESCE_SECONDS = 0.01
"""Lines that end within this time are followed by one claim."""
RETRY_SECONDS = 0.5
BEAT_SECONDS = 5.0
"""Interval between heartbeats if several servers share a database."""
BUDGET_SECONDS = 30.0
"""Longest pause of lines whose budget is spent, because its limit may be raised."""
BUDGET_WORDS = "A budget of the team or of the key has no room for these lines."
CLOSE_SECONDS = 10.0
"""Longest wait for running lines to end when the server stops."""

RunLine = Callable[[LineAttempt], Awaitable[None]]
"""Answers a line. The attempt receives the answer. Must not raise."""
ReadBody = Callable[[str, int, int], Awaitable[bytes]]
"""Returns bytes of a file: id, offset, length. Raises FileNotFoundError, OSError, Unavailable."""


@dataclass(slots=True)
class _Pause:
    """A pause in claiming, because a budget is spent. Times are seconds since the epoch."""

    end: float = 0.0
    until: float | None = None
    """End of the budget's day or month."""
    batches: set[str] = field(default_factory=set)
    """Batches whose lines it holds up."""


class BatchWorker:
    """rights: returns the caller of a key's id and team; raises Unauthorized if it has no rights any more.

    is_open: whether the server accepts work. observe: receives forecasts relative to the truth. taken_over: called when
    lines of a silent server were returned.
    """

    def __init__(
        self,
        store: BatchStore,
        run_line: RunLine,
        read_body: ReadBody,
        rooms: policy.Rooms,
        rights: Callable[[str, str], Caller],
        is_open: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
        observe: Observe = lambda _, __: None,
        taken_over: Callable[[], None] = lambda: None,
    ) -> None:
        self._taken_over = taken_over
        self._store, self._run_line, self._read_body, self._rooms = store, run_line, read_body, rooms
        self._rights, self._is_open, self._clock = rights, is_open, clock
        self._changed = asyncio.Event()
        self._epoch: int | None = None
        self._beat_at = 0.0
        self._running: dict[asyncio.Task[None], tuple[LineAttempt, str]] = {}
        """Running lines, each with the key of its room."""
        self._paused: dict[tuple[str, str, str], _Pause] = {}
        """Pauses by team, key and room, because a budget may be one key's, or for one model."""
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = self._is_closed = False
        self._batches: dict[str, BatchRecord] = {}
        """Batches that may run lines, as last read."""
        self._callers: dict[str, Caller] = {}
        self._waiting = WaitingLines(store, clock)
        self._forecasts = Forecaster(store, rooms, clock, observe)
        self._shares = policy.TeamShares()
        self._is_stale, self._read_at = True, 0.0
        self._ends, self._enough_ends = 0, 1
        """Lines that ended since the last update, and how many trigger one. Waiting lines fill the gaps until then."""

    def start(self) -> None:
        complaint = "batches wait: their tables cannot be read or written"
        work = look_repeatedly(self._look, self._changed, POLL_SECONDS, complaint, COALESCE_SECONDS)
        self._task = asyncio.create_task(work, name="batches")

    def wake(self) -> None:
        """Schedule an update: a batch was created, started or cancelled."""
        self._is_stale = True
        self._changed.set()

    async def forecast(self, id_: str) -> None:
        """Forecast a batch that has just started. Failures are made up for by a later update."""
        try:
            batch = await self._store.read(lambda tables: tables.batches.get(id_))
            if batch is not None and batch.state is BatchState.IN_PROGRESS:
                await self._forecasts.add(batch, self._rights(batch.key, batch.team))
        except RoundhouseError as error:
            log.warning("a new batch has no forecast yet", extra={"batch": id_, "cause": error.message})

    def stop_claiming(self) -> None:
        """Stop claiming lines, because the server is about to stop."""
        self._is_stopping = True

    def stop_lines(self) -> None:
        """Stop running lines, so that they wait again."""
        self._stop(list(self._running))

    async def drain(self, seconds: float) -> None:
        """Stop claiming, and wait until no line runs, for at most `seconds`."""
        self.stop_claiming()
        until = time.monotonic() + seconds
        while self._running and (left := until - time.monotonic()) > 0:
            await asyncio.wait(list(self._running), timeout=left)

    @property
    def epoch(self) -> int | None:
        """The epoch under which this server claims. None if it has none now."""
        return self._epoch

    @property
    def running(self) -> int:
        """Number of running lines."""
        return len(self._running)

    async def close(self) -> None:
        """Stop running lines, so that they wait again, and close the epoch."""
        self.stop_claiming()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self.stop_lines()
        until = time.monotonic() + CLOSE_SECONDS
        while self._running and (left := until - time.monotonic()) > 0:
            await asyncio.wait(list(self._running), timeout=left)
            await asyncio.sleep(0)  # follow up tasks that ended before they began
        self._is_closed = True
        if self._running:  # the ledger cannot write their ends; the next start returns them
            log.warning(
                "ends of batch lines were not written: they will run again", extra={"lines": len(self._running)}
            )
            for task in list(self._running):
                task.cancel()
            await asyncio.wait(list(self._running))
            return
        if self._epoch is not None:
            epoch = self._epoch
            try:
                await self._store.write(lambda tables: tables.runners.close(epoch))
            except RoundhouseError as error:  # the next start closes it
                log.warning("a runner's epoch was not closed", extra={"cause": error.message})

    # --- the loop -----------------------------------------------------------------------------------------------------
    async def _look(self) -> None:
        self._ends = 0
        if not await self._store.opened():
            return
        if self._epoch is None:
            alone = self._store.is_alone
            self._epoch, returned = await self._store.write(lambda tables: tables.runners.open(alone=alone))
            self._beat_at = time.monotonic() + BEAT_SECONDS
            if returned:
                log.info("lines of batches run again after a restart", extra={"lines": returned})
        elif not await self._beat(self._epoch):
            return
        if self._is_stale or time.monotonic() >= self._read_at:
            await self._read()
        if self._is_stopping or not self._is_open():
            return
        works = list(self._batches.values())
        full = await self._claim(works, self._callers) if works else ()
        self._forecasts.advance(full)
        if self._batches and self._forecasts.is_due():
            await self._forecasts.renew([(batch, self._callers[batch.id]) for batch in self._batches.values()])
            self._is_stale = True

    async def _read(self) -> None:
        """Read the batches, drop lines of batches that end, and find the callers that may still run lines."""
        self._is_stale, self._read_at = False, time.monotonic() + POLL_SECONDS
        batches = await self._store.read(lambda tables: tables.batches.unfinished())
        now = self._clock()
        for batch in batches:
            if batch.state is BatchState.CANCELLING:
                await self._drop(batch, LineState.CANCELLED)
            elif batch.state is BatchState.IN_PROGRESS and batch.deadline <= now:
                await self._drop(batch, LineState.EXPIRED)
        runs = [batch for batch in batches if batch.state is BatchState.IN_PROGRESS and batch.deadline > now]
        self._callers = await self._find_callers(runs)
        self._batches, before = {run.id: run for run in runs if run.id in self._callers}, self._batches
        if gone := before.keys() - {batch.id for batch in batches}:
            await self._forecasts.judge(list(gone))
        self._paused = {
            whose: pause for whose, pause in self._paused.items() if now < pause.end <= now + BUDGET_SECONDS
        }  # longer pauses stem from a clock that was set back
        running = {attempt.batch.id for attempt, _ in self._running.values()}
        for pause in list(self._paused.values()):
            for id_ in pause.batches & self._batches.keys() - running:
                await self._set_wait(self._batches[id_], BUDGET_WORDS, pause.until)

    async def _beat(self, epoch: int) -> bool:
        """Send a heartbeat, and check on other servers. Returns False if this server has lost its epoch."""
        if self._store.is_alone or time.monotonic() < self._beat_at:
            return True
        self._beat_at = time.monotonic() + BEAT_SECONDS
        if not await self._store.write(lambda tables: tables.runners.beat(epoch)):
            log.warning("another server took over this server's lines", extra={"lines": len(self._running)})
            self.stop_lines()
            self._epoch = None
            self.wake()
            return False
        for server in await self._store.write(lambda tables: tables.runners.close_silent()):
            log.warning("lines of a silent server will run again", extra={"server": server})
            self._taken_over()
        return True

    async def _drop(self, batch: BatchRecord, to: LineState) -> None:
        """Stop a batch's running lines, and cancel or expire the waiting ones."""
        self._stop([task for task, (attempt, _) in self._running.items() if attempt.batch.id == batch.id])
        id_, now = batch.id, self._clock()
        while await self._store.write(lambda tables: tables.lines.drop(id_, to, now)) == CHUNK:
            pass

    def _stop(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            attempt, _ = self._running[task]
            if not attempt.is_stopped:  # once: the task then writes the line's end
                attempt.is_stopped = True
                task.cancel()

    async def _find_callers(self, batches: Sequence[BatchRecord]) -> dict[str, Caller]:
        """Return the callers by batch. Batches whose keys have no rights are cancelled."""
        callers: dict[str, Caller] = {}
        for batch in batches:
            try:
                callers[batch.id] = self._rights(batch.key, batch.team)
            except Unauthorized as error:
                fault = BatchFault(error.code, f"The batch was cancelled: its key has no rights now. {error.message}")
                await self._cancel(batch.id, fault)
            except RoundhouseError:  # cannot be determined now
                continue
        return callers

    async def _cancel(self, id_: str, fault: BatchFault) -> None:
        now = self._clock()
        await self._store.write(lambda tables: tables.batches.cancel(id_, now, fault))
        log.info("a batch was cancelled", extra={"batch": id_, "code": fault.code})
        self.wake()

    # --- claims -------------------------------------------------------------------------------------------------------
    async def _claim(self, batches: Sequence[BatchRecord], callers: Mapping[str, Caller]) -> Collection[str]:
        """Claim lines of these batches as the policy decides, and run them. Returns the rooms with lines left."""
        now = self._clock()
        waiting = await self._waiting.of([batch.id for batch in batches])
        if not waiting:
            return ()
        rooms: dict[str, policy.NamedRoom] = {}
        by_id = {batch.id: batch for batch in batches}
        groups: dict[str, list[policy.LineGroup]] = {}
        for one in waiting:
            batch = by_id[one.batch]
            name = batch.names.get(one.model, one.model)
            room = self._rooms.room(name, callers[one.batch])
            if (pause := self._paused.get((batch.team, batch.key, room.key))) is not None:
                pause.batches.add(batch.id)
                continue
            rooms.setdefault(room.key, room)
            groups.setdefault(one.batch, []).append(
                policy.LineGroup(
                    one.model,
                    room.key,
                    one.count,
                    one.suspects,
                    room.is_placed,
                    self._line_work(batch, name),
                )
            )
        if not rooms:
            return ()
        self._enough_ends = min(policy.look_ahead(room.traffic) for room in rooms.values()) // 2
        self._join(by_id, groups)
        runs = {attempt.batch.id for attempt, _ in self._running.values()}
        works = [
            self._work_of(batch, callers[batch.id], groups[batch.id], now) for batch in batches if batch.id in groups
        ]
        claims = policy.choose(works, {key: self._use(key, room) for key, room in rooms.items()}, self._shares)
        pace, taken = policy.pace(room.traffic for room in rooms.values()), 0
        for claim in claims:
            await self._take(by_id[claim.batch], callers[claim.batch], claim, now, pace, taken)
            taken += claim.count
        await self._explain(by_id, groups, rooms, runs | {claim.batch for claim in claims})
        left = Counter[str]()
        for group in (group for many in groups.values() for group in many):
            left[group.room] += group.count + group.suspects
        left.subtract(Counter(claim.room for claim in claims for _ in range(claim.count)))
        mine = [key for key, room in rooms.items() if not room.is_remote]
        return [key for key in mine if left[key] > 0 and not rooms[key].load_seconds]

    def _line_work(self, batch: BatchRecord, name: str) -> float:
        return self._forecasts.lines.one(batch.id, batch.endpoint, name)

    def _join(self, batches: Mapping[str, BatchRecord], groups: Mapping[str, Sequence[policy.LineGroup]]) -> None:
        """Tell the shares which teams have lines for which model."""
        teams: dict[str, set[str]] = {}
        for id_, many in groups.items():
            for group in many:
                teams.setdefault(group.room, set()).add(batches[id_].team)
        self._shares.join(teams)

    def _work_of(
        self, batch: BatchRecord, caller: Caller, groups: Sequence[policy.LineGroup], now: float
    ) -> policy.BatchWork:
        level = self._forecasts.level(batch, now)
        return policy.BatchWork(
            batch.id, batch.team, caller.weight, level, batch.deadline, batch.created, batch.priority, groups
        )

    def _use(self, key: str, room: policy.NamedRoom) -> policy.RoomUse:
        attempts = [attempt for attempt, its_key in self._running.values() if its_key == key]
        limits = {level: policy.room_for(room.traffic, level) for level in policy.Level}
        return policy.RoomUse(
            limits,
            len(attempts),
            has_suspect=any(attempt.line.deaths for attempt in attempts),
            raised=sum(attempt.is_raised for attempt in attempts),
            half=room.traffic.capacity // 2,
        )

    async def _take(
        self, batch: BatchRecord, caller: Caller, claim: policy.LineClaim, now: float, pace: float, before: int
    ) -> None:
        """Claim lines and run them. pace: seconds between two of them. before: lines that were claimed just before."""
        epoch = self._epoch
        assert epoch is not None
        lines = await self._store.write(
            lambda tables: tables.lines.claim(
                epoch, claim.batch, claim.name, claim.count, now, suspects=claim.is_suspect
            )
        )
        for number, line in enumerate(lines, start=before):
            request = f"batch_req_{secrets.token_hex(12)}"
            attempt = LineAttempt(batch, line, epoch, caller, request, self._clock)
            attempt.is_raised = claim.is_raised
            attempt.expected_work = self._line_work(batch, attempt.model)
            self._shares.charge(claim.room, batch.team, attempt.expected_work, caller.weight)
            self._follow(self._run(attempt, claim.room, number * pace), attempt, claim.room)
        self._waiting.take(claim.batch, claim.name, claim.count, len(lines), suspects=claim.is_suspect)

    async def _explain(
        self,
        batches: Mapping[str, BatchRecord],
        groups: Mapping[str, Sequence[policy.LineGroup]],
        rooms: Mapping[str, policy.NamedRoom],
        runs: Set[str],
    ) -> None:
        """Store why batches wait. runs: those with running lines, which do not."""
        paused = {id_ for pause in self._paused.values() for id_ in pause.batches}
        for id_, batch in batches.items():
            if id_ in paused - runs:
                continue
            its_rooms = [rooms[group.room] for group in groups.get(id_, ())]
            if its_rooms and all(room.is_remote and not room.words for room in its_rooms):
                continue
            words = "" if id_ in runs else next((room.words for room in its_rooms if room.words), "")
            await self._set_wait(batch, words)

    async def _set_wait(self, batch: BatchRecord, words: str, until: float | None = None) -> None:
        if (words, until) != (batch.waits, batch.waits_until):
            await self._store.write(lambda tables: tables.batches.wait([batch.id], words, until))
            self._batches[batch.id] = replace(batch, waits=words, waits_until=until)

    # --- a line -------------------------------------------------------------------------------------------------------
    async def _run(self, attempt: LineAttempt, room: str, delay: float) -> None:
        """Run a line after a delay and write its end. If it is stopped, `_ended` returns it."""
        try:
            if delay:
                await asyncio.sleep(delay)
                attempt.started = time.monotonic()
            line = attempt.line
            attempt.body = await self._read_body(attempt.batch.input_file, line.offset, line.length)
            await self._run_line(attempt)
        except FileNotFoundError:
            error = NotFound("The input file of this batch was deleted: upload it again.", code="file_not_found")
            attempt.answer(error.status, _error(error))
        except (RoundhouseError, OSError) as error:  # the file cannot be read now
            log.warning("a line of a batch could not be read", extra={"batch": attempt.batch.id, "cause": str(error)})
            attempt.answer(Unavailable.status, b"")
        except Exception:  # last resort: the line runs again, after a pause because it may break each time
            log.exception("a line of a batch broke", extra={"request_id": attempt.request})
            if not attempt.has_rider:
                attempt.answer(Unavailable.status, b"", ends.LONGEST_REFUSED)
        await self._see_to_end(attempt, room)

    async def _see_to_end(self, attempt: LineAttempt, room: str) -> None:
        is_refused = _is_over_budget(attempt)
        is_reserved = is_refused and self._others_run(attempt, room)
        if is_reserved:  # they return what they do not use
            attempt.retry_soon()
        if attempt.has_rider:
            await asyncio.wait({attempt.ended})  # unlike `await`, this leaves the future alone if the line is stopped
        while not attempt.was_written:
            try:
                await self._store.write(
                    lambda tables: tables.lines.end(attempt.epoch, attempt.line, attempt.change(), self._clock())
                )
                attempt.was_written = True
            except Unavailable as error:
                if error.code == "shutting_down":  # the next start returns it
                    return
                await asyncio.sleep(RETRY_SECONDS)
        end = attempt.end_record
        self._forecasts.answered(attempt, room)
        if attempt.used is not None:
            work = attempt.work - attempt.expected_work
            self._shares.charge(room, attempt.batch.team, work, attempt.caller.weight)
        if attempt.change().state is LineState.WAITING:
            self._waiting.give_back()
        if is_refused:
            now, seconds = self._clock(), end.retry_after
            longest = ends.REFUSED_PAUSE if is_reserved else BUDGET_SECONDS
            pause = self._paused.setdefault((attempt.batch.team, attempt.batch.key, room), _Pause())
            pause.end = max(pause.end, now + (longest if seconds is None else min(longest, seconds)))
            if not is_reserved:
                pause.until = None if seconds is None else now + seconds
            pause.batches.add(attempt.batch.id)

    def _others_run(self, attempt: LineAttempt, room: str) -> bool:
        """Whether lines run that the same budgets pay, each of which has reserved the most that it may cost."""
        whose = attempt.batch.team, attempt.batch.key, room
        return any(
            (other.batch.team, other.batch.key, its_room) == whose and not _is_over_budget(other)
            for other, its_room in self._running.values()
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        attempt, room = self._running.pop(task)
        self._is_stale |= attempt.is_stopped  # its batch may end now
        if task.cancelled() and self._is_closed:
            return
        if task.cancelled():  # its line must still be returned
            self._follow(self._see_to_end(attempt, room), attempt, room)
        elif (error := task.exception()) is not None:
            log.error("the end of a line was not written", exc_info=error)
        self._ends += 1
        if self._ends >= self._enough_ends or not self._running:
            self._changed.set()

    def _follow(self, work: Coroutine[Any, Any, None], attempt: LineAttempt, room: str) -> None:
        task = asyncio.create_task(work, name=attempt.request)
        self._running[task] = attempt, room
        task.add_done_callback(self._ended)


def _is_over_budget(attempt: LineAttempt) -> bool:
    """Whether a budget refused a line."""
    end = attempt.end_record
    return end.code == BudgetExceeded.code and not end.reached_engine


def _error(error: RoundhouseError) -> bytes:
    """Return an error in OpenAI's format, because a deleted file has no dialect."""
    return msgspec.json.encode({"error": {"message": error.message, "type": error.type, "code": error.code}})
