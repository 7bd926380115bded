"""Chat engines' own metrics, under vLLM's names, labelled with `model_name`.

| model is                | series                                                                        |
|-------------------------|-------------------------------------------------------------------------------|
| in memory or asleep     | all of its vLLM's; they start at zero with each load                          |
| the same, but silent    | as if it were not in memory                                                   |
| not in memory           | only running (0) and waiting requests, so that an autoscaler can use them     |

Requests that wait in the gateway count as waiting too. Few ever wait inside vLLM, since the gateway sends only as many
as it has room for.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from registry.recipes.definition import Task
from runtime.residency.entry import ModelEntry
from runtime.residency.states import ModelState

TIMEOUT = 1.0
"""Seconds to wait for a slot, so that one that hangs does not delay the metrics of all others."""
LOADED = frozenset({ModelState.READY, ModelState.DRAINING, ModelState.ASLEEP})
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
MODEL = re.compile(r'model_name="[^"]*"')
HEADS = {
    RUNNING: "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
    "# TYPE vllm:num_requests_running gauge",
    WAITING: "# HELP vllm:num_requests_waiting Number of requests waiting, in the gateway or in the engine.\n"
    "# TYPE vllm:num_requests_waiting gauge",
}


async def engine_texts(entries: Iterable[ModelEntry]) -> dict[str, str]:
    """Fetch the series of each chat engine, by replica. Replicas are numbered with vLLM's `engine` label."""
    chat = [entry for entry in entries if entry.recipe.task is Task.CHAT]
    texts = await asyncio.gather(*(_series_of(entry) for entry in chat))
    return {entry.id: text for entry, text in zip(chat, texts, strict=True)}


def engine_series(texts: Mapping[str, str], entries: Iterable[ModelEntry]) -> bytes:
    """Build the Prometheus text. Empty without chat models."""
    waiting = Counter[str]()
    for entry in entries:
        if entry.id in texts:
            waiting[entry.model] += entry.queue.waiting
    return merged(texts.values(), waiting) if texts else b""


async def _series_of(entry: ModelEntry) -> str:
    if entry.link is None or entry.state not in LOADED:
        return ""
    text = (await entry.link.counted(TIMEOUT)).decode()
    return text if entry.number == 1 else text.replace('engine="0"', f'engine="{entry.number - 1}"')


def merged(texts: Iterable[str], waiting: Mapping[str, int]) -> bytes:
    """Join texts so that each metric family appears once. `waiting`: requests by chat model."""
    heads, samples = dict(HEADS), {name: list[str]() for name in HEADS}
    for text in texts:
        own_label = MODEL.search(text)
        family = ""
        for line in text.splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                family = name if name.startswith("vllm:") and not name.endswith("_created") else ""
                if family:
                    heads.setdefault(family, line)
                    samples.setdefault(family, [])
            elif line.startswith("# TYPE "):
                if family and "\n" not in heads[family]:
                    heads[family] += f"\n{line}"
            elif family and own_label:
                samples[family].append(line if "model_name=" in line else _with_label(line, own_label[0]))
    for model, count in waiting.items():
        label = f'model_name="{model}"'
        at = next((i for i, line in enumerate(samples[WAITING]) if label in line), None)
        if at is not None:
            samples[WAITING][at] = _add_to_sample(samples[WAITING][at], count)
        for name, value in ((RUNNING, 0), (WAITING, count)):
            if not any(label in line for line in samples[name]):
                samples[name].append(f'{name}{{engine="0",{label}}} {float(value)}')
    return "".join("\n".join((heads[name], *lines, "")) for name, lines in samples.items() if lines).encode()


def add_families(own: bytes, text: bytes) -> bytes:
    """Add families of Prometheus text to OpenMetrics, whose counters lack `_total`."""
    lines = text.decode().splitlines()
    counters = {words[2] for line in lines if line.startswith("# TYPE ") and (words := line.split())[3] == "counter"}
    for number, line in enumerate(lines):
        words = line.split(" ", 3)
        if line.startswith("# ") and words[2] in counters:
            lines[number] = " ".join((*words[:2], words[2].removesuffix("_total"), words[3]))
    return b"".join((own.removesuffix(b"# EOF\n"), "".join(f"{line}\n" for line in lines).encode(), b"# EOF\n"))


def _with_label(line: str, label: str) -> str:
    """Label a sample of which two models would export the same, such as `vllm:cache_config_info`."""
    name, brace, rest = line.partition("{")
    if brace:
        return f"{name}{{{label},{rest}"
    name, _, value = line.partition(" ")
    return f"{name}{{{label}}} {value}"


def _add_to_sample(line: str, count: int) -> str:
    series, _, value = line.rpartition(" ")
    return f"{series} {float(value) + count}"
