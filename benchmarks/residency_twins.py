"""Two checkpoints of one architecture under a budget for one of them: a swap in place beside a load.

Each switch is timed from asking the model that is not resident to its first token, with the CPU seconds that the whole
server takes until then, there and back on one server: a pair of recipes that may take over each other's engine, and a
pair that may not (`residency.swap: false`) and so loads in a slot whose imports are ready. A pair's weights differ in
their values only; both pairs hold the same weights.

Physical limit: the weights come from the page cache in milliseconds; a swap has to make vLLM's model runner, adapter
places and HTTP application anew, a load the process of EngineCore as well.
"""

import asyncio
from collections import defaultdict

from benchmarks import processes
from benchmarks.client import Reply
from benchmarks.generated import write_twin
from benchmarks.harness import Bench
from benchmarks.load import Cell, one
from benchmarks.models import Chat, with_changes
from benchmarks.servers import Roundhouse
from benchmarks.workload import Workload
from registry.estimate import PREWARMED

PAUSE_SECONDS = 3.0
"""Longer than a model's minimum residence."""


async def run(bench: Bench, workload: Workload, base: Chat) -> None:
    """Measure both kinds of switch between `base` and its twin, which is written beside it."""
    folder = bench.settings.work / "residency-twins"
    twin = write_twin(base.path, folder / "twin")
    pairs: dict[str, list[Chat]] = defaultdict(list)
    for kind, swap in (("swap", True), ("load", False)):
        for word, path in (("one", base.path), ("two", twin)):
            changes = {"id": f"{kind}-{word}", "aliases": [], "residency": {"swap": swap, "min_resident": "2s"}}
            pairs[kind].append(with_changes(base, path, folder, changes))
    first = pairs["swap"][0].recipe.id
    files = [model.file for models in pairs.values() for model in models]
    with Roundhouse(first, folder, files[:1], load=[first]) as server:
        size = int(server.http.get(f"/v1/models/{first}").json()["bytes"])  # alone, it shares no library with others
    room = min(max(size * 9 // 10, PREWARMED["vllm"] * 11 // 10), size - (8 << 20))
    options = ("--device-memory", str(size + room))  # room for one of them and a slot with imports
    seconds: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    with Roundhouse(first, folder, files, *options, load=[first]) as server:
        for kind, models in pairs.items():
            for number in range(bench.settings.rounds):  # there, back, and so on
                if kind == "load":
                    server.wait_warm(models[0].recipe.engine.name)
                reply, used = await _switch(bench, server, workload, models[(number + 1) % 2])
                if reply.error is None:
                    seconds[kind].append(reply.total)
                    cpu[kind].append(used)
        swaps = [_swaps(server)]
    for kind in pairs:
        bench.figure(f"twins.{kind}.roundhouse.seconds", seconds[kind], "s")
        bench.figure(f"twins.{kind}.roundhouse.cpu", cpu[kind], "s")
    bench.figure("twins.swaps", swaps, "swaps")
    if swaps[0] < bench.settings.rounds:
        bench.failures["twins: a switch that was to be a swap was none"] += 1


async def _switch(bench: Bench, server: Roundhouse, workload: Workload, model: Chat) -> tuple[Reply, float]:
    """The reply of a model that is not resident, and the CPU seconds until it was there."""
    await asyncio.sleep(PAUSE_SECONDS)
    before = processes.cpu_seconds(server.pid)
    reply = await one(server, workload.chat(model.recipe.id, tokens=1))
    used = processes.cpu_seconds(server.pid) - before
    bench.count("twins", Cell([reply], 1.0, 0.0, 0.0))
    return reply, used


def _swaps(server: Roundhouse) -> float:
    lines = server.http.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("roundhouse_swap_seconds_count"))
