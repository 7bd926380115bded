"""Models in the state: pins, aliases created at run time, and measured costs."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import sqlalchemy as sa

from registry import learning
from registry.errors import NotFound
from registry.records import LoadKey, LoadMeasurement, SleepMeasurement
from registry.state.access import TableAccess
from registry.state.tables import LOADS, MODEL_ALIASES, MODEL_PINS, SLEEPS
from registry.storage.database import put

NEWEST = 0.3
"""Weight of the newest load in the running mean: a change of disk is learnt within about three loads."""


class ModelTable:
    """Operators' choices and measurements that outlive a restart.

    All calls but `pins` and `aliases` block on the database; run them in a thread.
    """

    def __init__(self, own: TableAccess, clock: Callable[[], float], shared: TableAccess) -> None:
        """own: tables of pins and measurements. shared: table of aliases, which other servers may share."""
        self._own, self._shared, self._clock = own, shared, clock
        self._pins: dict[str, bool] | None = None
        self._aliases: dict[str, str] | None = None

    def pins(self) -> dict[str, bool]:
        """Map model ids to whether they are pinned. For models that are not listed, the recipe decides.

        Only the first call uses the database.
        """
        if self._pins is None or not self._own.alone:
            with self._own.read() as db:
                self._pins = _pins(db)
        return dict(self._pins)

    def set_pin(self, model: str, pinned: bool | None) -> None:
        """Pin or unpin a model. None: follow the recipe again."""
        with self._own.change(self._reload_pins) as db:
            if pinned is None:
                db.execute(sa.delete(MODEL_PINS).where(MODEL_PINS.c.model == model))
            else:
                put(db, MODEL_PINS, {"model": model, "pinned": int(pinned)})

    def aliases(self) -> dict[str, str]:
        """Map aliases created at run time to model ids. See `Catalog.check_alias`.

        Only the first call uses the database.
        """
        if self._aliases is None or not self._shared.alone:
            with self._shared.read() as db:
                self._aliases = _aliases(db)
        return dict(self._aliases)

    @property
    def shares_aliases(self) -> bool:
        """Whether other servers share the aliases."""
        return self._shared is not self._own

    def set_alias(self, alias: str, model: str) -> None:
        """Point `alias` to `model`, whatever it pointed to before."""
        with self._shared.change(self.reload) as db:
            self._shared.check_free(db, alias, "a model's alias")
            put(db, MODEL_ALIASES, {"alias": alias, "model": model})

    def remove_alias(self, alias: str) -> None:
        """Remove an alias; recipes' aliases are not stored here. Raises NotFound (alias_not_found)."""
        with self._shared.change(self.reload) as db:
            if not db.execute(sa.delete(MODEL_ALIASES).where(MODEL_ALIASES.c.alias == alias)).rowcount:
                raise NotFound(
                    f"There is no model alias '{alias}' that was created at run time.", code="alias_not_found"
                )

    def reload(self, db: sa.Connection) -> Callable[[], None]:
        """Read the aliases; see `registry.state.access.Load`."""
        return partial(setattr, self, "_aliases", _aliases(db))

    def _reload_pins(self, db: sa.Connection) -> Callable[[], None]:
        return partial(setattr, self, "_pins", _pins(db))

    def record_load(
        self, key: LoadKey, resident_bytes: int, seconds: Mapping[str, float], host_bytes: int | None = None
    ) -> LoadMeasurement:
        """Add a finished load. seconds: by phase. host_bytes: None keeps the old value."""
        with self._own.database.write() as db:
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
        """Record peak bytes beyond those after the load. Does nothing if no load was recorded."""
        with self._own.database.write() as db:
            now = self._clock()
            db.execute(sa.update(LOADS).where(*_of(LOADS, key)).values(margin=margin_bytes, margin_seen=now))

    def measured(self, key: LoadKey) -> LoadMeasurement | None:
        """Return the measured cost of such loads, or None before the first."""
        with self._own.database.read() as db:
            return self._measured(db, key)

    def _measured(self, db: sa.Connection, key: LoadKey) -> LoadMeasurement | None:
        row = db.execute(sa.select(LOADS).where(*_of(LOADS, key))).mappings().one_or_none()
        if row is None:
            return None
        margin = learning.decayed_margin(row["margin"], self._clock() - row["margin_seen"])
        seconds = json.loads(row["seconds"])
        return LoadMeasurement(row["resident"], margin, seconds, row["count"], row["host"])

    def forget(self, model: str) -> None:
        """Delete a model's measurements, so that the next plans use estimates."""
        with self._own.database.write() as db:
            for table in (LOADS, SLEEPS):
                db.execute(sa.delete(table).where(table.c.model == model))

    def record_sleep(
        self, key: LoadKey, device_bytes: int, host_bytes: int, seconds: float, *, first: bool = False
    ) -> None:
        """Add a finished sleep. first: the first one of its process."""
        with self._own.database.write() as db:
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
        """Add the wake-up after a recorded sleep."""
        with self._own.database.write() as db:
            old = self._slept(db, key)
            if old is not None:
                mean = json.dumps(_mean(old.seconds, {"wake": seconds}))
                db.execute(sa.update(SLEEPS).where(*_of(SLEEPS, key)).values(seconds=mean, updated=self._clock()))

    def slept(self, key: LoadKey) -> SleepMeasurement | None:
        """Return the measured cost of such sleeps, or None before the first."""
        with self._own.database.read() as db:
            return self._slept(db, key)

    def _slept(self, db: sa.Connection, key: LoadKey) -> SleepMeasurement | None:
        row = db.execute(sa.select(SLEEPS).where(*_of(SLEEPS, key))).mappings().one_or_none()
        if row is None:
            return None
        return SleepMeasurement(row["bytes"], row["host"], json.loads(row["seconds"]), row["count"])


def _pins(db: sa.Connection) -> dict[str, bool]:
    rows = db.execute(sa.select(MODEL_PINS).order_by(MODEL_PINS.c.model))
    return {row.model: bool(row.pinned) for row in rows}


def _aliases(db: sa.Connection) -> dict[str, str]:
    rows = db.execute(sa.select(MODEL_ALIASES).order_by(MODEL_ALIASES.c.alias))
    return {row.alias: row.model for row in rows}


def _of(table: sa.Table, key: LoadKey) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == value for name, value in key._asdict().items()]


def _mean(old: Mapping[Any, float], new: Mapping[str, float]) -> dict[str, float]:
    """Update the running mean of each phase that has a new measurement."""
    mean = dict(old)
    for phase, value in new.items():
        mean[phase] = NEWEST * value + (1 - NEWEST) * mean[phase] if phase in mean else value
    return mean
