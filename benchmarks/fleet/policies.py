"""What `choose` and the reports of 1,000 nodes cost, in a process that does nothing else.

    python -m benchmarks.fleet.policies CHOICES SECONDS

prints one JSON object. Each report is an event of a stream, from a node with two models, 16 adapters in places and 64
in host memory. TLS and sockets are not included.
"""

import json
import random
import sys
import time

import psutil

from benchmarks.harness import Bench
from benchmarks.peers.processes import figures_of
from fleet.choose import FleetTarget, choose
from fleet.reports import DeviceReport, NodeReport, ReplicaReport, encode
from fleet.table import ReportTable
from models import sse

NODES, MODELS, ADAPTERS, PLACED, STAGED = 1000, 50, 2000, 16, 64
LONGEST = 1 << 20


async def run(bench: Bench) -> None:
    s = bench.settings
    words = s.pick(200_000, 50_000, 500), s.pick(30, 10, 1)
    rounds = [figures_of("benchmarks.fleet.policies", *words) for _ in range(s.rounds)]
    bench.figure("choose.us", [figures["choose"] for figures in rounds], "µs")
    bench.figure("reports.core", [figures["core"] for figures in rounds], "%")
    bench.figure("reports.memory", [figures["memory"] for figures in rounds], "MiB")


def measure(choices: int, seconds: int) -> dict[str, float]:
    """Measure the policies in this process.

    Returns `choose`, µs of a choice; `core`, % of a core for NODES reports a second; and `memory`, MiB of the table
    with its nodes.
    """
    rng = random.Random(1)
    digests = [f"sha256:{rng.getrandbits(256):064x}" for _ in range(ADAPTERS)]
    table, now = ReportTable(), 0.0
    process = psutil.Process()
    before = process.memory_info().rss
    first = [_with_number(_event(rng, digests, number), 0) for number in range(NODES)]
    splitters = [sse.Splitter(LONGEST) for _ in range(NODES)]
    _take(table, splitters, first, now)
    memory = (process.memory_info().rss - before) / 2**20
    reports = [[_event(rng, digests, number) for number in range(NODES)] for _ in range(3)]
    spent = 0.0
    for second in range(1, seconds + 1):
        now = float(second)
        events = [_with_number(event, second) for event in reports[second % 3]]
        began = time.process_time()
        _take(table, splitters, events, now)
        spent += time.process_time() - began
    assert not table.ignored, table.ignored
    targets = [
        FleetTarget(
            f"model-{rng.randrange(MODELS)}", "", rng.choice([None, *rng.sample(digests, 4)]), rng.getrandbits(64)
        )
        for _ in range(4096)
    ]
    prefixes = [rng.choice([None, rng.getrandbits(64)]) for _ in targets]
    began = time.process_time()
    for number in range(choices):
        choose(targets[number % 4096], prefixes[number % 4096], table, now)
    choosing = (time.process_time() - began) / choices * 1e6
    return {"choose": choosing, "core": 100 * spent / seconds, "memory": memory}


def _take(table: ReportTable, splitters: list[sse.Splitter], events: list[bytes], now: float) -> None:
    """Pass reports to the table as `runtime.gateway.peers.following` does."""
    for number, data in enumerate(events):
        for event in splitters[number].feed(data):
            table.take(sse.data_of(event), now, f"node-{number}")


def _event(rng: random.Random, digests: list[str], number: int) -> bytes:
    """Return a node's report. Of ten nodes, one has another adapter in a place than in its other reports."""
    own = random.Random(number)
    placed, staged = own.sample(digests, PLACED), own.sample(digests, STAGED)
    if rng.random() < 0.1:
        placed[rng.randrange(PLACED)] = rng.choice(digests)
    replicas = tuple(
        ReplicaReport(
            model=f"model-{(number + more) % MODELS}", state="ready", capacity=16, running=rng.randrange(16),
            request_seconds=3.2, prefill_seconds=0.1, devices=("cuda:0",),
        )
        for more in (0, 7)
    )  # fmt: skip
    report = NodeReport(
        node=f"node-{number}", boot=1, seq=SEQ, uptime=float(UPTIME), version="1.0",
        address=f"https://node-{number}:8443", devices=(DeviceReport(device="cuda:0", budget=80 << 30),),
        replicas=replicas, placed=tuple(dict.fromkeys(placed)), staged=tuple(staged),
    )  # fmt: skip
    return b"event: report\ndata: %s\n\n" % encode(report)


SEQ, UPTIME = 987654321, 123456789
"""Placeholders in reports, replaced when they are sent."""


def _with_number(event: bytes, second: int) -> bytes:
    return event.replace(b"%d" % SEQ, b"%d" % (second + 1)).replace(b"%d.0" % UPTIME, b"%d.0" % second)


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
