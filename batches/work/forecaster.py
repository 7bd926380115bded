"""Maintains forecasts of batches: measures rates and lines, updates rows every minute, compares with the truth."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from cachetools import LRUCache

from batches.records import BatchRecord
from batches.store import BatchStore
from batches.work.forecast import BatchNeed, LineWork, RateMeter, RoomRate, RoomWork, forecast
from batches.work.policy import Level, Rooms, level_of, slack
from batches.work.running import LineAttempt
from tenants.caller import Caller

MODELS = 1024
log = logging.getLogger("roundhouse.batches")
RENEW_SECONDS = 60.0
EARLY_SECONDS = 2.0
"""The same while a batch has no forecast or has just started."""
OTHERS_SECONDS = 1.5 * RENEW_SECONDS
"""Seconds that another server's forecast stays, so that servers with different data do not compete."""
LATELY_SECONDS = 2 * RENEW_SECONDS
"""Rates that were measured longer ago are not stored again. Renewals are a little further apart than RENEW_SECONDS."""
CREATION, TENTH = "creation", "tenth"
Observe = Callable[[str, float], None]
"""Called with the moment of a forecast (`CREATION`, `TENTH`), and its predicted time divided by the actual one."""


class Forecaster:
    """clock: returns seconds since the epoch."""

    def __init__(self, store: BatchStore, rooms: Rooms, clock: Callable[[], float], observe: Observe) -> None:
        self._store, self._rooms, self._clock, self._observe = store, rooms, clock, observe
        self.lines = LineWork()
        self._meters = LRUCache[str, RateMeter](MODELS)
        """Meters by model. A name without a model has no rate."""
        self._needs: dict[str, BatchNeed] = {}
        self._rates: Mapping[str, RoomRate] = {}
        self._renew_at = 0.0
        self._levels: dict[str, Level] = {}
        self._made: dict[str, float] = {}
        """Time of this server's last forecast, by batch."""

    def level(self, batch: BatchRecord, now: float) -> Level:
        """Return the current level of a batch."""
        level = self._levels[batch.id] = level_of(slack(batch, now), self._levels.get(batch.id, Level.IDLE))
        return level

    # --- measurements -------------------------------------------------------------------------------------------------
    def answered(self, attempt: LineAttempt, room: str) -> None:
        """Record an ended line. Failed lines say nothing about the work."""
        end = attempt.end_record
        if attempt.used is None or end.status is None or end.status >= 400:
            return
        line, batch = attempt.line, attempt.batch
        seconds = time.monotonic() - attempt.started
        self.lines.learn(batch.id, batch.endpoint, attempt.model, line.length, attempt.used, seconds)
        self._meter(room).add(attempt.work, batch.id)

    def advance(self, full: Iterable[str]) -> None:
        """Advance the meters. full: models that run as many lines as they may, while others wait for them."""
        now, full = time.monotonic(), set(full)
        for room in full:
            self._meter(room)
        for room, meter in list(self._meters.items()):
            meter.advance(now, is_full=room in full)

    def _meter(self, room: str) -> RateMeter:
        meter = self._meters.get(room)
        if meter is None:
            meter = self._meters[room] = RateMeter()
        return meter

    # --- forecasts ----------------------------------------------------------------------------------------------------
    def is_due(self) -> bool:
        return time.monotonic() >= self._renew_at

    async def renew(self, batches: Sequence[tuple[BatchRecord, Caller]]) -> None:
        """Forecast all running batches. batches: each with the caller of its lines. Raises Unavailable, QueueFull."""
        now = self._clock()
        await self._exchange_rates(now)
        self._needs = {}
        self._levels = {batch.id: self._levels[batch.id] for batch, _ in batches if batch.id in self._levels}
        self._made = {batch.id: self._made[batch.id] for batch, _ in batches if batch.id in self._made}
        await self._store_of(batches, now)
        is_new = any(batch.first_forecast is None or batch.tenth_forecast is None for batch, _ in batches)
        self._renew_at = time.monotonic() + (EARLY_SECONDS if is_new else RENEW_SECONDS)

    async def add(self, batch: BatchRecord, caller: Caller) -> None:
        """Forecast a batch that starts, among the others as last seen. Raises Unavailable, QueueFull."""
        now = self._clock()
        await self._exchange_rates(now)
        await self._store_of([(batch, caller)], now)

    async def judge(self, ids: Sequence[str]) -> None:
        """Compare the forecasts of ended batches with the truth, and store the last rates.

        Raises Unavailable, QueueFull.
        """
        for id_ in ids:  # other batches no longer wait for these
            self._needs.pop(id_, None)
        for batch in await self._store.write(lambda tables: tables.batches.judge(ids)):
            for label, made in ((CREATION, batch.first_forecast), (TENTH, batch.tenth_forecast)):
                if made is not None and batch.ended is not None and batch.ended > made.made:
                    self._observe(label, (made.likely - made.made) / (batch.ended - made.made))
        await self._exchange_rates(self._clock())  # by the next forecast they may be old

    async def _exchange_rates(self, now: float) -> None:
        """Store the rates that were measured here lately, and read those of all servers."""
        since = time.monotonic() - LATELY_SECONDS
        running = [(room, meter) for room, meter in self._meters.items() if meter.ran > since]
        mine = {room: rate for room, meter in running if (rate := meter.rate()) is not None}
        if mine:
            await self._store.write(lambda tables: tables.rates.store(mine, now))
        self._rates = await self._store.read(lambda tables: tables.rates.all())

    async def _store_of(self, batches: Sequence[tuple[BatchRecord, Caller]], now: float) -> None:
        by_id, rates = {batch.id: (batch, caller) for batch, caller in batches}, dict(self._rates)
        rows = await self._store.read(lambda tables: tables.lines.unfinished(list(by_id))) if batches else []
        rooms: dict[str, dict[str, RoomWork]] = {id_: {} for id_ in by_id}
        for row in rows:
            batch, caller = by_id[row.batch]
            name = batch.names.get(row.model, row.model)
            room = self._rooms.room(name, caller)
            work, spread = self.lines.of(batch.id, batch.endpoint, name, row.count, row.size)
            tail = self.lines.tail(batch.id, batch.endpoint, name)
            before = rooms[batch.id].get(room.key, RoomWork(0.0, 0.0))
            rooms[batch.id][room.key] = RoomWork(
                before.work + work, max(before.spread, spread), room.load_seconds, max(before.tail, tail)
            )
            if room.rate:
                rates.setdefault(room.key, RoomRate(room.rate))
        for batch, caller in batches:
            level = self.level(batch, now)
            self._needs[batch.id] = BatchNeed(
                batch.id, batch.team, caller.weight, level, batch.priority, batch.deadline, rooms[batch.id]
            )
        forecasts = forecast(list(self._needs.values()), rates, now)
        mine = {
            id_: forecasts[id_] for id_, (batch, _) in by_id.items() if id_ in forecasts and self._may_store(batch, now)
        }
        if mine:
            tenths = {batch.id for batch, _ in batches if batch.counts.left <= 0.9 * batch.counts.total}
            await self._store.write(lambda tables: tables.batches.store_forecasts(mine, tenths))
            self._made |= {id_: one.made for id_, one in mine.items()}

    def _may_store(self, batch: BatchRecord, now: float) -> bool:
        """Whether no other server maintains this batch's forecast."""
        made = None if batch.forecast is None else batch.forecast.made
        return self._store.is_alone or made in (None, self._made.get(batch.id)) or now - (made or 0) > OTHERS_SECONDS
