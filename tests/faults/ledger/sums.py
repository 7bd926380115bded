"""Checks that many requests, some of whose clients leave, are counted exactly by one ledger and random limits.

    python -m tests.faults.ledger.sums [--requests 100000] [--clients 64]

A scripted engine generates known tokens. At the end the ledger's sums, its rows, the metrics and the engine's own count
must be equal to the token, and limits must have all their reservations back.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.messages import Chunk, ResponseEnd, ResponseStart, Usage
from runtime.gateway.context import RequestContext
from runtime.http.dialect import Head
from runtime.http.routes import ENDPOINTS
from runtime.http.serving import serve
from tenants.caller import Caller
from tenants.ledger.ledger import Ledger
from tenants.ledger.report import UsageFilter, used
from tenants.ledger.table import LedgerTable
from tenants.limits.limiter import Limiter
from tenants.limits.records import Kind, Limit
from tenants.storage.opening import open_tables
from tests.unit.http.fakes import FakeGateway

PATH = "/v1/chat/completions"
TEAMS = 4
AT_ONCE = 12


@dataclass
class Totals:
    answered: int = 0
    left: int = 0
    refused: int = 0
    made: list[int] = field(default_factory=lambda: [0, 0])
    """Prompt and completion tokens of answers that clients read to the end."""


def body(number: int) -> bytes:
    requested: dict[str, Any] = {
        "model": "chat",
        "messages": [{"role": "user", "content": str(number)}],
        "max_tokens": 40,
    }
    return json.dumps({**requested, "stream": True}).encode()


async def run(folder: Path, requests: int, clients: int, seed: int = 22) -> Totals:
    """Run everything. Raises AssertionError if a sum is wrong."""
    chance, reported = random.Random(seed), Totals()
    database, ledger, limiter = open_tables(folder), Ledger(folder), Limiter()
    await ledger.enable(database)
    limits = [Limit(f"l{n}", "team", f"team{n}", Kind.AT_ONCE, AT_ONCE) for n in range(TEAMS)]
    limiter.replace(limits, {})
    gateway = FakeGateway(folder, ledger=ledger, limiter=limiter)
    link, ended = gateway.links["chat"], asyncio.Event()
    """Retry refused requests when another one has ended."""

    def script(request: Any) -> list[Any]:
        number = int(json.loads(request.body)["messages"][0]["content"])
        head = [ResponseStart(status=200, content_type="text/event-stream"), *[Chunk(data=b"data: {}\n\n")] * 3]
        return [*head, ResponseEnd(usage=Usage(prompt_tokens=number % 50, completion_tokens=number % 7))]

    link.script = script

    async def one(number: int) -> None:
        team = chance.randrange(TEAMS)
        context = RequestContext(f"r-{number}", Caller(f"team{team}", f"key{team:05}"))
        parts, leaves, status = serve(gateway.gateway, context, ENDPOINTS[PATH], body(number)), chance.random() < 0.2, 0
        async for part in parts:
            if isinstance(part, Head):
                status = part.status
            elif leaves and status == 200:
                break
        await parts.aclose()
        if status == 429:
            reported.refused += 1
            await ended.wait()
            return
        ended.set()
        ended.clear()
        if status != 200:
            raise AssertionError(status)
        if leaves:
            reported.left += 1
        else:
            reported.answered += 1
            reported.made[0] += number % 50
            reported.made[1] += number % 7

    numbers = iter(range(requests))

    async def client() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(client() for _ in range(clients)))
    await ledger.flush()
    (sums,) = used(database, UsageFilter(0, 2**40))
    table = LedgerTable(database, "")
    assert table.differences() == []
    assert table.open_rows() == 0
    assert sums.requests == reported.answered + reported.left
    counters = {
        tuple(one.labels.values()): one.value
        for metric in gateway.metrics.team_tokens.collect()
        for one in metric.samples
        if one.name.endswith("_total")
    }
    with database.read() as connection:
        done = connection.exec_driver_sql(
            "SELECT count(*), sum(prompt_tokens), sum(completion_tokens) FROM ledger WHERE \"end\" = 'done'"
        ).one()
    assert list(done) == [reported.answered, *reported.made]
    counted = {
        kind: sum(counters[f"team{n}", "interactive", kind] for n in range(TEAMS)) for kind in ("prompt", "completion")
    }
    assert counted == {"prompt": sums.prompt_tokens, "completion": sums.completion_tokens}
    for number in range(TEAMS):
        assert limiter.levels(Caller(f"team{number}"), "chat")[Kind.AT_ONCE].remaining == AT_ONCE
    await ledger.close()
    database.close()
    return reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=64)
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        reported = asyncio.run(run(Path(folder), given.requests, given.clients))
    seconds = round(time.monotonic() - began, 1)
    print(
        json.dumps(
            {"answered": reported.answered, "left": reported.left, "refused": reported.refused, "seconds": seconds}
        )
    )


if __name__ == "__main__":
    main()
