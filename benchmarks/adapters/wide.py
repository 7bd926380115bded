"""Adapters of 45 MB: the tiers and the storm of `benchmarks.adapters.small` on a base of 31 M parameters.

Runs only by name, because it does not use the starter pack and takes stock vLLM minutes. With so few requests per tier,
each p99 is the maximum.

Physical limit: 45 MB are read from the page cache, packed and copied: about 30 ms at 5 GB/s for three passes.
"""

from benchmarks.adapters.small import WIDE, few_places
from benchmarks.harness import Bench
from benchmarks.models import wide_chat
from benchmarks.report.generated import size, write_adapters

DISK_AIM = 100.0
"""Milliseconds at p99 for 45 MB that are read from the page cache, cast, and copied between two steps."""


async def run(bench: Bench) -> None:
    s = bench.settings
    model = wide_chat(s, s.work / "adapters" / "wide", device=WIDE.device, host=WIDE.host)
    files = write_adapters(s.work / "adapters" / "wide", model.path, WIDE.files, s.pick(256, 256, 8))
    bench.note(f"wide adapters of {size(files[0]) / 1e6:.1f} MB, rank 256, on a base of 31 M parameters")
    await few_places(bench, model, files, "wide", WIDE)
    bench.bar("45 MB, disk: TTFT p99 over the base's", "wide.roundhouse.disk.p99_over_p99", "<=", DISK_AIM)
    bench.bar("45 MB, storm: longest gap / undisturbed p99", "wide.roundhouse.storm.longest_ratio", "<=", 2.0)
