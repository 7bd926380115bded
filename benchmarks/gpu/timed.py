"""The timed parts of the acceptance run: an 8B shape with random weights, optionally compared with stock `vllm serve`.

| part     | what                                                                                       | seconds |
|----------|--------------------------------------------------------------------------------------------|---------|
| oracle   | right answers of twenty adapters, with compilation and graphs                              | 90      |
| tiers    | first token of adapters in place, in host memory and on disk, over the base's              | 60      |
| storm    | gaps of eight streams during swaps, during long prompts, and during both                   | 40      |
| mixed    | twenty adapters in a batch of 64, over the base                                            | 15      |
| sweep    | first token of base and resident adapter by length of the prompt                           | 30      |
| ttft     | the base's first token in turns, and where its milliseconds go (`first_token`)             | 20      |
| shipped  | the storm in the recipe that ships for this card, and its `expected:`                      | 40      |
| sleep    | the first sleep and wake, and later ones                                                   | 120     |
| encoders | embeddings and rerank on mixed lengths, each recipe value against the bare library         | 150     |
| speech   | transcription in the shape of Whisper large-v3-turbo, against faster-whisper's batches     | 120     |
| larger   | the `expected:` of the 32B recipe that ships for a card of 141 GB, with random weights     | 150     |
| tune     | configurations of the LoRA kernels, used by the servers that start after it                | 150     |

Tiers, storm, mixed, sweep and ttft share servers, whose start takes two minutes if nothing is compiled yet, with stock
vLLM three. A part only begins if its time is left, and leaves out what it has no time for; both are recorded. A part
that takes far longer is ended with its servers, and the next one begins.
"""

import asyncio
import os
import random
import shutil
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from benchmarks import speech
from benchmarks.adapters.pair import register
from benchmarks.gpu import bars, correctness, encoders, first_token, large, shipped, tune_lora
from benchmarks.gpu.large import PLACES, RANK
from benchmarks.gpu.report import Report, text_of_fault
from benchmarks.gpu.shapes import LARGER, Shape, write_base
from benchmarks.gpu.whisper_shape import TINY, TURBO, write_whisper
from benchmarks.harness import Bench, RunSettings
from benchmarks.load.budget import Budget, TimedOut, kill_children, run_within
from benchmarks.load.client import Reply, request_bytes
from benchmarks.load.clients import Cell, ask_until, closed_loop, no_collections, one
from benchmarks.load.stats import compared, percentile
from benchmarks.models import Chat
from benchmarks.peers import processes
from benchmarks.peers.servers import NotStarted, Roundhouse, Server, VllmServe
from benchmarks.report.generated import write_adapters
from models import nvml
from models.chat.vllm import tuned

SECONDS = {
    "oracle": 90, "tiers": 60, "storm": 40, "mixed": 15, "sweep": 30, "ttft": 20, "shipped": 40, "sleep": 120,
    "encoders": 150, "speech": 120, "larger": 150, "tune": 150,
}  # fmt: skip
PARTS = tuple(SECONDS)
START, STOCK_START = 130, 50
"""Seconds that the start of the servers takes, and how much longer with stock vLLM beside Roundhouse. On an H100 they
took 117 and 163 s until the first token, and 14 and 4 s to register the adapters."""
TUNING = 110
"""Seconds in which the tuner compiles and times. Its start takes the rest of the part."""
SHARED = ("tiers", "storm", "mixed", "sweep", "ttft")
OWN = ("shipped",)
"""Parts whose seconds do not include the start of their own server."""
WITH_ADAPTERS = ("oracle", *SHARED, *OWN)
"""Parts whose servers use the configurations that `tune` wrote. If one fails before the budget ends, it runs once
more without them."""
SET_ASIDE = "tune: set aside"
"""The step that says so."""
PATIENCE, LONGEST = 2.0, 900.0
"""A part may take its seconds times PATIENCE; with a tiny shape LONGEST seconds."""
ADAPTERS = 40
LENGTHS = (64, 300, 600, 1200, 2400)
"""Tokens of a prompt, which are as many as its letters."""
STREAMS, CROWD, ANSWER = 8, 64, 128
STORM = 15
"""Seconds that one kind of storm takes: 7, and then until its streams have ended."""
LETTERS = "abcdefgh ijklmnop"


class Failed(RuntimeError):
    """A request failed, so the figures of its part would mean nothing."""


class TimedRun:
    """Runs parts in a given order. With a tiny shape they send only a few requests.

    Args:
        stock: also measure stock vLLM.
        values: values of the recipe, by dotted keys.
    """

    def __init__(
        self,
        report: Report,
        shape: Shape,
        device: str,
        work: Path,
        budget: Budget,
        *,
        stock: bool = False,
        values: Mapping[str, object] | None = None,
    ) -> None:
        self._values = values or {}
        for key, value in self._values.items():
            report.server(f"recipe, {key}", [str(value)])
        self._report, self._shape, self._device, self._work = report, shape, device, work
        self._budget, self._stock, self._tiny = budget, stock, shape.name == "tiny"
        self._stack = ExitStack()
        self._servers: list[Server] = []
        self._names: list[str] = []
        self._start_fault = ""
        self._tuned = ""
        """The folder of the kernel configurations of this run, once servers use them."""
        self._random = random.Random(44)

    async def run(self, names: Sequence[str]) -> None:
        """Run the parts. The error of one that fails or hangs is recorded, and the next one begins."""
        parts: dict[str, Callable[[], Coroutine[None, None, None]]] = {
            "oracle": self._oracle, "tiers": self._tiers, "storm": self._storm, "mixed": self._mixed,
            "sweep": self._sweep, "ttft": self._ttft, "shipped": self._shipped, "sleep": self._sleep,
            "encoders": self._encoders, "speech": self._speech, "larger": self._larger, "tune": self._tune,
        }  # fmt: skip
        self._traced = "ttft" in names
        if self._report.is_finished("tune") and SET_ASIDE not in self._report.steps:
            self._use_tuned(self._report.folder)
        with self._stack:
            waiting = list(names)
            while waiting:
                name = waiting.pop(0)
                if self._report.is_finished(name):
                    print(f"{name}: already in the results file", flush=True)
                    continue
                if name not in SHARED or not all(server.is_running for server in self._servers):
                    self._stop()
                starts = name in OWN or (name in SHARED and not self._servers)
                needs = SECONDS[name] + (self._start_seconds(name) if starts else 0)
                if not self._tiny and self._budget.left < needs:
                    self._report.leave_out(name, f"{self._budget.left:.0f} s are left, and it takes {needs}")
                    continue
                if name in SHARED and self._start_fault:
                    self._report.leave_out(name, f"its server did not start: {self._start_fault}")
                    continue
                self._report.begin(name)
                kill = self._kill_part()
                try:
                    sides = 2 if self._stock and name in SHARED else 1
                    await run_within(self._limit(sides * needs), parts[name](), kill)
                    self._report.finish(name)
                except Exception as fault:  # the other parts are still worth running
                    self._report.add(f"{name} ended early", False, error=text_of_fault(fault))
                    if name in WITH_ADAPTERS and self._budget.left > 0 and self._set_tuned_aside(fault):
                        self._stop()
                        waiting.insert(0, name)
                    elif name in SHARED and not self._servers:
                        self._start_fault = f"{type(fault).__name__} in {name}"
                    elif isinstance(fault, TimedOut):
                        self._stop()  # its servers were killed, and may not have ended yet

    def _start_seconds(self, name: str) -> int:
        return START + (STOCK_START if self._stock and name in SHARED else 0)

    def _limit(self, needs: float) -> float:
        """Return the seconds after which to end a part that should take `needs`."""
        return LONGEST if self._tiny else min(PATIENCE * needs, self._budget.left)

    def _kill_part(self) -> Callable[[], None]:
        """Return a function that kills all processes that start from now on, and the shared servers."""
        shared = {process.pid for server in self._servers for process in processes.family(server.pid)}
        spared = {process.pid for process in processes.family(os.getpid())} - shared
        return lambda: kill_children(spared)

    def _use_tuned(self, folder: Path) -> None:
        """Let servers that start from now on use the configurations in a folder."""
        self._tuned = os.environ[tuned.VARIABLE] = str(folder)

    def _set_tuned_aside(self, fault: Exception) -> bool:
        """Let servers use vLLM's own configurations again, as those of this run may be the cause of a fault.

        Returns whether servers have used those of this run.
        """
        used, self._tuned = self._tuned, ""
        if not used:
            return False
        os.environ.pop(tuned.VARIABLE, None)
        self._report.add(SET_ASIDE, False, error=text_of_fault(fault))
        return True

    # --- servers ----------------------------------------------------------------------------------------------------
    async def _up(self) -> list[Server]:
        """Return the shared servers with their adapters registered; starts them if they are not running."""
        if not self._servers:
            folder = self._folder("timed")
            model = self._model(folder)
            servers: list[Server] = [Roundhouse(model.recipe.id, folder, [model.file], "--slots", "1")]
            if self._stock:
                own = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", tuned.VARIABLE: ""}
                servers.append(VllmServe(model.recipe, model.path, folder, variables=own))
            began = time.monotonic()
            try:
                writing = asyncio.ensure_future(asyncio.to_thread(self._adapters, model))  # meanwhile: half a minute
                try:
                    with first_token.stamps(self._work / "stamps") if self._traced else nullcontext():
                        self._servers = await self._start(servers)
                finally:
                    files = await writing  # even after a fault, or a later part would write the same files
                self._names = [file.name for file in files]
                for server in self._servers:
                    self._report.server(f"timed, {server.name}", server.command())
                    for file in files:
                        await asyncio.to_thread(register, server, file.name, file)
            except BaseException:
                self._stop()
                raise
            self._report.add("timed: start", True, seconds=round(time.monotonic() - began, 1))
        return self._servers

    async def _start(self, servers: Sequence[Server]) -> list[Server]:
        """Start Roundhouse and its peer at the same time. Raises NotStarted.

        A peer that does not start is left out, or Roundhouse would not be measured either.
        """
        for server in servers:
            self._stack.callback(server.stop)
            server.launch()
        first, *peers = servers
        await asyncio.to_thread(self._stack.enter_context, first)
        running = [first]
        for peer in peers:
            peer.start_within = START
            try:
                running.append(await asyncio.to_thread(self._stack.enter_context, peer))
                self._report.add(f"timed: start, {peer.name}", True)
            except NotStarted as fault:
                self._stock = False
                self._report.add(f"timed: start, {peer.name}", False, error=str(fault)[-1500:])
        return running

    def _stop(self) -> None:
        self._stack.close()
        self._servers = []

    def _body(self, model: str, letters: int, tokens: int) -> bytes:
        prompt = "".join(self._random.choices(LETTERS, k=letters))
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        return request_bytes("/v1/completions", {**body, **usage})

    async def _ask(self, server: Server, model: str, letters: int = 64, tokens: int = 1) -> Reply:
        reply = await one(server, self._body(model, letters, tokens))
        if reply.error is not None:
            raise Failed(f"{model} at {server.name}: {reply.error} {bytes(reply.body[-300:])!r}")
        return reply

    # --- parts ------------------------------------------------------------------------------------------------------
    async def _oracle(self) -> None:
        await correctness.graphs(self._report, self._device, self._work / "oracle", 4 if self._tiny else 20)
        (answers,) = bars.RIGHT["with compilation and graphs"]
        if self._tuned and not self._report.steps[answers]["ok"]:
            raise Failed(f"{len(self._report.steps[answers]['wrong'])} answers are wrong with the tuned kernels")

    async def _tiers(self) -> None:
        """Request base and adapter in turn. The order of the requests puts adapters into the tier to measure."""
        for server in await self._up():
            places, number = (2, 6) if self._tiny else (PLACES, 120)
            groups = {"device": self._names[:1], "host": self._names[1 : places + 3], "disk": self._names}
            for tier, names in groups.items():
                over = self._budget.until(SECONDS["tiers"] / 3 / (1 + self._stock))
                for name in names:
                    await self._ask(server, name)
                base, adapter = list[float](), list[float]()
                for turn in range(number):
                    base.append((await self._ask(server, server.model)).ttft)
                    adapter.append((await self._ask(server, names[turn % len(names)])).ttft)
                    if over():
                        break
                self._report.add(f"tiers: {tier}, {server.name}", True, requests=len(base), **compared(base, adapter))

    async def _storm(self) -> None:
        long = self._shape.prompt
        kinds = {
            "swaps and long prompts": (self._names, long), "long prompts": ([], long), "swaps": (self._names, 64),
            "alone": ([], 0), "base": ([], 64),
        }  # fmt: skip
        for server in await self._up():
            names_of = {kind: (names or [server.model], letters) for kind, (names, letters) in kinds.items()}
            for kind, (names, letters) in names_of.items():
                if self._budget.left < STORM and not self._tiny:
                    self._report.leave_out(f"storm: {kind}, {server.name}", "no time is left")
                    continue
                figures = await self._gaps(server, names or [server.model], letters, 1.0 if self._tiny else 6.0)
                self._report.add(f"storm: {kind}, {server.name}", True, **figures)

    async def _gaps(self, server: Server, names: Sequence[str], letters: int, seconds: float) -> dict[str, float]:
        """Measure gaps of base streams during a series of requests; during nothing if `letters` is 0."""
        over = asyncio.Event()
        count, tokens = (2, 60) if self._tiny else (STREAMS, 1000)
        with no_collections():
            streams = [
                asyncio.create_task(ask_until(over, server, lambda: self._body(server.model, 64, tokens)))
                for _ in range(count)
            ]
            await asyncio.sleep(0.2 if self._tiny else 1.0)
            began, others = time.perf_counter(), 0
            try:
                while time.perf_counter() - began < seconds:
                    if letters:
                        await self._ask(server, names[others % len(names)], letters)
                        others += 1
                    else:
                        await asyncio.sleep(0.05)
            finally:
                ended = time.perf_counter()
                over.set()
                replies = [reply for some in await asyncio.gather(*streams) for reply in some]
        if faults := Cell(replies).failures:
            raise Failed(f"streams at {server.name}: {dict(faults)}")
        gaps = [b - a for reply in replies for a, b in pairwise(reply.arrivals) if began <= b and a <= ended]
        figures = {f"p{q}_ms": round(percentile(gaps, q) * 1e3, 2) for q in (50, 99)}
        return {**figures, "longest_ms": round(max(gaps) * 1e3, 2), "gaps": len(gaps), "others": others}

    async def _mixed(self) -> None:
        crowd, tokens = (8, 16) if self._tiny else (CROWD, ANSWER)
        for server in await self._up():
            names = self._names[:20]
            rates = {}
            for kind, models in (("base", [server.model]), ("adapters", names)):
                for model in models:
                    await self._ask(server, model)
                cell = await closed_loop(
                    server, [self._body(models[i % len(models)], 64, tokens) for i in range(2 * crowd)], crowd
                )
                if cell.failures:
                    raise Failed(f"{kind} at {server.name}: {dict(cell.failures)}")
                rates[kind] = round(cell.tokens_per_second, 1)
            ratio = round(rates["adapters"] / rates["base"], 3)
            self._report.add(f"mixed: {server.name}", True, tokens_per_second=rates, ratio=ratio)

    async def _sweep(self) -> None:
        for server in await self._up():
            name = self._names[0]
            await self._ask(server, name)
            for length in (length for length in LENGTHS if length < self._shape.context):
                over = self._budget.until(SECONDS["sweep"] / len(LENGTHS) / (1 + self._stock))
                base, adapter = list[float](), list[float]()
                for _ in range(3 if self._tiny else 60):
                    base.append((await self._ask(server, server.model, length)).ttft)
                    adapter.append((await self._ask(server, name, length)).ttft)
                    if over():
                        break
                figures = {"requests": len(base), **compared(base, adapter)}
                self._report.add(f"sweep: {length} tokens, {server.name}", True, **figures)

    async def _ttft(self) -> None:
        servers, number = await self._up(), 3 if self._tiny else 100
        half = partial(self._budget.until, SECONDS["ttft"] / 2)
        await first_token.run(self._report, servers, self._ask, self._work / "stamps", number, half)

    async def _shipped(self) -> None:
        folder = self._folder("shipped")
        model = shipped.model(shipped.recipe_file(self._card), self._shape, folder)
        files = self._adapters(model)
        with Roundhouse(model.recipe.id, folder, [model.file], "--slots", "1") as server:
            self._report.server("shipped", server.command())
            for file in files:
                await asyncio.to_thread(register, server, file.name, file)
            await self._costs(server, "llama-8b.yaml", self._shape)
            names, seconds = [file.name for file in files], 1.0 if self._tiny else 6.0
            gaps = await self._gaps(server, names, self._shape.prompt, seconds)
            self._report.add("shipped: swaps and long prompts", True, **gaps)

    async def _larger(self) -> None:
        file = shipped.large_recipe_file(shipped.LARGE if self._tiny else self._card)
        if file is None:
            self._report.leave_out("larger", "no recipe of a larger model ships for a card of this size")
            return
        folder, shape = self._folder("larger"), LARGER
        if self._tiny:
            shape = replace(self._shape, kind=shape.kind)
        model = shipped.model(file, shape, folder)
        with Roundhouse(model.recipe.id, folder, [model.file], "--slots", "1") as server:
            self._report.server("larger", server.command())
            await self._costs(server, file.name, shape)

    async def _costs(self, server: Server, recipe: str, shape: Shape) -> None:
        """Add the figures of a recipe's `expected:`, from its load and from one stream."""
        await self._ask(server, server.model)
        arrivals = (await self._ask(server, server.model, 64, 200)).arrivals
        rate = 199 / (arrivals[-1] - arrivals[0])
        view = server.http.get(f"/v1/models/{server.model}").raise_for_status().json()
        weights = f"{shape.name} shape with random weights, so no file was read"
        costs = shipped.expected(view, self._report.environment, weights, rate)
        self._report.add(f"{shipped.STEP}{recipe}", True, **costs)

    async def _sleep(self) -> None:
        """Measure the seconds to fall asleep, and from a request that wakes the model to its first token."""
        folder = self._folder("sleep")
        model = self._model(folder, idle="2s")
        with Roundhouse(model.recipe.id, folder, [model.file], "--slots", "1") as server:
            self._report.server("sleep", server.command())

            def state() -> str:
                return str(server.http.get(f"/v1/models/{server.model}").json()["state"])

            async def has_left() -> bool:
                return state() != "ready"

            async def is_away() -> bool:
                return state() in correctness.AWAY

            for turn in range(1 if self._tiny else 3):
                await correctness.until(has_left, "the end of an idle model's time")
                seconds = await correctness.until(is_away, "its sleep")
                how = state()
                wake = round((await self._ask(server, server.model)).ttft, 3)
                ok = how == "asleep" or self._device == "cpu"  # which cannot sleep and unloads
                self._report.add(f"sleep: {turn + 1}", ok, state=how, seconds=seconds, wake_to_token=wake)
                if self._budget.left < 30:
                    break

    async def _encoders(self) -> None:
        os.environ["BARE_DEVICE"] = "cpu" if self._device == "cpu" else "cuda"
        recipes, folder = shipped.recipe_folder(self._card), self._work / "encoders"
        over = self._budget.until(SECONDS["encoders"])
        await encoders.run(self._report, recipes, folder, over, tiny=self._tiny)

    @property
    def _card(self) -> int:
        """Bytes of the card; 0 without one."""
        return 0 if self._device == "cpu" else nvml.gpu(self._device).total

    def _folder(self, name: str) -> Path:
        """Return a folder for files and a server, without an earlier server's data."""
        shutil.rmtree(self._work / name / "data", ignore_errors=True)
        return self._work / name

    def _adapters(self, model: Chat) -> list[Path]:
        """Write adapters for all models of this shape, once, as they take 84 MB each."""
        return write_adapters(self._work / "adapters", model.path, 6 if self._tiny else ADAPTERS, RANK)

    def _model(self, folder: Path, idle: str = "0s") -> Chat:
        base = write_base(folder / "base", self._shape, values=False)
        return large.without_weights(self._shape, base, folder, idle=idle, values=self._values)

    async def _speech(self) -> None:
        """Compare the shipped recipe with the library on the same device, as `make bench` does with the starter's."""
        os.environ["BARE_DEVICE"] = "cpu" if self._device == "cpu" else "cuda"
        folder = self._work / "speech"
        weights = write_whisper(folder / "model", TINY if self._tiny else TURBO)
        data: dict[str, Any] = yaml.safe_load((shipped.recipe_folder(self._card) / "whisper.yaml").read_text())
        data |= {"source": {"path": str(weights)}, "aliases": []}
        if self._tiny:
            data["dtype"] = "float32"
        file = folder / "whisper.yaml"
        file.write_text(yaml.safe_dump(data, sort_keys=False))
        bench = Bench("speech", RunSettings(quick=True, tiny=False, smoke=self._tiny, seed=0, work=folder))
        is_done = False
        try:
            view = await speech.measure(bench, file, weights)
            costs = shipped.expected(view, self._report.environment, shipped.TINY if self._tiny else shipped.RANDOM)
            self._report.add(f"{shipped.STEP}whisper.yaml", True, **costs)
            for what in ("alone", "four", "long"):
                bench.bar(f"{what}: speed over the library's", f"{what}.ratio", ">=", 1.0)
            is_done = True
        finally:
            self._report.add("speech", is_done and not bench.failures, **bench.result())

    async def _tune(self) -> None:
        if self._device == "cpu":
            self._report.leave_out("tune", "there is no GPU to tune kernels for")
            return
        folder = self._work / "tuned"
        seconds = min(float(TUNING), self._budget.left)
        result = await asyncio.to_thread(tune_lora.tune_apart, self._shape, RANK, PLACES, seconds, folder)
        if result["files"]:
            self._use_tuned(folder)
        self._report.keep(folder.glob("*.json"))
        self._report.add("tune", bool(result["files"]), **result)
