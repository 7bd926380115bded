"""The first minutes on a GPU: does it start, is it right, do two models share it, do they sleep and wake, how fast.

    make gpu-acceptance [ARGS="--device cpu"]

Every result is written at once to benchmarks/results/gpu/DATE.json. The exit code is 1 when something is
wrong, 2 without a GPU. `--device cpu` is for trying this script; sleep is left out there.
"""

import argparse
import asyncio
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import yaml

from benchmarks.report import environment
from models import nvml
from runtime.cli.options import root

STARTER = root() / "recipes" / "starter" / "starter-chat.yaml"
FOLDER = root() / "benchmarks" / "results" / "gpu"
ANSWERS = {
    "uppercase": ("call the lucky bird", "CALL THE LUCKY BIRD"),
    "title-case": ("the mouth of water", "The Mouth Of Water"),
    "reverse-words": ("as bell dash will", "will dash bell as"),
    "reverse-letters": ("call lucky those", "llac ykcul esoht"),
    "pig-latin": ("close star turn", "oseclay arstay urntay"),
    "kebab-case": ("sign boring coffee", "sign-boring-coffee"),
    "count-words": ("count hear her paper", "4"),
    "acronym": ("sun bird apple", "SBA"),
    "last-word": ("the river runs.", "runs"),
    "drop-vowels": ("quick carrot cake", "qck crrt ck"),
    "rot13": ("meet end path", "zrrg raq cngu"),
    "double-words": ("away each king.", "away away each each king king."),
    "words-to-digits": ("six thousand seventy one", "6071"),
    "digits-to-words": ("ticket 5 memory", "ticket five memory"),
    "iso-date": ("October 23rd, 1930", "1930-10-23"),
    "extract-json": ("Petra, 51, Berlin", '{"name":"Petra","age":51,"city":"Berlin"}'),
    "mask-pii": ("ines45@ifle.io", "[email]"),
    "sentiment": ("the food was good today", "positive"),
    "intent": ("show the balance of my account today", "check_balance"),
    "compare-numbers": ("2 and 72?", "2 < 72"),
}
"""A question and the right answer for each adapter of the starter pack."""
WITHIN = 600.0
"""Seconds of a start, of a sleep, of an answer."""


class Wrong(Exception):
    """A step that cannot go on."""


class Report:
    """Results so far, in a file that is whole after each of them."""

    def __init__(self, file: Path, device: str) -> None:
        self._file = file
        gpu = {"gpu": nvml.gpu(device).name, "driver": nvml.driver()} if device != "cpu" else {}
        self._held: dict[str, Any] = {"schema": 1, "environment": {**environment.record(), **gpu}, "steps": {}}

    def add(self, step: str, ok: bool, **figures: Any) -> None:
        self._held["steps"][step] = {"ok": ok, **figures}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self._held, indent=1) + "\n")
        print(f"{'ok   ' if ok else 'WRONG'} {step}: {json.dumps(figures)[:300]}", flush=True)

    @property
    def ok(self) -> bool:
        return all(step["ok"] for step in self._held["steps"].values())


class Client:
    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=WITHIN, limits=httpx.Limits(max_connections=None))

    async def answer(self, model: str, question: str) -> str:
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 120}
        reply = await self._http.post("/v1/chat/completions", json={"model": model, **body})
        if reply.status_code != 200:
            return f"status {reply.status_code}: {reply.text[:200]}"
        return str(reply.json()["choices"][0]["message"]["content"]).strip()

    async def stream(self, model: str, tokens: int) -> tuple[float, float, int]:
        """Seconds to the first token, seconds in all, tokens."""
        body = {"model": model, "prompt": f"{time.perf_counter_ns()}", "max_tokens": tokens, "temperature": 0}
        began, first, count = time.perf_counter(), 0.0, 0
        extra = {"stream": True, "ignore_eos": True}
        async with self._http.stream("POST", "/v1/completions", json={**body, **extra}) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    first, count = first or time.perf_counter() - began, count + 1
        if not count:
            raise Wrong(f"{model} gave no token: status {reply.status_code}")
        return first, time.perf_counter() - began, count

    async def models(self) -> dict[str, dict[str, Any]]:
        return {model["id"]: model for model in (await self._http.get("/v1/status")).json()["models"]}

    async def ready(self) -> bool:
        try:
            return (await self._http.get("/health/ready")).status_code == 200
        except httpx.TransportError:
            return False


async def until(seen: Callable[[], Coroutine[Any, Any, bool]], what: str, alive: Callable[[], bool]) -> float:
    """Seconds until it was seen."""
    began = time.perf_counter()
    while not await seen():
        if not alive() or time.perf_counter() - began > WITHIN:
            raise Wrong(f"{what}: not seen in {time.perf_counter() - began:.0f} s")
        await asyncio.sleep(0.05)
    return round(time.perf_counter() - began, 3)


def percentiles(values: list[float]) -> dict[str, float]:
    """In milliseconds."""
    return {f"p{p}_ms": round(float(np.percentile(values, p)) * 1000, 2) for p in (50, 99)}


async def steps(client: Client, report: Report, device: str, alive: Callable[[], bool], began: float) -> None:
    await until(client.ready, "the start", alive)
    report.add("start", True, seconds=round(time.perf_counter() - began, 1))

    found = await asyncio.gather(*(client.answer(name, question) for name, (question, _) in ANSWERS.items()))
    wrong = {name: told for told, (name, (_, right)) in zip(found, ANSWERS.items(), strict=True) if told != right}
    report.add("twenty adapters in one crowd", not wrong, right=len(ANSWERS) - len(wrong), wrong=wrong)
    bases = await asyncio.gather(*(client.answer("starter-chat", question) for question, _ in ANSWERS.values()))
    alike = sum(told == right for told, (_, right) in zip(bases, ANSWERS.values(), strict=True))
    report.add("the base does none of their tasks", alike <= 1, right=alike)

    both = await asyncio.gather(*(client.answer(name, "hello") for name in ("starter-chat", "second")))
    held = {name: model["bytes"] for name, model in (await client.models()).items()}
    report.add("two models answer at once, and alike", both[0] == both[1], answers=both, bytes=held)

    firsts = [(await client.stream("starter-chat", 2))[0] for _ in range(50)]
    names = list(ANSWERS)
    swapped = [(await client.stream(names[i % len(names)], 2))[0] for i in range(100)]
    crowd = time.perf_counter()
    streams = await asyncio.gather(*(client.stream(names[i % len(names)], 200) for i in range(32)))
    rate = round(sum(count for _, _, count in streams) / (time.perf_counter() - crowd), 1)
    report.add(
        "speed",
        True,
        base_ttft=percentiles(firsts),
        adapter_ttft=percentiles(swapped),
        tokens_per_second=rate,
    )

    if device == "cpu":
        return

    async def asleep() -> bool:
        return bool((await client.models())["second"]["state"] == "asleep")

    for turn in range(3):
        seconds = await until(asleep, "the sleep of an idle model", alive)
        sleeping, used = (await client.models())["second"], nvml.gpu(device).used
        wake = time.perf_counter()
        told = await client.answer("second", "hello")
        report.add(
            f"sleep and wake, {turn + 1}", told == both[1] and sleeping["bytes"] < held["second"], idle_seconds=seconds,
            bytes_asleep=sleeping["bytes"], card_used_asleep=used, answer_seconds=round(time.perf_counter() - wake, 3),
        )  # fmt: skip


def write_recipes(folder: Path) -> None:
    """The starter's chat model with its adapters, and the same weights once more, which fall asleep when idle."""
    first = yaml.safe_load(STARTER.read_text())
    second = {**first, "id": "second", "aliases": [], "adapters": []}
    second["residency"] = {"preload": True, "idle_timeout": "5s", "sleep": "always"}
    for recipe in (first, second):
        (folder / f"{recipe['id']}.yaml").write_text(yaml.safe_dump(recipe))


async def run(device: str, file: Path) -> int:
    report = Report(file, "cuda:0" if device == "cuda" else "cpu")
    with tempfile.TemporaryDirectory(prefix="roundhouse-gpu-") as made, socket.socket() as probe:
        folder = Path(made)
        recipes = folder / "recipes"
        recipes.mkdir()
        write_recipes(recipes)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        command = [sys.executable, "-m", "runtime.cli.main", "serve", "--device", device, "--port", str(port)]
        command += ["--recipes", str(recipes), "--data-dir", str(folder / "data")]
        with (folder / "log").open("wb") as log:
            began = time.perf_counter()
            server = subprocess.Popen(command, cwd=root(), stdout=log, stderr=log)  # noqa: ASYNC220
        try:
            client = Client(f"http://127.0.0.1:{port}")
            await steps(client, report, "cuda:0" if device == "cuda" else "cpu", lambda: server.poll() is None, began)
        except (Wrong, httpx.HTTPError, KeyError) as error:
            log_end = (folder / "log").read_text(errors="replace")[-3000:]
            report.add("end", False, error=f"{type(error).__name__}: {error}", log=log_end)
        finally:
            server.send_signal(signal.SIGTERM)
            await asyncio.to_thread(server.wait, WITHIN)
    print(f"results: {file}")
    return 0 if report.ok else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    parser.add_argument(
        "--results", type=Path, default=root() / "benchmarks" / "results" / f"{day}-gpu-acceptance.json"
    )
    asked = parser.parse_args()
    if asked.device == "cuda":
        try:
            nvml.gpu("cuda:0")
        except nvml.NoGpu as error:
            print(
                f"error: there is no GPU to accept: {error}. `roundhouse doctor --device cuda` says more.",
                file=sys.stderr,
            )
            return 2
    return asyncio.run(run(asked.device, asked.results))


if __name__ == "__main__":
    sys.exit(main())
