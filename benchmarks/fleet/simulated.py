"""The simulation of 1,000 nodes at 70 % of their load that lose a rack (`fleet.simulation`)."""

import asyncio
import json
import subprocess
import sys

from benchmarks.harness import Bench

NODES = 1000
FIGURES = {
    "ttft_ratio": ("x", 1.0), "adapter_hits": ("%", 100.0), "load_ratio": ("x", 1.0), "moves_node_hour": ("moves", 1.0),
    "over_admitted": ("requests", 1.0),
}  # fmt: skip
"""Unit of each figure, and the factor that converts the simulation's figure to it."""


async def run(bench: Bench) -> None:
    nodes = bench.settings.pick(NODES, NODES, 16)
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "fleet.simulation", "--nodes", str(nodes)],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    figures = json.loads(done.stdout.splitlines()[-1])
    bench.series["simulation"] = figures
    for name, (unit, factor) in FIGURES.items():
        bench.figure(f"simulated.{name}", [figures[name] * factor], unit)
