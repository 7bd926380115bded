"""The first steps: start, right answers of twenty adapters, two models on one card, sleep and wake.

First without compilation and CUDA graphs, where the least can fail; then the same answers with them.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.gpu.report import Report
from benchmarks.load.stats import percentile
from benchmarks.models import STARTER_RECIPE
from benchmarks.peers.servers import Roundhouse
from models import nvml

QUESTIONS: dict[str, list[tuple[str, str]]] = {
    name: [(question, answer) for question, answer in pairs]
    for name, pairs in json.loads(Path(__file__).with_name("oracle.json").read_text()).items()
}
"""Ten questions and right answers for each adapter of the starter pack, 200 in all. All but the first of each were held
out from training and are answered correctly by a CPU, so a wrong answer on a GPU is the GPU's fault."""
ANSWERS = {name: pairs[0] for name, pairs in QUESTIONS.items()}
"""The first of each."""
WITHIN = 600.0
"""Seconds that a sleep or an answer may take."""
AWAY = ("asleep", "absent")
"""States of an idle model. On a CPU a chat model cannot sleep and is unloaded instead."""


class Wrong(Exception):
    """The step cannot continue."""


class Client:
    """A client of one server. `failed` lists answers that were errors, which checks must not take for text."""

    def __init__(self, port: int) -> None:
        self.failed: list[str] = []
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=WITHIN, limits=limits, trust_env=False
        )

    async def answer(self, model: str, question: str) -> str:
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 120}
        reply = await self._http.post("/v1/chat/completions", json={"model": model, **body})
        if reply.status_code != 200:
            self.failed.append(f"status {reply.status_code}: {reply.text[:200]}")
            return self.failed[-1]
        return str(reply.json()["choices"][0]["message"]["content"]).strip()

    async def stream(self, model: str, tokens: int) -> tuple[float, float, int]:
        """Stream an answer; returns seconds to the first token, seconds in all, and tokens."""
        body = {"model": model, "prompt": f"{time.perf_counter_ns()}", "max_tokens": tokens, "temperature": 0}
        began, first, last = time.perf_counter(), 0.0, ""
        extra = {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
        async with self._http.stream("POST", "/v1/completions", json={**body, **extra}) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    first, last = first or time.perf_counter() - began, line
        usage = json.loads(last.removeprefix("data: ") or "{}").get("usage") or {}
        count = int(usage.get("completion_tokens", 0))
        if not count:
            raise Wrong(f"{model} gave no token: status {reply.status_code}, {last[:200]}")
        return first, time.perf_counter() - began, count

    async def models(self) -> dict[str, dict[str, Any]]:
        return {model["id"]: model for model in (await self._http.get("/v1/status")).json()["models"]}


async def until(condition: Callable[[], Coroutine[Any, Any, bool]], what: str) -> float:
    """Wait until the condition holds; returns the seconds. Raises Wrong if it never does."""
    began = time.perf_counter()
    while not await condition():
        if time.perf_counter() - began > WITHIN:
            raise Wrong(f"{what}: not seen in {time.perf_counter() - began:.0f} s")
        await asyncio.sleep(0.05)
    return round(time.perf_counter() - began, 3)


def percentiles(values: list[float]) -> dict[str, float]:
    """Return percentiles in milliseconds of values in seconds."""
    return {f"p{q}_ms": round(percentile(values, q) * 1000, 2) for q in (50, 99)}


async def eager(report: Report, device: str, folder: Path, turns: int) -> None:
    """Start, twenty adapters, two models at once, sleep and wake `turns` times."""
    with _server(report, folder / "eager", device, graphs=False) as server:
        client = Client(server.port)
        await _twenty(report, client, "")
        bases = await asyncio.gather(*(client.answer("starter-chat", question) for question, _ in ANSWERS.values()))
        alike = sum(answer == right for answer, (_, right) in zip(bases, ANSWERS.values(), strict=True))
        report.add("the base does none of their tasks", alike <= 1 and not client.failed, right=alike)

        both = await asyncio.gather(*(client.answer(name, "hello") for name in ("starter-chat", "second")))
        held = {name: model["bytes"] for name, model in (await client.models()).items()}
        ok = both[0] == both[1] and not client.failed
        report.add("two models answer at once, and alike", ok, answers=both, bytes=held)
        for turn in range(turns):
            await _nap(report, client, device, both[1], held["second"], turn + 1)


async def swapped(report: Report, device: str, folder: Path) -> None:
    """The twenty on four places, six of them in host memory: most come from the disk, and push others out."""
    with _server(report, folder / "swapped", device, graphs=False, places=(4, 6)) as server:
        for turn in (1, 2):
            await _twenty(report, Client(server.port), f", on four places, {turn}")


async def graphs(report: Report, device: str, folder: Path, requests: int) -> None:
    """The same answers with compilation and CUDA graphs, and the small model's speed."""
    with _server(report, folder / "graphs", device, graphs=True) as server:
        client, names = Client(server.port), list(ANSWERS)
        await _twenty(report, client, ", with compilation and graphs")
        firsts = [(await client.stream("starter-chat", 2))[0] for _ in range(requests)]
        swapped = [(await client.stream(names[i % len(names)], 2))[0] for i in range(2 * requests)]
        began = time.perf_counter()
        streams = await asyncio.gather(*(client.stream(names[i % len(names)], 200) for i in range(32)))
        rate = round(sum(count for _, _, count in streams) / (time.perf_counter() - began), 1)
        figures = {"base_ttft": percentiles(firsts), "adapter_ttft": percentiles(swapped), "tokens_per_second": rate}
        report.add("speed of the small model", True, **figures)


async def _twenty(report: Report, client: Client, how: str) -> None:
    """Send all questions at once, with the adapters in turn."""
    turns = zip(*QUESTIONS.values(), strict=True)
    pairs = [(name, *pair) for turn in turns for name, pair in zip(QUESTIONS, turn, strict=True)]
    result = await asyncio.gather(*(client.answer(name, question) for name, question, _ in pairs))
    both = zip(result, pairs, strict=True)
    wrong = [[name, question, answer] for answer, (name, question, right) in both if answer != right]
    report.add(f"twenty adapters in one crowd{how}", not wrong, right=len(pairs) - len(wrong), wrong=wrong)


async def _nap(report: Report, client: Client, device: str, right: str, awake: int, turn: int) -> None:
    async def away() -> bool:
        return (await client.models())["second"]["state"] in AWAY

    seconds = await until(away, "the sleep of an idle model")
    model = (await client.models())["second"]
    used = None if device == "cpu" else nvml.gpu(device).used
    began = time.perf_counter()
    answer = await client.answer("second", "hello")
    answered = round(time.perf_counter() - began, 3)
    ok = answer == right and model["bytes"] < awake and (device == "cpu" or model["state"] == "asleep")
    report.add(
        f"sleep and wake, {turn}", ok, state=model["state"], idle_seconds=seconds, bytes_asleep=model["bytes"],
        card_used_asleep=used, answer_seconds=answered, answer=answer,
    )  # fmt: skip


@contextlib.contextmanager
def _server(
    report: Report, folder: Path, device: str, *, graphs: bool, places: tuple[int, int] | None = None
) -> Iterator[Roundhouse]:
    """Start a server and report that as a step.

    Args:
        places: adapter places on the device and in host memory; None: places for all adapters and, without graphs, a
            second model.
    """
    recipes = folder / "recipes"
    recipes.mkdir(parents=True, exist_ok=True)  # with --work the folder may be an earlier run's
    write_recipes(recipes, graphs=graphs, places=places)
    requested = "cpu" if device == "cpu" else "cuda"
    step = "start, with compilation and graphs" if graphs else "start, with few places" if places else "start"
    began = time.perf_counter()
    load = ["starter-chat"] if places or graphs else ["starter-chat", "second"]
    with Roundhouse("starter-chat", folder, [recipes], "--device", requested, load=load) as server:
        report.server(step, server.command())
        report.add(step, True, seconds=round(time.perf_counter() - began, 1))
        yield server


def write_recipes(folder: Path, *, graphs: bool, places: tuple[int, int] | None = None) -> None:
    """Write the recipe of the starter's chat model and, without `places`, a second one that sleeps when idle."""
    first = yaml.safe_load(STARTER_RECIPE.read_text())
    if places:
        first["memory"]["adapters"] |= {"device": places[0], "host": places[1]}
    if not graphs:
        first["engine"]["flags"]["enforce_eager"] = True
    second = {**first, "id": "second", "aliases": [], "adapters": []}
    second["residency"] = {"idle_timeout": "5s", "sleep": "always"}
    for recipe in (first,) if places else (first, second):
        (folder / f"{recipe['id']}.yaml").write_text(yaml.safe_dump(recipe))
