"""The stored responses of a running server: which teams store them, and background work."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from registry.base.threads import Threads
from registry.base.wording import quoted
from registry.bounds import USUAL, Bounds
from registry.errors import NotFound, RoundhouseError, TooLarge
from registry.names import DEFAULT_TEAM
from registry.storage.database import Database
from registry.storage.files import server_id
from tenants.responses.rows import SEND_ITSELF, StoredResponse, edit, failure
from tenants.responses.table import ResponseTable

log = logging.getLogger("roundhouse.tenants")
SWEEP_SECONDS = 600.0
ITEMS_AT_ONCE = 500
"""Items per query, because databases limit the values of a statement."""


class ResponseStore:
    """Stores, finds and deletes responses, and runs background ones.

    open_hours: how long responses without a key are stored, unless team `default` has its own setting.

    | call         | a team that stores | another team, or unknown id | no database yet |
    |--------------|--------------------|-----------------------------|-----------------|
    | hours        | its setting        | 0                           | 0               |
    | get, delete  | the row            | NotFound                    | NotFound        |
    | items        | the items          | NotFound                    | NotFound        |
    | put, run     | stored             | not called: `hours` is 0    | not called      |
    """

    def __init__(self, data_dir: Path, open_hours: int = 0, bounds: Bounds = USUAL) -> None:
        self._data_dir, self._open_hours, self._bounds = data_dir, open_hours, bounds
        self._hours: dict[str, int] = {}
        self._table: ResponseTable | None = None
        self._threads = Threads("stored responses", count=2)
        self._running: dict[str, asyncio.Task[bytes]] = {}
        self._sweeping: asyncio.Task[None] | None = None

    async def read(self, database: Database, *, alone: bool = False) -> None:
        """Read the teams' settings again. The first call also marks responses of the previous run as failed.

        alone: no other server can use the database.
        """
        if self._table is None:
            server = await asyncio.to_thread(server_id, self._data_dir)
            table = ResponseTable(database, server, self._bounds.responses_bytes)
            if interrupted := await asyncio.to_thread(table.interrupt, alone=alone):
                log.warning(
                    "background responses of the previous run were marked as failed", extra={"responses": interrupted}
                )
            self._table = table
            self._sweeping = asyncio.create_task(self._sweep(table), name="sweep-responses")
        hours = await asyncio.to_thread(self._table.hours)
        if self._open_hours:
            hours.setdefault(DEFAULT_TEAM, self._open_hours)
        self._hours = hours

    def hours(self, team: str) -> int:
        """Return the hours for which a team's responses are stored, 0 for not at all."""
        return self._hours.get(team, 0) if self._table is not None else 0

    async def get(self, team: str, id_: str) -> StoredResponse:
        """Return a response. Raises NotFound if it is missing or another team's, Unavailable, QueueFull."""
        if self._table is None or (row := await self._threads.run_for(team, self._table.get, team, id_)) is None:
            raise self._missing(team, id_)
        if self._table.is_lost(row) and id_ not in self._running:  # storing its end failed
            await self._threads.run_for(team, self._table.interrupt, id_)
            return await self.get(team, id_)
        return row

    async def items(self, team: str, ids: Sequence[str]) -> Mapping[str, bytes]:
        """Return items of stored answers as JSON, by id. Raises NotFound, TooLarge, BadRequest, Unavailable."""
        items: dict[str, bytes] = {}
        most: int = self._bounds.response_bytes
        for start in range(0, len(ids), ITEMS_AT_ONCE):
            some = ids[start : start + ITEMS_AT_ONCE]
            if self._table is not None:
                items |= await self._threads.run_for(team, self._table.items, team, some, most)
                most -= sum(len(items[id_]) for id_ in some if id_ in items)
            for id_ in some:
                if id_ not in items:
                    raise NotFound(
                        f"No stored answer has an item {quoted(id_)}: it is part of an input, or its response was sent "
                        f"with `store: false`, was deleted, or has expired. {SEND_ITSELF}",
                        code="item_not_found",
                        param="input",
                    )
        return items

    async def put(self, id_: str, team: str, input_: bytes, answer: bytes, *, running: bool = False) -> bool:
        """Store a response. Returns False if it is too large or its team is archived. Raises QueueFull, Unavailable."""
        assert self._table is not None
        if len(input_) + len(answer) > self._bounds.response_bytes:
            return False
        hours = self.hours(team)
        return bool(hours) and await self._threads.run_for(
            team, self._table.put, id_, team, hours, input_, answer, running=running
        )

    def check_size(self, size: int) -> None:
        """Raise TooLarge if the input leaves no room for an answer."""
        if size >= self._bounds.response_bytes:
            raise TooLarge(
                f"With the earlier turns the input has {size} bytes; a stored response may have at most "
                f"{self._bounds.response_bytes} (see --bounds-factor). Send `store: false`, or start a new "
                "conversation.",
                code="response_too_large",
                param="input",
            )

    async def delete(self, team: str, id_: str) -> None:
        """Delete a response and stop its work. Raises NotFound, Unavailable, QueueFull."""
        await self.get(team, id_)
        await self._stop(id_)
        assert self._table is not None
        await self._threads.run_for(team, self._table.delete, team, id_)

    # --- background work --------------------------------------------------------------------------------------------
    def run(self, id_: str, work: Callable[[], Awaitable[bytes]]) -> None:
        """Run the work of a response that was stored as running. work: returns the whole answer and never raises."""
        task = self._running[id_] = asyncio.create_task(self._run(id_, work), name=f"response-{id_}")
        task.add_done_callback(lambda _: self._running.pop(id_, None))

    async def _run(self, id_: str, work: Callable[[], Awaitable[bytes]]) -> bytes:
        answer = await work()
        assert self._table is not None
        if len(answer) > self._bounds.response_bytes:
            answer = edit(answer, {**failure("server_error", "The answer is too large to be stored."), "output": []})
        try:
            await asyncio.to_thread(self._table.end, id_, answer)
        except RoundhouseError:
            log.exception("the end of a background response was not stored", extra={"response": id_})
        return answer

    async def end(self, row: StoredResponse, answer: bytes) -> StoredResponse:
        """Stop a running response and store this answer, unless it ended first. Returns the stored row."""
        await self._stop(row.id)
        assert self._table is not None
        await self._threads.run_for(row.team, self._table.end, row.id, answer)
        return await self.get(row.team, row.id)

    async def _stop(self, id_: str) -> None:
        if (task := self._running.get(id_)) is not None:
            task.cancel()
            await asyncio.wait({task})

    async def close(self) -> None:
        """Stop all background work. Its responses then say that the server stopped."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        if tasks := list(self._running.values()):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            assert self._table is not None
            try:
                await asyncio.to_thread(self._table.interrupt)
            except RoundhouseError as error:  # the next start marks them
                log.warning("background responses could not be marked as failed", extra={"cause": error.message})

    async def _sweep(self, table: ResponseTable) -> None:
        while True:
            try:
                await asyncio.to_thread(table.sweep)
            except RoundhouseError as error:  # the next sweep may succeed; expired rows are never shown
                log.warning("expired responses were not deleted", extra={"cause": error.message})
            await asyncio.sleep(SWEEP_SECONDS)

    def _missing(self, team: str, id_: str) -> NotFound:
        why = "" if self.hours(team) else " This server does not store your responses: see docs/chat.md."
        return NotFound(f"There is no response {quoted(id_)}; it may have expired.{why}", code="response_not_found")
