"""A batch worker over a scripted gateway, with a real ledger and real tables."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from batches.records import BatchRecord, FileRecord, Line, NewLine
from batches.store import BatchStore
from batches.work.worker import BatchWorker
from models.messages import Chunk, Event, HttpCall, ResponseEnd, ResponseStart, Usage
from registry.errors import RoundhouseError
from registry.recipes.definition import Prices
from registry.recipes.provider import Provider
from registry.storage.database import Database
from runtime.http.batches.lines import line_runner
from runtime.http.routes import ENDPOINTS
from tenants.caller import Caller
from tenants.ledger.ledger import Ledger
from tenants.ledger.table import Difference, LedgerTable
from tenants.limits.limiter import Limiter
from tenants.storage.opening import open_tables
from tests.eventually import PATIENCE
from tests.unit.batches.conftest import KEY
from tests.unit.http.fakes import FakeGateway, recipe

BATCH = BatchRecord("batch_1", "search", "key", "openai", "/v1/chat/completions", "file-1", 0.0, 10**10)
USAGE = Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=1)
CALLER = Caller("search", "key")


def answer(text: str) -> list[Event | RoundhouseError]:
    return [
        ResponseStart(status=200, content_type="application/json"),
        Chunk(data=json.dumps({"text": text}).encode()),
        ResponseEnd(usage=USAGE),
    ]


def echo(request: HttpCall) -> Sequence[Event | RoundhouseError]:
    """Answer with the content of the message."""
    return answer(json.loads(request.body)["messages"][0]["content"])


def body(text: str, model: str = "chat", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


class Bench:
    """A worker and its tables. Call `open` first and `close` last. A second `open` is a restart. rights: by key id."""

    def __init__(self, folder: Path, limiter: Limiter | None = None, providers: Sequence[Provider] = ()) -> None:
        self.folder, self.limiter, self.providers = folder, limiter or Limiter(), providers
        self.bodies: dict[int, bytes] = {}
        self.rights: Callable[[str], Caller] = lambda _: CALLER
        self.number = 0
        self.shift = 0.0
        """Seconds that the worker's clock is ahead."""
        self.ratios: list[tuple[str, float]] = []
        """Forecasts divided by the true values."""

    async def open(self) -> None:
        self.number += 1
        self.database: Database = open_tables(self.folder)
        self.ledger = Ledger(self.folder)
        await self.ledger.enable(self.database)
        self.store = BatchStore(self.ledger, self.folder, self._open, lambda: KEY)
        priced = [recipe("chat", "chat").model_copy(update={"price": Prices(input=2e6, output=4e6, batch=0.5)})]
        self.gateway = FakeGateway(
            self.folder / str(self.number), priced, ledger=self.ledger, limiter=self.limiter, providers=self.providers
        )
        self.link = self.gateway.links["chat"]
        self.link.script = echo
        self.worker = BatchWorker(
            self.store, line_runner(self.gateway.gateway, ENDPOINTS), self._read, self.gateway.line_rooms,
            lambda key, _: self.rights(key), clock=lambda: time.time() + self.shift,
            observe=lambda made, ratio: self.ratios.append((made, ratio)),
        )  # fmt: skip
        self.worker.start()

    async def _open(self) -> None:
        raise AssertionError("it is open")

    async def _read(self, file: str, offset: int, length: int) -> bytes:
        found = self.bodies.get(offset)
        if found is None:
            raise FileNotFoundError(file)
        assert len(found) == length
        return found

    async def close(self) -> None:
        await self.worker.close()
        await self.gateway.providers.close()
        await self.ledger.close()
        self.database.close()

    async def create(
        self, bodies: Sequence[Mapping[str, Any]], batch: BatchRecord = BATCH, names: Mapping[str, str] | None = None
    ) -> None:
        lines = []
        for number, one in enumerate(bodies):
            data = json.dumps(one).encode()
            offset = len(self.bodies)
            self.bodies[offset] = data
            lines.append(NewLine(number, f"id-{number}", str(one["model"]), offset, len(data)))
        file = FileRecord(batch.input_file, batch.team, "in.jsonl", "batch", 1, 0.0)
        await self.store.write(lambda tables: tables.files.create(file))
        await self.store.write(lambda tables: tables.batches.create(batch))
        await self.store.write(lambda tables: tables.lines.add(batch.id, lines))
        await self.store.write(lambda tables: tables.batches.start(batch.id, 0.0, names))
        self.worker.wake()

    async def get(self, id_: str = BATCH.id) -> BatchRecord:
        found = await self.store.read(lambda tables: tables.batches.get(id_))
        assert found is not None
        return found

    async def until(self, look: Callable[[BatchRecord], object], id_: str = BATCH.id) -> BatchRecord:
        async with asyncio.timeout(PATIENCE):
            while not look(batch := await self.get(id_)):
                await asyncio.sleep(0.01)
        return batch

    async def until_final(self, id_: str = BATCH.id) -> BatchRecord:
        return await self.until(lambda batch: batch.state.is_final, id_)

    async def results(self, id_: str = BATCH.id) -> Sequence[Line]:
        return await self.store.read(lambda tables: tables.lines.results(id_))

    def rows(self) -> Counter[tuple[str, str, int]]:
        """Count the ledger's rows by state, end and tokens."""
        with self.database.read() as connection:
            query = sa.text('SELECT state, "end", prompt_tokens + completion_tokens AS tokens FROM ledger')
            return Counter((row.state, row.end, row.tokens) for row in connection.execute(query))

    def cost(self) -> int:
        with self.database.read() as connection:
            return int(connection.execute(sa.text("SELECT COALESCE(SUM(cost_micro), 0) FROM ledger")).scalar_one())

    def differences(self) -> list[Difference]:
        return LedgerTable(self.database, "other").differences()


def other_batch(id_: str, **changes: Any) -> BatchRecord:
    return replace(BATCH, id=id_, input_file=f"file-{id_}", **changes)
