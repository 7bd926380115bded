"""Models in the state: pins and aliases made at run time, and what loads have cost."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from registry import learning
from registry.errors import NotFound
from registry.records import LoadKey, Measured, MeasuredSleep
from registry.state.schema import StateDatabase

NEWEST = 0.3
"""Weight of the newest load in the running mean of its seconds: three loads later a change of disk has been learnt."""
OF_KEY = "WHERE model = ? AND recipe_version = ? AND engine_version = ? AND device = ?"


class ModelTable:
    """Choices of operators that outlive a restart, and measured figures that replace estimates."""

    def __init__(self, database: StateDatabase, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def pins(self) -> dict[str, bool]:
        """Model id to True (pinned) or False (not, whatever its recipe says). Not listed: as the recipe says."""
        with self._database.read() as db:
            return {row[0]: bool(row[1]) for row in db.execute("SELECT model, pinned FROM model_pins ORDER BY model")}

    def set_pin(self, model: str, pinned: bool | None) -> None:
        """None: as the recipe says, again."""
        with self._database.write() as db:
            db.execute("DELETE FROM model_pins WHERE model = ?", (model,))
            if pinned is not None:
                db.execute("INSERT INTO model_pins VALUES (?, ?)", (model, pinned))

    def aliases(self) -> dict[str, str]:
        """Alias to model id, as made at run time. `Catalog.check_alias` tells whether a new one may be made."""
        with self._database.read() as db:
            return dict(db.execute("SELECT alias, model FROM model_aliases ORDER BY alias").fetchall())

    def set_alias(self, alias: str, model: str) -> None:
        """Point `alias` to `model`, whatever it pointed to before."""
        with self._database.write() as db:
            db.execute("REPLACE INTO model_aliases VALUES (?, ?)", (alias, model))

    def remove_alias(self, alias: str) -> None:
        """NotFound (code alias_not_found) when there is none; aliases of recipes are not kept here."""
        with self._database.write() as db:
            if not db.execute("DELETE FROM model_aliases WHERE alias = ?", (alias,)).rowcount:
                raise NotFound(f"There is no model alias '{alias}' that was made at run time.", code="alias_not_found")

    def record_load(
        self, key: LoadKey, resident_bytes: int, seconds: Mapping[str, float], host_bytes: int | None = None
    ) -> Measured:
        """Add one finished load. `seconds` per phase, as the engine reported them. No `host_bytes`: as before."""
        with self._database.write() as db:
            old = self.measured(key)
            row = {
                "resident": learning.after_load(old.resident_bytes if old else 0, resident_bytes),
                "seconds": json.dumps(_mean(old.seconds if old else {}, seconds)),
                "count": old.count + 1 if old else 1,
                "updated": self._clock(),
                "host": old.host_bytes if old and host_bytes is None else host_bytes,
            }
            columns = [*LoadKey._fields, *row]
            changed = ", ".join(f"{name} = excluded.{name}" for name in row)
            db.execute(
                f"INSERT INTO loads ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) "
                f"ON CONFLICT DO UPDATE SET {changed}",
                (*key, *row.values()),
            )
            new = self.measured(key)
            assert new is not None
            return new

    def record_margin(self, key: LoadKey, margin_bytes: int) -> None:
        """So much beyond what it held after its load was seen now. Without a load there is nothing to add it to."""
        with self._database.write() as db:
            db.execute(f"UPDATE loads SET margin = ?, margin_seen = ? {OF_KEY}", (margin_bytes, self._clock(), *key))

    def measured(self, key: LoadKey) -> Measured | None:
        """What such loads have cost; None before the first."""
        with self._database.read() as db:
            row = db.execute(f"SELECT * FROM loads {OF_KEY}", key).fetchone()
        if row is None:
            return None
        margin = learning.faded(row["margin"], self._clock() - row["margin_seen"])
        seconds = json.loads(row["seconds"])
        return Measured(row["resident"], margin, seconds, row["count"], row["updated"], row["host"])

    def forget(self, model: str) -> None:
        """All figures of its loads and sleeps: the next plans are made with estimates."""
        with self._database.write() as db:
            for table in ("loads", "sleeps"):
                db.execute(f"DELETE FROM {table} WHERE model = ?", (model,))

    def record_sleep(self, key: LoadKey, device_bytes: int, host_bytes: int, seconds: float) -> None:
        """Add one finished sleep: what it held then, and how long it took to fall asleep."""
        with self._database.write() as db:
            old = self.slept(key)
            mean = _mean(old.seconds if old else {}, {"sleep": seconds})
            db.execute(
                "REPLACE INTO sleeps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*key, device_bytes, host_bytes, json.dumps(mean), old.count + 1 if old else 1, self._clock()),
            )

    def record_wake(self, key: LoadKey, seconds: float) -> None:
        """Add the wake that ended a recorded sleep."""
        with self._database.write() as db:
            old = self.slept(key)
            if old is not None:
                mean = _mean(old.seconds, {"wake": seconds})
                db.execute(
                    f"UPDATE sleeps SET seconds = ?, updated = ? {OF_KEY}", (json.dumps(mean), self._clock(), *key)
                )

    def slept(self, key: LoadKey) -> MeasuredSleep | None:
        """What such sleeps have cost; None before the first."""
        with self._database.read() as db:
            row = db.execute(f"SELECT * FROM sleeps {OF_KEY}", key).fetchone()
        if row is None:
            return None
        return MeasuredSleep(row["bytes"], row["host"], json.loads(row["seconds"]), row["count"], row["updated"])


def _mean(old: Mapping[Any, float], new: Mapping[str, float]) -> dict[str, float]:
    """The running mean of each phase, with one more measurement of some of them."""
    mean = dict(old)
    for phase, took in new.items():
        mean[phase] = NEWEST * took + (1 - NEWEST) * mean[phase] if phase in mean else took
    return mean
