"""A database whose writes hang until the test lets them go on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from registry.storage.database import Database
from tests.eventually import PATIENCE


class HangingWrites:
    """Holds each write of any database from `hang` on until `answers` is set. A write sets `requested`."""

    def __init__(self) -> None:
        self.requested, self.answers = threading.Event(), threading.Event()
        self._write = Database.write

    def hang(self, patch: pytest.MonkeyPatch) -> None:
        @contextmanager
        def hanging(database: Database) -> Iterator[sa.Connection]:
            self.requested.set()
            assert self.answers.wait(PATIENCE)
            with self._write(database) as connection:
                yield connection

        patch.setattr(Database, "write", hanging)
