"""Adapters of 45 MB: the tiers and the storm of `benchmarks.adapters` once more, on a base of 31 M parameters.

A benchmark of its own, since stock vLLM needs most of its time. Fewer requests per tier: each p99 is close to the
longest.

Physical limit: 45 MB are read from the page cache, packed and copied: about 30 ms at 5 GB/s for three passes.
"""

from benchmarks.adapters import AIMS, DEVICE, HOST, few_places
from benchmarks.generated import size, write_adapters
from benchmarks.harness import Bench
from benchmarks.models import wide_chat


async def run(bench: Bench) -> None:
    s = bench.settings
    model = wide_chat(s, s.work / "adapters" / "wide", device=DEVICE, host=HOST)
    files = write_adapters(s.work / "adapters" / "wide", model.path, 40, s.pick(256, 256, 8))
    bench.note(f"wide adapters of {size(files[0]) / 1e6:.1f} MB, rank 256, on a base of 31 M parameters")
    await few_places(bench, model, files, "wide")
    bench.bar("45 MB, disk: TTFT added, p99", "wide.roundhouse.disk.added_p99", "<=", AIMS["disk"])
    bench.bar("45 MB, storm: longest gap / undisturbed p99", "wide.roundhouse.storm.longest_ratio", "<=", 2.0)
