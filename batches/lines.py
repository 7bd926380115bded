"""The table of lines: stored, claimed under an epoch, ended exactly once, read in input order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from batches.records import CHUNK, BatchState, Line, LineChange, LineEnd, LineState, NewLine
from batches.storage.queries import is_open
from batches.storage.tables import BATCHES, LINES
from batches.table import BatchSums, close, count, is_validated, remove
from batches.work.ends import LONGEST_PAUSE
from registry.storage.database import Database

MAX_OUTPUT = 8 << 30
"""Most bytes of a batch's answers."""
_NEW = ("number", "custom_id", "model", "offset", "length")


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """Waiting lines of a batch that name the same model."""

    batch: str
    model: str
    count: int
    suspects: int = 0
    """Lines whose engine died while they ran. Not included in `count`."""


@dataclass(frozen=True, slots=True)
class UnfinishedGroup:
    """Unfinished lines of a batch that name the same model."""

    batch: str
    model: str
    count: int
    size: int
    """Bytes of their requests."""


class LineTable:
    """Every call is one blocking transaction. Raises Unavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- while the batch is validating ------------------------------------------------------------------------------
    def begin(self, batch: str, validator: str) -> bool:
        """Remove the lines of an earlier validation. Returns False in the same cases as `add`."""
        with self._database.write() as connection:
            query = sa.update(BATCHES).where(is_validated(batch, validator))
            if not connection.execute(query.values(total=0)).rowcount:
                return False
            remove(connection, batch)
        return True

    def add(self, batch: str, lines: Sequence[NewLine], validator: str | None = None) -> bool:
        """Store at most `CHUNK` lines.

        Returns False without storing anything if the batch is no longer `validating` or if another server is validating
        it.
        """
        assert len(lines) <= CHUNK
        with self._database.write() as connection:
            query = sa.select(BATCHES.c.id).where(is_validated(batch, validator)).with_for_update()
            if connection.execute(query).one_or_none() is None:
                return False
            if lines:
                new = {"batch": batch, "state": LineState.WAITING.value}
                rows = [{**new, **{name: getattr(line, name) for name in _NEW}} for line in lines]
                connection.execute(sa.insert(LINES), rows)
                count(connection, batch, {"total": len(lines)})
        return True

    # --- work -------------------------------------------------------------------------------------------------------
    def waiting(self, batches: Sequence[str], now: float) -> Sequence[WaitingGroup]:
        """Return the lines that may run now, grouped by batch and model name."""
        suspect = sa.case((LINES.c.deaths > 0, 1), else_=0)
        query = (
            sa.select(LINES.c.batch, LINES.c.model, sa.func.count(), sa.func.sum(suspect))
            .where(LINES.c.batch.in_(batches), LINES.c.state == LineState.WAITING.value, _is_ready(now))
            .group_by(LINES.c.batch, LINES.c.model)
        )
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return [
            WaitingGroup(batch, model, int(number) - int(suspects), int(suspects))
            for batch, model, number, suspects in rows
        ]

    def unfinished(self, batches: Sequence[str]) -> Sequence[UnfinishedGroup]:
        """Return waiting and running lines, grouped by batch and model name. 50,000 lines take about 50 ms."""
        states = (LineState.WAITING.value, LineState.RUNNING.value)
        query = (
            sa.select(LINES.c.batch, LINES.c.model, sa.func.count(), sa.func.sum(LINES.c.length))
            .where(LINES.c.batch.in_(batches), LINES.c.state.in_(states))
            .group_by(LINES.c.batch, LINES.c.model)
        )
        with self._database.read() as connection:
            return [
                UnfinishedGroup(batch, model, int(number), int(size))
                for batch, model, number, size in connection.execute(query)
            ]

    def claim(
        self, epoch: int, batch: str, model: str, most: int, now: float, *, suspects: bool = False
    ) -> Sequence[Line]:
        """Claim waiting lines in input order, under an open epoch: waiting → running.

        suspects: claim only lines whose engine died while they ran, instead of the others. Returns none if the epoch is
        closed or the batch is not in progress.
        """
        deaths = LINES.c.deaths > 0 if suspects else LINES.c.deaths == 0
        chosen = (
            sa.select(LINES.c.number)
            .where(
                LINES.c.batch == batch,
                LINES.c.model == model,
                LINES.c.state == LineState.WAITING.value,
                _is_ready(now),
                deaths,
            )
            .order_by(LINES.c.number)
            .limit(most)
            .with_for_update(skip_locked=True)
        )
        with self._database.write() as connection:
            runs = sa.select(BATCHES.c.state).where(BATCHES.c.id == batch)
            if connection.execute(runs).scalar_one_or_none() != BatchState.IN_PROGRESS.value:
                return []
            if not is_open(connection, epoch):
                return []
            numbers = list(connection.execute(chosen).scalars())
            query = sa.update(LINES).where(LINES.c.batch == batch, LINES.c.number.in_(numbers)).returning(LINES)
            rows = connection.execute(query.values(state=LineState.RUNNING.value, epoch=epoch)).all()
        return sorted((_line(row) for row in rows), key=lambda line: line.number)

    def end(self, epoch: int, line: Line, change: LineChange, now: float, uid: str | None = None) -> bool:
        """End an attempt without a ledger row. Returns False as `change_line` does, and if the epoch is closed."""
        with self._database.write() as connection:
            return is_open(connection, epoch) and change_line(connection, epoch, line, change, now, uid)

    def drop(self, batch: str, to: LineState, now: float) -> int:
        """Cancel or expire at most `CHUNK` waiting lines. The last one makes the batch final. Returns how many.

        Running lines are left to their runner.
        """
        assert to in (LineState.CANCELLED, LineState.EXPIRED)
        chosen = (
            sa.select(LINES.c.number)
            .where(LINES.c.batch == batch, LINES.c.state == LineState.WAITING.value)
            .limit(CHUNK)
            .with_for_update()
        )
        with self._database.write() as connection:
            numbers = list(connection.execute(chosen).scalars())
            query = sa.update(LINES).where(LINES.c.batch == batch, LINES.c.number.in_(numbers))
            connection.execute(query.values(state=to.value))
            count(connection, batch, {to.value: len(numbers)})
            close(connection, batch, now)
        return len(numbers)

    # --- results ----------------------------------------------------------------------------------------------------
    def results(self, batch: str, after: int = -1, limit: int = CHUNK, most: int = MAX_OUTPUT) -> Sequence[Line]:
        """Return final lines with their results, in input order.

        after: number of the previous line. most: total bytes of the results; a larger first line is returned alone.
        """
        final = [state.value for state in (LineState.ENDED, LineState.CANCELLED, LineState.EXPIRED)]
        chosen = (LINES.c.batch == batch, LINES.c.number > after, LINES.c.state.in_(final))
        length = sa.func.coalesce(sa.func.length(LINES.c.result), 0)
        sizes = sa.select(LINES.c.number, length).where(*chosen).order_by(LINES.c.number).limit(limit)
        with self._database.read() as connection:
            last = _last_within([(int(number), int(size)) for number, size in connection.execute(sizes)], most)
            query = sa.select(LINES).where(*chosen, LINES.c.number <= last).order_by(LINES.c.number)
            return [_line(row) for row in connection.execute(query)]

    def has_results(self, batch: str, *, completed: bool) -> bool:
        """Whether there are stored final lines with a status below 400 (completed) or other final lines."""
        query = sa.select(LINES.c.number).where(LINES.c.batch == batch, _is_final(completed))
        with self._database.read() as connection:
            return connection.execute(query.limit(1)).one_or_none() is not None

    def forget(self, batch: str, *, completed: bool) -> int:
        """Delete at most `CHUNK` final lines with their results, selected as in `has_results`. Returns how many."""
        query = sa.select(LINES.c.number).where(LINES.c.batch == batch, _is_final(completed)).limit(CHUNK)
        with self._database.write() as connection:
            numbers = list(connection.execute(query).scalars())
            connection.execute(sa.delete(LINES).where(LINES.c.batch == batch, LINES.c.number.in_(numbers)))
        return len(numbers)

    def failures(self, batch: str) -> dict[str, int]:
        """Return the number of failed lines by error code, including those without a status."""
        failed = LINES.c.status.is_(None) | (LINES.c.status >= 400)
        query = (
            sa.select(LINES.c.code, sa.func.count())
            .where(LINES.c.batch == batch, LINES.c.state == LineState.ENDED.value, failed)
            .group_by(LINES.c.code)
        )
        with self._database.read() as connection:
            return {code: int(number) for code, number in connection.execute(query)}


def _last_within(sizes: Iterable[tuple[int, int]], most: int) -> int:
    """Return the last line whose cumulative bytes stay within `most`, else the first line. -1 if there are none."""
    last, total = -1, 0
    for number, size in sizes:
        total += size
        if total > most and last >= 0:
            break
        last = number
    return last


def _is_final(completed: bool) -> sa.ColumnElement[bool]:
    answered = (LINES.c.state == LineState.ENDED.value) & LINES.c.status.is_not(None) & (LINES.c.status < 400)
    if completed:
        return answered
    final = (LineState.ENDED, LineState.CANCELLED, LineState.EXPIRED)
    return LINES.c.state.in_([state.value for state in final]) & ~sa.func.coalesce(answered, sa.false())


_CHANGE = sa.update(LINES).where(
    LINES.c.batch == sa.bindparam("its_batch"),
    LINES.c.number == sa.bindparam("its_number"),
    LINES.c.epoch == sa.bindparam("its_epoch"),
    LINES.c.state == LineState.RUNNING.value,
)


def change_line(
    connection: sa.Connection, epoch: int, line: Line, change: LineChange, now: float, uid: str | None
) -> bool:
    """End an attempt at a line, and update its batch's counts. The epoch must be open in this transaction.

    Returns False without changing anything if the line is not running under the epoch any more.
    """
    end, is_final = change.end, change.state is LineState.ENDED
    values: dict[str, Any] = {
        "state": change.state.value,
        "epoch": None,
        "attempts": change.attempts,
        "deaths": change.deaths,
        "ready": change.ready,
        "code": end.code,
        "request": end.request,
    }
    if is_final:
        values |= {"uid": uid, "status": end.status, "served": end.served, "adapter": end.adapter, "result": end.body}
    its = {"its_batch": line.batch, "its_number": line.number, "its_epoch": epoch}
    if not connection.execute(_CHANGE, {**values, **its}).rowcount:
        return False
    if is_final:
        sums = _count_end(connection, line.batch, end)
        if end.body and sums.output_bytes > MAX_OUTPUT:
            sums = _leave_out(connection, line, end)
        if not sums.left:
            close(connection, line.batch, now)
    return True


def _leave_out(connection: sa.Connection, line: Line, end: LineEnd) -> BatchSums:
    """Remove an answer that exceeds its batch's space, and count the line as failed."""
    _count_end(connection, line.batch, end, -1)
    failed = replace(end, status=None, code="output_too_large", body=b"")
    query = sa.update(LINES).where(LINES.c.batch == line.batch, LINES.c.number == line.number)
    connection.execute(query.values(status=None, code=failed.code, result=b""))
    return _count_end(connection, line.batch, failed)


def _is_ready(now: float) -> sa.ColumnElement[bool]:
    """Whether a line's pause is over. A pause beyond `LONGEST_PAUSE` means that the clock was set back."""
    return sa.or_(LINES.c.ready <= now, LINES.c.ready > now + LONGEST_PAUSE)


def _count_end(connection: sa.Connection, batch: str, end: LineEnd, by: int = 1) -> BatchSums:
    is_answered = end.status is not None and end.status < 400
    usage = end.usage if is_answered else None
    return count(connection, batch, {"completed" if is_answered else "failed": 1}, usage, len(end.body), by)


def _line(row: sa.Row[Any]) -> Line:
    values = row._asdict()
    return Line(**{**values, "state": LineState(values["state"])})
