"""The revision in an answer's header after a model changed its revision while requests waited."""

import asyncio
import json
from pathlib import Path
from typing import cast

from models.messages import Chunk, ResponseEnd, ResponseStart, Usage
from runtime.gateway.context import RequestContext
from runtime.http.routes import ENDPOINTS
from runtime.slots.link import SlotLink
from tests.eventually import PATIENCE
from tests.unit.http.answering import answer
from tests.unit.http.fakes import FakeGateway

PATH = "/v1/chat/completions"


async def test_a_request_that_waited_names_the_revision_that_answered(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path)
    queue, link = gateway.queues["chat"], gateway.links["chat"]
    link.script = lambda _: (
        ResponseStart(status=200, content_type="application/json"), Chunk(data=b"{}"), ResponseEnd(usage=Usage()),
    )  # fmt: skip
    queue.close()
    body = json.dumps({"model": "chat", "messages": []}).encode()
    requested = asyncio.create_task(answer(gateway.gateway, RequestContext("r-1"), ENDPOINTS[PATH], body))
    async with asyncio.timeout(PATIENCE):
        while not queue.waiting:
            await asyncio.sleep(0)
    gateway.entries["chat"].revision = "new"
    queue.open(cast(SlotLink, link))
    assert (await requested).headers["X-Roundhouse-Model"] == "chat@new"
    [record] = gateway.records.all
    assert record.target is not None
    assert record.target.revision == "new"
