"""The last step: an 8B-shaped model with forty adapters of rank 16, compared with stock `vllm serve` of the same wheel.

- The parts of `benchmarks.adapters` on this base: tiers, with and without a stream of long prompts to the base; storm;
  twenty adapters in one batch against the base.
- wake: time from a request to a sleeping model to the first token of the base and of an adapter.

Physical limits on an H100: an adapter has 84 MB, 4 ms over PCIe; the weights have 16 GB, which wake in 0.3 s at 50
GB/s. A call to the engine waits for the running step: 10 ms in decode, 200 ms in a prefill of 8,192 tokens, 50 ms in
one of 2,048 (`tokens_while_swapping`).
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.adapters import many
from benchmarks.adapters.pair import register
from benchmarks.adapters.small import SMALL, few_places
from benchmarks.gpu.correctness import AWAY, until
from benchmarks.gpu.shapes import Shape, write_base
from benchmarks.harness import Bench
from benchmarks.load.client import Reply
from benchmarks.load.clients import Cell, one
from benchmarks.load.workload import Workload
from benchmarks.models import STARTER_RECIPE, Chat, written
from benchmarks.peers.servers import Roundhouse
from benchmarks.report.generated import size, write_adapters

RANK = 16
PLACES, HOST = 24, 30
"""Adapter places of the timed parts on the card and in host memory."""
AIMS = {"device": (1.0, 3.0), "host": (4.0, 8.0), "disk": (12.0, 25.0)}
"""Milliseconds that an adapter may add to the base's median first token at p50, and to the base's p99 at p99, by the
adapter's tier. The base's own p99 is 4 to 6 ms above its median, and no adapter can improve that."""
BESIDE_PREFILLS = 100.0
"""The same at p99, during a stream of long prompts to the base."""


async def run(bench: Bench, shape: Shape) -> None:
    folder = bench.settings.work / "adapters" / "large"
    base = write_base(folder / "base", shape)
    files = write_adapters(folder / "adapters", base, SMALL.files, RANK)
    bench.note(f"shape {shape.name}: weights {(base / 'model.safetensors').stat().st_size / 1e9:.1f} GB, "
               f"{len(files)} adapters of {size(files[0]) / 1e6:.1f} MB, rank {RANK}")  # fmt: skip
    few = chat(shape, base, folder / "few", device=SMALL.device, host=SMALL.host)
    await few_places(bench, few, files, "large", SMALL, prompt=shape.prompt)
    await many.run(bench, chat(shape, base, folder / "many", device=24, host=32), many.MIXED, RANK)
    await _wake(bench, chat(shape, base, folder / "wake", device=4, host=16, idle="2s"), files[0])
    for tier, (median, highest) in AIMS.items():
        figures = f"large.roundhouse.{tier}"
        bench.bar(f"{tier}: TTFT added, p50", f"{figures}.added_p50", "<=", median)
        bench.bar(f"{tier}: TTFT p99 over the base's", f"{figures}.p99_over_p99", "<=", highest)
        under = f"large, prefills.roundhouse.{tier}.p99_over_p99"
        bench.bar(f"{tier}: the same under prefills", under, "<=", BESIDE_PREFILLS)
    bench.bar("storm: longest gap / undisturbed p99", "large.roundhouse.storm.longest_ratio", "<=", 2.0)
    bench.bar("mixed: tokens/s, 20 adapters / base", "mixed.roundhouse.ratio", ">=", 0.9)


def chat(shape: Shape, base: Path, folder: Path, *, device: int, host: int, idle: str = "0s") -> Chat:
    """Write a recipe for this base with these adapter places. It sleeps after `idle`; never if that is 0s."""
    data: dict[str, Any] = yaml.safe_load(STARTER_RECIPE.read_text())
    for key in ("adapters", "expected"):
        data.pop(key)
    data |= {"id": "large-chat", "aliases": [], "dtype": "bfloat16", "context_length": shape.context}
    places = {"device": device, "host": host, "max_rank": RANK}
    data["memory"] = {"kv_cache": shape.kv_cache, "adapters": places}
    data["batching"] = {"max_requests": 32, "max_tokens": shape.step, "tokens_while_swapping": shape.chunk}
    data["residency"] = {"idle_timeout": idle, "sleep": "always" if idle != "0s" else "never"}
    return written(data, base, folder)


def without_weights(
    shape: Shape, base: Path, folder: Path, *, idle: str = "0s", values: Mapping[str, object] | None = None
) -> Chat:
    """Write a recipe with which vLLM makes up random weights and reads no file.

    Args:
        values: further values of the recipe, by dotted keys.
    """
    data: dict[str, Any] = yaml.safe_load(
        chat(shape, base, folder, device=PLACES, host=HOST, idle=idle).file.read_text()
    )
    data["engine"].setdefault("flags", {})["load_format"] = "dummy"
    data["batching"]["max_requests"] = 128
    for key, value in (values or {}).items():
        *outer, name = key.split(".")
        part = data
        for word in outer:
            part = part.setdefault(word, {})
        part[name] = value
    return written(data, base, folder)


async def _wake(bench: Bench, model: Chat, adapter: Path) -> None:
    """Measure how the model wakes. On a CPU, where it cannot sleep, it loads instead."""
    workload = Workload(bench.settings.seed + 4)
    with Roundhouse(model.recipe.id, model.file.parent, [model.file]) as server:
        register(server, adapter.name, adapter)

        async def away() -> bool:
            return server.http.get(f"/v1/models/{server.model}").json()["state"] in AWAY

        for name, called in ((server.model, "base"), (adapter.name, "adapter")):
            replies: dict[str, list[Reply]] = defaultdict(list)
            for _ in range(bench.settings.pick(5, 3, 1)):
                await until(away, "the sleep of an idle model")
                state = server.http.get(f"/v1/models/{server.model}").json()["state"]
                replies[state].append(await one(server, workload.chat(name, tokens=2)))
            for state, result in replies.items():
                cell = Cell(result)
                bench.count(f"wake {called}", cell)
                bench.figure(f"wake.{called}.from_{state}", [reply.ttft for reply in cell.good], "s")
