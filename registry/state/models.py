"""Models in the state: pins, aliases of run time, and costs of loads."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from registry import learning
from registry.errors import NotFound
from registry.records import LoadKey, LoadMeasurement, SleepMeasurement
from registry.state.tables import LOADS, MODEL_ALIASES, MODEL_PINS, SLEEPS
from registry.storage.database import Database, put

NEWEST = 0.3
"""Weight of the newest load in the running mean of its seconds: three loads later a change of disk has been learnt."""


class ModelTable:
    """Operators' choices and measured figures that outlive a restart.

    What waits for the database, and so is called in threads: everything but `pins` and `aliases`.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.time, *, alone: bool = True) -> None:
        """`alone` says that no other process writes."""
        self._database = database
        self._clock = clock
        self._alone, self._writing = alone, threading.Lock()
        self._cache: tuple[dict[str, bool], dict[str, str]] | None = None
        """Pins and aliases."""

    def pins(self) -> dict[str, bool]:
        """Model id to pinned or not; unlisted: as the recipe says.

        Only the first call asks the database.
        """
        return dict(self._read()[0])

    def set_pin(self, model: str, pinned: bool | None) -> None:
        """None: as the recipe says, again."""
        with self._write() as db:
            if pinned is None:
                db.execute(sa.delete(MODEL_PINS).where(MODEL_PINS.c.model == model))
            else:
                put(db, MODEL_PINS, {"model": model, "pinned": int(pinned)})

    def aliases(self) -> dict[str, str]:
        """Alias to model id, as made at run time. See `Catalog.check_alias`.

        As `pins`.
        """
        return dict(self._read()[1])

    def set_alias(self, alias: str, model: str) -> None:
        """Point `alias` to `model`, whatever it pointed to before."""
        with self._write() as db:
            put(db, MODEL_ALIASES, {"alias": alias, "model": model})

    def remove_alias(self, alias: str) -> None:
        """NotFound (alias_not_found): there is none. Recipes' aliases are not here."""
        with self._write() as db:
            if not db.execute(sa.delete(MODEL_ALIASES).where(MODEL_ALIASES.c.alias == alias)).rowcount:
                raise NotFound(f"There is no model alias '{alias}' that was made at run time.", code="alias_not_found")

    def _read(self) -> tuple[dict[str, bool], dict[str, str]]:
        if self._cache is None or not self._alone:
            with self._writing, self._database.read() as db:
                self._cache = _choices(db)
        return self._cache

    @contextmanager
    def _write(self) -> Iterator[sa.Connection]:
        """A transaction on pins and aliases that survives a loss of power."""
        with self._writing:
            with self._database.write() as db:
                yield db
                content = _choices(db)
            self._cache = content
        self._database.sync()

    def record_load(
        self, key: LoadKey, resident_bytes: int, seconds: Mapping[str, float], host_bytes: int | None = None
    ) -> LoadMeasurement:
        """Add a finished load. `seconds` by phase. No `host_bytes`: as before."""
        with self._database.write() as db:
            old = self._measured(db, key)
            row = {
                "resident": learning.after_load(old.resident_bytes if old else 0, resident_bytes),
                "seconds": json.dumps(_mean(old.seconds if old else {}, seconds)),
                "count": old.count + 1 if old else 1,
                "updated": self._clock(),
                "host": old.host_bytes if old and host_bytes is None else host_bytes,
            }
            put(db, LOADS, {**key._asdict(), **row})
            new = self._measured(db, key)
            assert new is not None
            return new

    def record_margin(self, key: LoadKey, margin_bytes: int) -> None:
        """Record bytes beyond those after the load. Does nothing without a load."""
        with self._database.write() as db:
            now = self._clock()
            db.execute(sa.update(LOADS).where(*_of(LOADS, key)).values(margin=margin_bytes, margin_seen=now))

    def measured(self, key: LoadKey) -> LoadMeasurement | None:
        """What such loads have cost; None before the first."""
        with self._database.read() as db:
            return self._measured(db, key)

    def _measured(self, db: sa.Connection, key: LoadKey) -> LoadMeasurement | None:
        row = db.execute(sa.select(LOADS).where(*_of(LOADS, key))).mappings().one_or_none()
        if row is None:
            return None
        margin = learning.decayed_margin(row["margin"], self._clock() - row["margin_seen"])
        seconds = json.loads(row["seconds"])
        return LoadMeasurement(row["resident"], margin, seconds, row["count"], row["updated"], row["host"])

    def forget(self, model: str) -> None:
        """All figures of its loads and sleeps: the next plans are made with estimates."""
        with self._database.write() as db:
            for table in (LOADS, SLEEPS):
                db.execute(sa.delete(table).where(table.c.model == model))

    def record_sleep(
        self, key: LoadKey, device_bytes: int, host_bytes: int, seconds: float, *, first: bool = False
    ) -> None:
        """Add a finished sleep: bytes and seconds; `first`: in its process."""
        with self._database.write() as db:
            old = self._slept(db, key)
            row = {
                "bytes": device_bytes,
                "host": host_bytes,
                "seconds": json.dumps(_mean(old.seconds if old else {}, {"first" if first else "sleep": seconds})),
                "count": old.count + 1 if old else 1,
                "updated": self._clock(),
            }
            put(db, SLEEPS, {**key._asdict(), **row})

    def record_wake(self, key: LoadKey, seconds: float) -> None:
        """Add the wake that ended a recorded sleep."""
        with self._database.write() as db:
            old = self._slept(db, key)
            if old is not None:
                mean = json.dumps(_mean(old.seconds, {"wake": seconds}))
                db.execute(sa.update(SLEEPS).where(*_of(SLEEPS, key)).values(seconds=mean, updated=self._clock()))

    def slept(self, key: LoadKey) -> SleepMeasurement | None:
        """What such sleeps have cost; None before the first."""
        with self._database.read() as db:
            return self._slept(db, key)

    def _slept(self, db: sa.Connection, key: LoadKey) -> SleepMeasurement | None:
        row = db.execute(sa.select(SLEEPS).where(*_of(SLEEPS, key))).mappings().one_or_none()
        if row is None:
            return None
        return SleepMeasurement(row["bytes"], row["host"], json.loads(row["seconds"]), row["count"], row["updated"])


def _choices(db: sa.Connection) -> tuple[dict[str, bool], dict[str, str]]:
    pins = db.execute(sa.select(MODEL_PINS).order_by(MODEL_PINS.c.model))
    aliases = db.execute(sa.select(MODEL_ALIASES).order_by(MODEL_ALIASES.c.alias))
    return {row.model: bool(row.pinned) for row in pins}, {row.alias: row.model for row in aliases}


def _of(table: sa.Table, key: LoadKey) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == value for name, value in key._asdict().items()]


def _mean(old: Mapping[Any, float], new: Mapping[str, float]) -> dict[str, float]:
    """The running mean of each phase, with one more measurement of some of them."""
    mean = dict(old)
    for phase, took in new.items():
        mean[phase] = NEWEST * took + (1 - NEWEST) * mean[phase] if phase in mean else took
    return mean
