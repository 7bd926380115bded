"""Watch for other servers' changes to shared names, with one connection and one thread.

| fault                        | effect                                                       |
|------------------------------|--------------------------------------------------------------|
| a notification is lost       | a check every LOOK_SECONDS finds the change                  |
| the database does not answer | names stay as they are; a new connection after RETRY_SECONDS |
| the database was reset       | the same, with a log message                                 |
"""

import logging
import threading
import time
from collections.abc import Callable

import sqlalchemy as sa

from registry.errors import RoundhouseError
from registry.state.database import State
from registry.state.shared.opening import SharedTables
from registry.storage.database import translate_errors

log = logging.getLogger("roundhouse.fleet")
LOOK_SECONDS = 0.5
STEP_SECONDS = 0.25
"""Seconds of one wait for a notification, and so the longest delay until the thread ends."""
RETRY_SECONDS = 0.5


class SharedWatch:
    """Keeps `state` up to date. on_change: called in the watch's thread once `state` has the new names."""

    def __init__(self, tables: SharedTables, state: State, on_change: Callable[[], None]) -> None:
        self._tables, self._state, self._on_change = tables, state, on_change
        self._closing, self._announced = threading.Event(), tables.revision.known
        self.is_listening = False
        self._thread = threading.Thread(target=self._run, name="shared-names", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and wait for it for a bounded time, since the database may hang."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(4 * STEP_SECONDS)

    def _run(self) -> None:
        is_failing = False
        while not self._closing.is_set():
            try:
                self._look()  # there may have been a change without a connection
                is_failing = False
                self._listen()
            except Exception as error:  # the next try may succeed
                if not is_failing:
                    cause = error.message if isinstance(error, RoundhouseError) else None
                    log.error(
                        "the fleet's names cannot be read; the known ones stay in use",
                        extra={"cause": cause} if cause else {},
                        exc_info=None if cause else error,
                    )
                is_failing = True
                self._closing.wait(RETRY_SECONDS)

    def _listen(self) -> None:
        """Listen until closed. Raises the error that breaks the connection."""
        database = self._tables.database
        with translate_errors(), database.engine.connect() as connection:
            listening = connection.execution_options(isolation_level="AUTOCOMMIT")
            channel = database.engine.dialect.identifier_preparer.quote_identifier(self._tables.revision.channel)
            listening.execute(sa.text(f"LISTEN {channel}"))
            try:
                self.is_listening = True
                driver = listening.connection.driver_connection
                assert driver is not None, "the connection is open"
                due = 0.0
                while not self._closing.is_set():
                    if time.monotonic() >= due:
                        self._look(listening)
                        due = time.monotonic() + LOOK_SECONDS
                    for notification in driver.notifies(timeout=STEP_SECONDS, stop_after=1):
                        self._tables.revision.announced(notification.payload)
                        due = 0.0
            finally:
                self.is_listening = False
                listening.connection.detach()  # a listening connection must not return to the pool

    def _look(self, connection: sa.Connection | None = None) -> None:
        """Read the names if they changed, and call `on_change`. connection: used to check for changes first."""
        revision = self._tables.revision
        if connection is None or revision.read(connection) != revision.known:
            self._state.refresh()
        if self._announced != (now := revision.known):  # also after a change by this server
            self._on_change()
            self._announced = now
