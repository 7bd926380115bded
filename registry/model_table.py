"""Models in the state: pins and aliases made at run time, and what loads have cost."""

import json
import time
from collections.abc import Callable, Mapping

from registry.errors import NotFound
from registry.records import LoadKey, Measured
from registry.schema import Database

NEWEST = 0.3
"""Weight of the newest load in the running mean of its seconds: three loads later a change of disk has been learnt."""


class ModelTable:
    """Choices of operators that outlive a restart, and measured figures that replace estimates."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
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

    def record_load(self, key: LoadKey, resident_bytes: int, seconds: Mapping[str, float]) -> Measured:
        """Add one finished load. `seconds` per phase, as the engine reported them."""
        with self._database.write() as db:
            old = self.measured(key)
            mean = dict(old.seconds) if old else {}
            for phase, took in seconds.items():
                mean[phase] = NEWEST * took + (1 - NEWEST) * mean[phase] if phase in mean else took
            new = Measured(
                resident_bytes=resident_bytes,
                peak_bytes=max(resident_bytes, old.peak_bytes if old else 0),
                seconds=mean,
                count=old.count + 1 if old else 1,
                updated=self._clock(),
            )
            db.execute(
                "REPLACE INTO loads VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*key, new.resident_bytes, new.peak_bytes, json.dumps(mean), new.count, new.updated),
            )
            return new

    def measured(self, key: LoadKey) -> Measured | None:
        """What such loads have cost; None before the first."""
        with self._database.read() as db:
            row = db.execute(
                "SELECT * FROM loads WHERE model = ? AND recipe_version = ? AND engine_version = ? AND device = ?", key
            ).fetchone()
        if row is None:
            return None
        return Measured(row["resident"], row["peak"], json.loads(row["seconds"]), row["count"], row["updated"])
