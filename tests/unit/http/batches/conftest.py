"""An open server with files and batches, its clients, and input files."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai
import pytest

from batches.records import BatchRecord, BatchState, LineChange, LineEnd, LineState, LineUsage
from tenants.key_settings import KeySettings
from tenants.ledger.ledger import Ledger
from tenants.watch import KeyWatch
from tests.eventually import PATIENCE
from tests.unit.http.fakes import FakeGateway, application

URL = "/v1/chat/completions"
BODY = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


def jsonl(*custom_ids: str, url: str = URL, body: Any = BODY) -> bytes:
    lines = ({"custom_id": one, "method": "POST", "url": url, "body": body} for one in custom_ids)
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


class BatchServer:
    """A server without keys. Only `work` runs lines."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.ledger = Ledger(folder / "data")
        self.watch = KeyWatch(KeySettings(folder / "data"), self.ledger.enable)
        self.gateway = FakeGateway(folder, ledger=self.ledger, watch=self.watch, **settings)
        self.batches = self.gateway.batches
        self.app = application(self.gateway)
        self.raw: list[Any] = []
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=self.app))
        http.event_hooks["response"].append(self._keep)
        self.client = openai.AsyncOpenAI(api_key="x", base_url="http://test/v1", http_client=http, max_retries=0)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app=self.app), base_url="http://test")

    async def _keep(self, answer: httpx2.Response) -> None:
        await answer.aread()
        if answer.headers["content-type"] == "application/json":
            self.raw.append(answer.json())

    async def upload(self, content: bytes, name: str = "in.jsonl", purpose: Any = "batch") -> Any:
        return await self.client.files.create(file=(name, content), purpose=purpose)

    async def create(self, content: bytes, **more: Any) -> Any:
        file = await self.upload(content)
        return await self.client.batches.create(
            **{"input_file_id": file.id, "endpoint": URL, "completion_window": "24h", **more}
        )

    async def reach(self, id_: str, state: BatchState) -> BatchRecord:
        """Wait until a batch has this state."""
        async with asyncio.timeout(PATIENCE):
            while True:
                batch = await self.batches.store.read(lambda tables: tables.batches.get(id_))
                if batch is not None and batch.state is state:
                    return batch
                await asyncio.sleep(0.01)

    async def work(self, id_: str, end: Callable[[int], LineEnd], most: int = 1000) -> None:
        """End lines of a batch as a worker does. `end` gives the end of each line number."""
        await self.reach(id_, BatchState.IN_PROGRESS)
        epoch, _ = await self.batches.store.write(lambda tables: tables.runners.open(alone=True))
        lines = await self.batches.store.write(lambda tables: tables.lines.claim(epoch, id_, "chat", most, 2.0e9))
        for line in lines:
            change = LineChange(LineState.ENDED, end(line.number), 1, 0)
            await self.batches.store.write(
                lambda tables, line=line, change=change: tables.lines.end(epoch, line, change, time.time())
            )

    async def close(self) -> None:
        await self.client.close()
        await self.http.aclose()
        await self.batches.close()
        await self.ledger.close()
        await self.watch.close()


def answered(number: int) -> LineEnd:
    body = json.dumps({"number": number}).encode()
    return LineEnd(200, body=body, request=f"req-{number}", served="chat@1", usage=LineUsage(3, 1, 2, 0))


def refused(number: int) -> LineEnd:
    body = json.dumps({"error": {"message": "no", "type": "x", "param": None, "code": "model_not_found"}}).encode()
    return LineEnd(404, code="model_not_found", body=body, request=f"req-{number}")


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[BatchServer]:
    made = BatchServer(tmp_path)
    yield made
    await made.close()
