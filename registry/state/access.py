"""Access to tables whose content a server keeps in memory."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import sqlalchemy as sa

from registry.errors import Conflict
from registry.state.tables import ADAPTERS, MODEL_ALIASES, ROUTERS
from registry.storage.database import Database

if TYPE_CHECKING:  # a server without a fleet shares no names
    from registry.state.shared.revision import Revision

Load = Callable[[sa.Connection], Callable[[], None]]
"""Reads everything again. The function that it returns replaces the content in memory."""

Use = Literal["an adapter's name", "a router's name", "a model's alias", "a model's id"]
_USES: Mapping[Use, sa.Column[str]] = {
    "an adapter's name": ADAPTERS.heads.c.name, "a router's name": ROUTERS.heads.c.name,
    "a model's alias": MODEL_ALIASES.c.alias,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableAccess:
    database: Database
    alone: bool = True
    """Whether no other process writes, or its changes arrive through `registry.state.shared.watch`."""
    revision: "Revision | None" = None
    """Incremented by each change, if servers share the tables."""
    writing: threading.Lock = field(default_factory=threading.Lock)
    """Held by a change until it is in memory. All tables with the same revision share one lock."""
    table: str = ""
    """The table's name in notifications to other servers, which reread it after a change."""

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        with self.writing, self.database.read() as db:
            yield db

    @contextmanager
    def change(self, load: Load) -> Iterator[sa.Connection]:
        """Open a transaction whose commit survives a loss of power."""
        with self.writing:
            with self.database.write() as db:
                yield db
                number = 0 if self.revision is None else self.revision.advance(db, self.table)
                replace = load(db)
            replace()
            if self.revision is not None:
                self.revision.committed(number)
        self.database.sync()

    def check_free(self, db: sa.Connection, name: str, use: Use) -> None:
        """Check a new name as part of a change. Raises Conflict (name_in_use).

        A server checks names in memory first. If servers share them, another one may have used this name since.
        """
        if self.revision is None:
            return
        from registry.state.shared.tables import RECIPES

        uses: Mapping[Use, sa.Column[str]] = {**_USES, "a model's id": RECIPES.c.model}
        for other, column in uses.items():
            if other != use and db.execute(sa.select(column).where(column == name).limit(1)).first() is not None:
                raise Conflict(f"'{name}' is {other} already. Choose another name.", code="name_in_use")
