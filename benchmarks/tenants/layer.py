"""What keys, limits, the fair queue and the ledger cost without a server: time, rows, memory.

    python -m benchmarks.tenants.layer report FOLDER | memory FOLDER REQUESTS

run the parts that need their own process, and print one JSON object.
"""

import asyncio
import json
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil

from benchmarks.harness import Bench
from benchmarks.load.stats import percentile
from benchmarks.peers.processes import figures_of
from benchmarks.tenants.filling import fill
from runtime.scheduling.fair import QueueRequest
from runtime.scheduling.placement import Placement
from tenants.caller import ServiceClass
from tenants.costs.prices import PriceList
from tenants.key_settings import KeySettings
from tenants.ledger.ledger import Ledger
from tenants.ledger.rows import Entry, Settlement
from tenants.limits.limiter import Amounts, Limiter
from tenants.limits.loader import LimitLoader
from tenants.watch import KeyWatch

MODULE = "benchmarks.tenants.layer"
KEYS, TEAMS = 10_000, 100
HOURS = 720
"""A month."""


async def run(bench: Bench) -> None:
    s = bench.settings
    decisions(bench, 0)
    decisions(bench, 20)
    speeds = [await ledger(s.work / f"ledger-{n}", s.pick(50_000, 20_000, 50)) for n in range(s.rounds)]
    bench.figure("ledger.rows", speeds, "1/s")
    rows = s.pick(10_000_000, 1_000_000, 1000)
    hour = f"3600 * (n * {HOURS} / {rows})"
    columns = {
        "at": f"{hour} + n % 3600", "hour": hour, "team": "'team' || (n % 20)", "key": "'key' || (n % 140)",
        "model": "'model' || (n % 7)", "revision": "'r'", "adapter": "''",
    }  # fmt: skip
    fill(s.work / "report", rows, columns)
    reports = [figures_of(MODULE, "report", s.work / "report") for _ in range(s.rounds)]
    bench.figure("report.ms", [report["ms"] for report in reports], "ms")
    bench.figure("report.mib", [report["mib"] for report in reports], "MiB")
    requests = s.pick(1_000_000, 100_000, 100)
    bench.note(f"the report is on {rows:,} rows, the memory over {requests:,} requests")
    prepare(s.work / "memory")
    held = figures_of(MODULE, "memory", s.work / "memory", requests)
    bench.figure("layer.mib", [held["mib"]], "MiB")
    bench.figure("layer.growth_mib", [held["growth"]], "MiB")


def decisions(bench: Bench, adapters: int) -> None:
    """Measure `decide` and `finish` while 10,000 requests wait."""
    s, choice = bench.settings, random.Random(bench.settings.seed)
    policy = Placement(8 if adapters else 0, 40, 32)
    names = [f"sha256:{number:064x}" for number in range(adapters)]
    running: list[str] = []
    count = iter(range(10**9))

    def ask(now: float) -> None:
        key = choice.randrange(10_000)
        digest = names[key % adapters] if adapters else None
        service_class = choice.choice(list(ServiceClass))
        claim = QueueRequest(f"team{key % 100}", f"key{key}", 1.0, service_class, choice.uniform(10, 500))
        policy.enqueue(str(next(count)), digest, now, claim)

    for _ in range(s.pick(10_000, 10_000, 100)):
        ask(0.0)
    times: list[float] = []
    for step in range(s.pick(5_000, 2_000, 50)):
        now = step * 0.01
        began = time.perf_counter()
        plan = policy.decide(now)
        if running:
            policy.finish(running.pop(0), now, choice.uniform(10, 500))
        times.append(time.perf_counter() - began)
        running += plan.start
        for digest in plan.stage:
            policy.staged(digest)
        for digest, _ in plan.place:
            policy.placed(digest, now)
        for _ in plan.start:
            ask(now)
    for q in (50, 99):
        bench.figure(f"decision.adapters{adapters}.p{q}", [percentile(times, q) * 1e6], "us")


async def ledger(folder: Path, requests: int) -> float:
    """Return rows a second. Each request waits until its begin is committed, as on a server."""
    from tenants.ledger.table import LedgerTable
    from tenants.ledger.writer import LedgerWriter
    from tenants.storage.opening import open_tables

    database = open_tables(folder)
    writer, numbers = LedgerWriter(LedgerTable(database, "bench")), iter(range(requests))

    async def client() -> None:
        for number in numbers:
            began = entry(number)
            await writer.begin(began)
            writer.end(Settlement(began, "done", 200, None, 100, 10, 20, 0, 1, 2, 3))

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(64)))
    await writer.flush()
    seconds = time.perf_counter() - start
    await writer.close()
    database.close()
    return requests / seconds


def entry(number: int) -> Entry:
    team = number % TEAMS
    return Entry(
        uid=f"{number:032x}", request=f"req-{number}", attempt=1, at=time.time(), team=f"team{team}",
        key=f"k{number % KEYS:07}", endpoint="/v1/chat/completions", model="chat", revision="r", adapter="",
        service_class="interactive", source="api", price=PriceList(10, 1, 20, 0, 0),
    )  # fmt: skip


# --- a report -----------------------------------------------------------------------------------------------------
def report(folder: Path) -> dict[str, float]:
    """Measure usage by team, model and day, as in `GET /v1/usage`, after a first query as on a running server."""
    from tenants.ledger.report import Grouping, UsageFilter, used
    from tenants.storage.opening import open_tables

    database = open_tables(folder)
    used(database, UsageFilter(0, 3600))
    before, times = _peak(), []
    for _ in range(3):
        began = time.perf_counter()
        result = used(database, UsageFilter(0, 3600 * HOURS, (Grouping.TEAM, Grouping.MODEL, Grouping.DAY)))
        times.append(time.perf_counter() - began)
    assert result
    return {"ms": sorted(times)[1] * 1e3, "mib": _peak() - before}


def _peak() -> float:
    """Return this process's peak of resident MiB. `ru_maxrss` would include the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


# --- memory ------------------------------------------------------------------------------------------------------
async def memory(folder: Path, requests: int) -> dict[str, float]:
    """Measure the memory of keys, limits, fair queue and ledger, and what requests add to it.

    SQLAlchemy, which every server uses, is not included.
    """
    keys = json.loads((folder / "keys.json").read_text())
    before = _now()
    kept, limiter, policy = Ledger(folder), Limiter(), Placement(0, 40, 32)
    watch = KeyWatch(KeySettings(folder), kept.enable, LimitLoader(limiter, kept).read)
    await watch.start()
    numbers, marks = iter(range(requests)), {requests // 10: 0.0}
    running: list[str] = []

    async def client() -> None:
        for number in numbers:
            if number in marks:
                marks[number] = _now()
            caller = watch.keyring().identify([keys[number % len(keys)]])
            admission = limiter.admit(caller, "chat", Amounts(200, 0, 100))
            claim = QueueRequest(caller.team, caller.key or "", caller.weight, caller.service_class, 100.0)
            began = replace(entry(number), team=caller.team, key=caller.key or "")
            policy.enqueue(began.uid, None, number * 0.001, claim)
            await kept.begin(began)
            running.extend(policy.decide(number * 0.001).start)
            if running:
                policy.finish(running.pop(0), number * 0.001, 120.0)
            kept.end(Settlement(began, "done", 200, None, 100, 10, 20, 0, 1, 2, 3))
            limiter.settle(admission, Amounts(120, 0, 60))

    await asyncio.gather(*(client() for _ in range(64)))
    await kept.flush()
    end = _now()
    await kept.close()
    await watch.close()
    (early,) = marks.values()
    return {"mib": early - before, "growth": end - early}


def prepare(folder: Path) -> None:
    """Create 10,000 keys of 100 teams, each team with three limits, and a file with the keys."""
    from tenants.keys import secret
    from tenants.keys.records import KeyRequest
    from tenants.keys.table import KeyTable
    from tenants.limits.records import Kind, Limit
    from tenants.limits.table import LimitTable
    from tenants.storage.opening import open_tables

    tables = open_tables(folder)
    table, limits = KeyTable(tables, secret.load_pepper(folder, None)), LimitTable(tables)
    for number in range(TEAMS):
        table.create_team(f"team{number}")
        for kind in (Kind.REQUESTS, Kind.TOKENS, Kind.MONTH):
            limits.set(Limit("", "team", f"team{number}", kind, 10**12))
    keys = [table.create(KeyRequest(f"team{number % TEAMS}"))[1] for number in range(KEYS)]
    (folder / "keys.json").write_text(json.dumps(keys))
    tables.close()


def _now() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20


def main() -> None:
    match sys.argv[1:]:
        case ["report", folder]:
            result = report(Path(folder))
        case ["memory", folder, requests]:
            result = asyncio.run(memory(Path(folder), int(requests)))
        case _:
            sys.exit(__doc__)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
