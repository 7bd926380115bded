"""The table of batches. A team sees only its own."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, NamedTuple

import sqlalchemy as sa

from batches.callbacks.outbox import announce
from batches.callbacks.webhooks import ensure_signer
from batches.records import UNFINISHED, BatchFault, BatchRecord, BatchState, Forecast, LineCounts, LineUsage
from batches.storage.queries import find, find_all, page, take_turns
from batches.storage.tables import BATCHES, FILES, LINES, OUTBOX
from registry.storage.database import Database
from tenants.ledger.pruning import delete_in_portions

FAULTS = 100
"""Most faults of a batch that are stored. The others are only counted."""
PORTION = 500
"""Batches that one transaction deletes."""
_COUNTS = tuple(field.name for field in fields(LineCounts))
_USAGE = {"input": "input_tokens", "cached": "cached_tokens", "output": "output_tokens",
          "reasoning": "reasoning_tokens"}  # fmt: skip
_FORECASTS = ("forecast", "first_forecast", "tenth_forecast")
_COUNTED = (*_COUNTS, *_USAGE.values(), "output_bytes")
_NOTHING = dict.fromkeys(_COUNTED, 0)
_LEFT = BATCHES.c.total - BATCHES.c.completed - BATCHES.c.failed - BATCHES.c.cancelled - BATCHES.c.expired


class BatchTable:
    """Every call is one blocking transaction, `prune` several. Raises Unavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, batch: BatchRecord, repeated_since: float | None = None) -> BatchRecord | None:
        """Store a new batch in state `validating`. Returns None if its input file is deleted or another team's.

        repeated_since: return the batch that the team created since then with the same Idempotency-Key, if any.
            The caller compares the hashes of the bodies.
        """
        with self._database.write() as connection:
            if batch.idempotency and repeated_since is not None:
                take_turns(connection, batch.team, batch.idempotency)
                same = _repeat(batch.team, batch.surface, batch.idempotency, repeated_since)
                if (row := connection.execute(same).one_or_none()) is not None:
                    return _batch(row)
            mine = sa.select(FILES.c.id).where(
                FILES.c.id == batch.input_file, FILES.c.team == batch.team, FILES.c.deleted.is_(None)
            )
            if connection.execute(mine.with_for_update()).one_or_none() is None:
                return None
            if batch.callback:
                ensure_signer(connection, batch.team, batch.created)
            connection.execute(sa.insert(BATCHES).values(**_values(batch)))
        return batch

    def find_repeat(self, team: str, surface: str, idempotency: str, since: float) -> BatchRecord | None:
        """Return the batch that the team created since then with the same Idempotency-Key."""
        return find(self._database, _repeat(team, surface, idempotency, since), _batch)

    def get(self, id_: str, team: str | None = None) -> BatchRecord | None:
        """Return the batch, or None if it is unknown, deleted or another team's. team: None for any."""
        query = sa.select(BATCHES).where(BATCHES.c.id == id_, BATCHES.c.deleted.is_(None))
        if team is not None:
            query = query.where(BATCHES.c.team == team)
        return find(self._database, query, _batch)

    def list(
        self, team: str, surface: str, *, after: str | None = None, limit: int = 20, newest: bool = True
    ) -> Sequence[BatchRecord] | None:
        """Return batches, newest first, or None if `after` is unknown. after: last id of the previous page."""
        where = [BATCHES.c.team == team, BATCHES.c.surface == surface, BATCHES.c.deleted.is_(None)]
        return page(self._database, BATCHES, _batch, where, team, after, limit, newest=newest)

    def unfinished(self, team: str | None = None) -> Sequence[BatchRecord]:
        """Return unfinished batches, oldest first: of each team at most `creation.UNFINISHED`. team: None for all."""
        query = sa.select(BATCHES).where(BATCHES.c.state.in_([state.value for state in UNFINISHED]))
        if team is not None:
            query = query.where(BATCHES.c.team == team)
        return find_all(self._database, query.order_by(BATCHES.c.created, BATCHES.c.id), _batch)

    def queued(self, team: str) -> Mapping[str, int]:
        """Return the estimated input tokens of a team's unfinished lines, by model name."""
        tokens = Counter[str]()
        for batch in self.unfinished(team):
            for name, count in batch.queued.items():
                tokens[name] += count * batch.counts.left // max(1, batch.counts.total)
        return tokens

    def recent(self, team: str | None, limit: int) -> Sequence[BatchRecord]:
        """Return the newest batches of all APIs. team: None for all."""
        query = sa.select(BATCHES).where(BATCHES.c.deleted.is_(None))
        if team is not None:
            query = query.where(BATCHES.c.team == team)
        query = query.order_by(BATCHES.c.created.desc(), BATCHES.c.id.desc()).limit(limit)
        return find_all(self._database, query, _batch)

    def start(
        self,
        id_: str,
        now: float,
        names: Mapping[str, str] | None = None,
        validator: str | None = None,
        queued: Mapping[str, int] | None = None,
    ) -> bool:
        """validating → in_progress, once all lines are stored. queued: estimated input tokens by model name.

        Returns False if the batch is no longer `validating` or if another server is validating it.
        """
        values: dict[str, Any] = {"state": BatchState.IN_PROGRESS.value, "started": now}
        if names is not None:
            values["names"] = dict(names)
        if queued is not None:
            values["queued"] = dict(queued)
        query = sa.update(BATCHES).where(is_validated(id_, validator))
        with self._database.write() as connection:
            return connection.execute(query.values(**values)).rowcount > 0

    def fail(
        self,
        id_: str,
        now: float,
        faults: Sequence[BatchFault],
        fault_count: int | None = None,
        validator: str | None = None,
    ) -> bool:
        """validating → failed, without its lines. fault_count: the total, if `faults` contains only the first ones.

        Returns False in the same cases as `start`.
        """
        query = sa.update(BATCHES).where(is_validated(id_, validator))
        values = {
            "state": BatchState.FAILED.value,
            "ended": now,
            "faults": [asdict(fault) for fault in faults[:FAULTS]],
            "fault_count": len(faults) if fault_count is None else fault_count,
            "total": 0,
        }
        with self._database.write() as connection:
            has_failed = _end(connection, query.values(**values), now)
            if has_failed:
                remove(connection, id_)
        return has_failed

    def cancel(self, id_: str, now: float, reason: BatchFault | None = None) -> bool:
        """validating, in_progress → cancelling, or cancelled if no line is left. Returns False if it is final already.

        `LineTable.drop` cancels waiting lines. A batch that is already being cancelled is not changed.
        """
        query = sa.update(BATCHES).where(
            BATCHES.c.id == id_, BATCHES.c.state.in_((BatchState.VALIDATING.value, BatchState.IN_PROGRESS.value))
        )
        values: dict[str, Any] = {"state": BatchState.CANCELLING.value, "cancelling": now}
        if reason is not None:
            values |= {"faults": [asdict(reason)], "fault_count": 1}
        with self._database.write() as connection:
            changed = connection.execute(query.values(**values)).rowcount > 0
            if changed:
                close(connection, id_, now)
                return True
            state = sa.select(BATCHES.c.state).where(BATCHES.c.id == id_)
            return connection.execute(state).scalar_one_or_none() == BatchState.CANCELLING.value

    def wait(self, ids: Sequence[str], reason: str, until: float | None = None) -> None:
        """Store why no line of these batches runs. '' if lines run."""
        with self._database.write() as connection:
            changes = sa.or_(BATCHES.c.waits != reason, BATCHES.c.waits_until.is_distinct_from(until))
            query = sa.update(BATCHES).where(BATCHES.c.id.in_(ids), changes)
            connection.execute(query.values(waits=reason, waits_until=until))

    def store_forecasts(self, forecasts: Mapping[str, Forecast], tenths: Collection[str] = ()) -> None:
        """Store the latest forecast of each batch that is not final.

        tenths: batches with a tenth of their lines done. Their first such forecast is kept, like the very first one.
        """
        with self._database.write() as connection:
            for id_, forecast in forecasts.items():
                value = sa.literal(asdict(forecast), BATCHES.c.forecast.type)
                first = {"first_forecast": sa.func.coalesce(BATCHES.c.first_forecast, value)}
                if id_ in tenths:
                    first["tenth_forecast"] = sa.func.coalesce(BATCHES.c.tenth_forecast, value)
                query = sa.update(BATCHES).where(BATCHES.c.id == id_, BATCHES.c.ended.is_(None))
                connection.execute(query.values(forecast=value, **first))

    def judge(self, ids: Collection[str]) -> Sequence[BatchRecord]:
        """Return those of the batches that are completed and that no server has judged before. Marks them as judged."""
        query = sa.update(BATCHES).where(
            BATCHES.c.id.in_(ids), BATCHES.c.state == BatchState.COMPLETED.value, BATCHES.c.judged.is_(False)
        )
        with self._database.write() as connection:
            return [_batch(row) for row in connection.execute(query.values(judged=True).returning(BATCHES))]

    def with_old_results(self, now: float, seconds: int) -> Sequence[str]:
        """Return the ids of at most 100 batches whose lines are past their storage time.

        seconds: storage time after the end of a batch, unless its creation set another.
        """
        stored = sa.exists().where(LINES.c.batch == BATCHES.c.id)
        expires = BATCHES.c.ended + sa.func.coalesce(BATCHES.c.output_seconds, seconds)
        query = sa.select(BATCHES.c.id).where(expires < now, stored).limit(100)
        with self._database.read() as connection:
            return list(connection.execute(query).scalars())

    def delete(self, id_: str, team: str, now: float) -> bool:
        """Hide a final batch from its team. Returns False if there is none. `LineTable.forget` removes its results."""
        final = [state.value for state in BatchState if state.is_final]
        query = sa.update(BATCHES).where(
            BATCHES.c.id == id_, BATCHES.c.team == team, BATCHES.c.deleted.is_(None), BATCHES.c.state.in_(final)
        )
        with self._database.write() as connection:
            return connection.execute(query.values(deleted=now)).rowcount > 0

    def prune(self, before: float) -> int:
        """Delete batches that ended before a moment and have neither lines nor callbacks. Returns how many."""
        lines = sa.exists().where(LINES.c.batch == BATCHES.c.id)
        callbacks = sa.exists().where(OUTBOX.c.batch == BATCHES.c.id)
        old = sa.select(BATCHES.c.id).where(BATCHES.c.ended < before, ~lines, ~callbacks).limit(PORTION)
        return delete_in_portions(self._database, sa.delete(BATCHES).where(BATCHES.c.id.in_(old.scalar_subquery())))


def _repeat(team: str, surface: str, idempotency: str, since: float) -> "sa.Select[Any]":
    same = sa.select(BATCHES).where(
        BATCHES.c.team == team,
        BATCHES.c.idempotency == idempotency,
        BATCHES.c.surface == surface,
        BATCHES.c.created >= since,
    )
    return same.order_by(BATCHES.c.created).limit(1)


_COUNT = (
    sa.update(BATCHES)
    .where(BATCHES.c.id == sa.bindparam("its_id"))
    .values({name: BATCHES.c[name] + sa.bindparam(f"more_{name}") for name in _COUNTED})
    .returning(BATCHES.c.output_bytes, _LEFT.label("left"))
)


class BatchSums(NamedTuple):
    """Sums of a batch after lines were counted: bytes of answers, and unfinished lines."""

    output_bytes: int
    left: int


def count(
    connection: sa.Connection,
    id_: str,
    counts: Mapping[str, int],
    usage: LineUsage | None = None,
    size: int = 0,
    by: int = 1,
) -> BatchSums:
    """Add to a batch's counts, in the transaction that changes its lines. by: -1 to subtract."""
    more = {**_NOTHING, **counts, "output_bytes": size}
    if usage is not None:
        more |= {name: getattr(usage, field) for field, name in _USAGE.items()}
    row = connection.execute(_COUNT, {"its_id": id_, **{f"more_{name}": by * number for name, number in more.items()}})
    return BatchSums(*row.one())


def close(connection: sa.Connection, id_: str, now: float) -> bool:
    """Make a batch final if its last line has ended. Returns whether it did."""
    query = sa.update(BATCHES).where(
        BATCHES.c.id == id_,
        BATCHES.c.state.in_((BatchState.IN_PROGRESS.value, BatchState.CANCELLING.value)),
        _LEFT == 0,
    )
    state = sa.case(
        (BATCHES.c.state == BatchState.CANCELLING.value, BatchState.CANCELLED.value),
        (BATCHES.c.expired > 0, BatchState.EXPIRED.value),
        else_=BatchState.COMPLETED.value,
    )
    return _end(connection, query.values(state=state, ended=now, waits="", waits_until=None), now)


def _end(connection: sa.Connection, query: sa.Update, now: float) -> bool:
    """Run an update that ends a batch, and queue its callbacks. Returns False if it changed nothing."""
    columns = BATCHES.c.id, BATCHES.c.team, BATCHES.c.surface, BATCHES.c.state, BATCHES.c.callback
    row = connection.execute(query.returning(*columns)).one_or_none()
    if row is None:
        return False
    announce(connection, row.id, row.team, row.surface, BatchState(row.state), row.callback, now)
    return True


def is_validated(id_: str, validator: str | None) -> sa.ColumnElement[bool]:
    """Whether a batch is `validating` by this server. validator: None for any."""
    by = sa.true() if validator is None else BATCHES.c.validator == validator
    return sa.and_(BATCHES.c.id == id_, BATCHES.c.state == BatchState.VALIDATING.value, by)


def remove(connection: sa.Connection, id_: str) -> int:
    """Delete the lines of a batch, including their results. Returns how many."""
    return connection.execute(sa.delete(LINES).where(LINES.c.batch == id_)).rowcount


def _values(batch: BatchRecord) -> dict[str, Any]:
    values = asdict(batch)
    counts, usage = values.pop("counts"), values.pop("usage")
    stored = {name: usage[field] for field, name in _USAGE.items()}
    return {**values, **counts, **stored, "state": batch.state.value}


def _batch(row: sa.Row[Any]) -> BatchRecord:
    values = row._asdict()
    del values["judged"]
    stored = {name: values.pop(name) for name in _FORECASTS}
    forecasts: dict[str, Any] = {name: Forecast(**value) for name, value in stored.items() if value}
    counts = LineCounts(*(values.pop(name) for name in _COUNTS))
    usage = LineUsage(**{field: values.pop(name) for field, name in _USAGE.items()})
    faults = tuple(BatchFault(**fault) for fault in values.pop("faults"))
    state = BatchState(values.pop("state"))
    return BatchRecord(**values, **forecasts, counts=counts, usage=usage, faults=faults, state=state)
