"""Figures of adapters for Prometheus, and facts from models' files for lists."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from registry.base.json import NOT_JSON
from registry.errors import Unfit
from registry.files.context import abilities_of
from registry.files.weights import read_weights
from registry.records import Adapter
from runtime.gateway.metrics import Metrics
from runtime.gateway.sinks.operators import MAX_ADAPTERS, OTHER
from runtime.residency.entry import ModelEntry
from runtime.scheduling.queue import ModelQueue

TIERS = ("device", "host", "disk")
SUMMED_FIGURES = ("bytes", "running", "waiting", "hits", "misses", "evictions")
"""Figures that can be summed meaningfully."""


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """Snapshot of an adapter's figures."""

    labels: tuple[str, str]
    """Model, adapter."""
    tier: str
    digest: str
    version: str
    rank: int
    bytes: int
    pinned: bool
    running: int
    waiting: int
    hits: int
    misses: int
    evictions: int
    seconds: dict[str, float]


def row(adapter: Adapter, queue: ModelQueue) -> AdapterRow:
    """The figures of an adapter's current version. O(1)."""
    current = adapter.current
    status = queue.adapter_status(current.digest)
    stats = queue.adapter_stats(current.digest)
    return AdapterRow(
        labels=(adapter.key.base, adapter.key.label),
        tier="disk" if status.tier == "staging" else status.tier,
        digest=current.digest, version=current.tag, rank=current.rank, bytes=current.bytes, pinned=adapter.pinned,
        running=status.running, waiting=status.waiting, hits=status.hits, misses=status.misses,
        evictions=status.evictions,
        seconds={"stage": stats.stage_seconds, "place": stats.place_seconds} if stats else {},
    )  # fmt: skip


def bounded(
    rows: Sequence[AdapterRow], most: int = MAX_ADAPTERS
) -> tuple[Sequence[AdapterRow], dict[tuple[str, str], int]]:
    """Return the rows to show, and sums over the others by model and figure."""
    if len(rows) <= most:
        return rows, {}
    in_order = sorted(rows, key=lambda row: (row.running + row.waiting, row.tier != "disk", row.hits + row.misses))
    rest = Counter[tuple[str, str]]()
    for one in in_order[:-most]:
        for name in SUMMED_FIGURES:
            rest[one.labels[0], name] += getattr(one, name)
    return in_order[-most:], rest


def fill(metrics: Metrics, rows: Sequence[AdapterRow]) -> None:
    """Set the series of all adapters and drop stale ones. Blocks: some µs each."""
    series = {
        "rank": metrics.adapter_rank, "bytes": metrics.adapter_bytes, "pinned": metrics.adapter_pinned,
        "running": metrics.adapter_running, "waiting": metrics.adapter_waiting, "hits": metrics.adapter_hits,
        "misses": metrics.adapter_misses, "evictions": metrics.adapter_evictions,
    }  # fmt: skip
    for gauge in (*series.values(), metrics.adapter, metrics.adapter_info, metrics.adapter_last):
        gauge.clear()
    known = {row.labels for row in rows}
    for of_adapter in metrics.of_adapters:
        for family in of_adapter.collect():
            for model, adapter in {(s.labels["model"], s.labels["adapter"]) for s in family.samples}:
                if adapter != OTHER and (model, adapter) not in known:
                    metrics.drop(of_adapter, model=model, adapter=adapter)
    visible, rest = bounded(rows)
    for (model, name), value in rest.items():
        series[name].labels(model, OTHER).set(value)
    for one in visible:
        for name, gauge in series.items():
            gauge.labels(*one.labels).set(getattr(one, name))
        for tier in TIERS:
            metrics.adapter.labels(*one.labels, tier).set(one.tier == tier)
        metrics.adapter_info.labels(*one.labels, one.version, one.digest).set(1)
        for step, seconds in one.seconds.items():
            metrics.adapter_last.labels(*one.labels, step).set(seconds)


class _Text(msgspec.Struct):
    hidden_size: int = 0


class _Quantization(msgspec.Struct):
    quant_method: str = ""


class _Config(_Text):
    model_type: str = ""
    text_config: _Text | None = None
    quantization_config: _Quantization | None = None


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts from a model's files. Empty if files are missing or do not contain them."""

    bytes: int = 0
    parameters: int = 0
    quantization: str = ""
    format: str = ""
    architecture: str = ""
    width: int = 0
    """Dimensions of a hidden state or an embedding."""
    abilities: tuple[str, ...] = ()


def file_facts(entry: ModelEntry) -> FileFacts:
    """Read facts from a model's files. Call it in a thread, since it may read the headers of the weights."""
    facts = FileFacts() if entry.path is None else _by_files(entry.path, entry.revision)
    abilities = tuple(sorted(abilities_of(entry.recipe, entry.path)))
    return msgspec.structs.replace(facts, abilities=abilities)


@lru_cache(maxsize=1024)
def _by_files(folder: Path, _revision: str) -> FileFacts:
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes(), type=_Config)
    except (OSError, *NOT_JSON):
        config = _Config()
    width = config.hidden_size or (config.text_config or _Text()).hidden_size
    facts = FileFacts(architecture=config.model_type, width=width)
    try:
        weights = read_weights(folder)
    except Unfit:
        return facts
    main_type = max(weights.elements, key=lambda kind: weights.elements[kind], default="")
    method = (config.quantization_config or _Quantization()).quant_method
    return msgspec.structs.replace(
        facts,
        bytes=weights.bytes,
        parameters=weights.parameters,
        quantization=method.upper() or main_type,
        format="safetensors" if any(name.endswith(".safetensors") for name in weights.files) else "",
    )
