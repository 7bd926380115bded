"""The search for the best configuration of vLLM's LoRA kernels for each layer and batch, independent of a card.

Each candidate is timed for two sizes of batch, then the best of these for all others. The time is a sum over several
numbers of adapters in the batch, because vLLM's files do not distinguish them.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu.shapes import Shape
from models.chat.vllm import tuned

SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 2048)
"""Tokens of a step; vLLM takes the nearest. Few above 512, because each load's warm-up compiles their kernels."""
FIRST = (64, 512)
FINALISTS = 16
ACTIVE = (1, 4, 20)
"""Adapters in a batch."""
SLICES = tuple(map(str, range(1, 9)))
"""Parts of a layer: up to three with attention, five in Mamba-2, seven in Kimi's linear attention."""
Config = dict[str, int | None]


class Signature(NamedTuple):
    """A kernel and the layer that it is called for. `kind` is that of `tuned.file_name`."""

    kind: str
    slices: int
    inputs: int
    outputs: int


Time = Callable[[Signature, int, int, Config], float | None]
"""Seconds of one call for these tokens and adapters in the batch; None if it cannot run or its output is wrong."""


def signatures(shape: Shape, rank: int, kinds: Sequence[str]) -> list[Signature]:
    """Return one signature for each kind of layer: queries, keys and values; output; gate and up; down."""
    layers = {(3, shape.hidden, shape.hidden), (1, shape.hidden, shape.hidden),
              (2, shape.hidden, shape.ffn), (1, shape.ffn, shape.hidden)}  # fmt: skip
    distinct = {
        Signature(kind, slices, *((inputs, rank) if kind == "SHRINK" else (rank, outputs)))
        for kind, (slices, inputs, outputs) in product(kinds, layers)
    }
    return sorted(distinct)


def candidates(kind: str, rank: int) -> list[Config]:
    """Return the configurations to try."""
    fixed: Config = {"num_ctas": 1, "max_nreg": None}
    if kind == "SHRINK":
        choices = product((16, 32), (64, 128, 256), (4, 8, 16, 32), (2, 4, 8), (2, 3, 4))
        return [
            {"block_m": m, "block_n": 16, "block_k": k, "split_k": split, "num_warps": warps, "num_stages": stages,
             "group_size_m": 8, **fixed}
            for m, k, split, warps, stages in choices
        ]  # fmt: skip
    widths = sorted({16, min(32, max(16, rank))})
    return [
        {"block_m": m, "block_n": n, "block_k": k, "num_warps": warps, "num_stages": 2, **fixed}
        for m, n, k, warps in product((16, 32, 64), (64, 128, 256), widths, (2, 4, 8))
    ]


@dataclass
class Search:
    """Times candidates until `end`, by `clock`."""

    timed: Time
    end: float
    clock: Callable[[], float] = time.monotonic
    best: dict[tuple[Signature, int], Config] = field(default_factory=dict)
    """The fastest so far, by signature and tokens."""
    left_out: list[tuple[Signature, int]] = field(default_factory=list)

    def run(self, selected: Sequence[Signature], rank: int) -> None:
        """Time the sizes of `FIRST` for all signatures, then the others with the finalists of each signature.

        Sizes that are no multiple of 16 come last, because Triton compiles each kernel again for them, which takes
        longer than everything else.
        """
        finalists: dict[Signature, list[Config]] = {}
        for signature in selected:
            ranked = [self._rank(signature, size, candidates(signature.kind, rank)) for size in FIRST]
            finalists[signature] = [config for some in ranked for config in some[:FINALISTS]]
        for size, signature in product(sorted(SIZES, key=lambda size: size % 16 != 0), selected):
            if size not in FIRST:
                self._rank(signature, size, finalists[signature])

    def _rank(self, signature: Signature, size: int, configs: list[Config]) -> list[Config]:
        """Return the configurations, the fastest first. Empty if there was no time for this size."""
        if not configs or self.clock() > self.end:
            self.left_out.append((signature, size))
            return []
        times: list[tuple[float, int]] = []
        for number, config in enumerate(configs):
            parts = [self.timed(signature, size, active, config) for active in ACTIVE if active <= max(size, 1)]
            if None not in parts:
                times.append((sum(part for part in parts if part is not None), number))
            if self.clock() > self.end and times:
                break
        ranked = [configs[number] for _, number in sorted(times)]
        if ranked:
            self.best[signature, size] = ranked[0]
        return ranked


Table = dict[str, dict[str, dict[str, dict[str, dict[str, Config]]]]]


def table_of(search: Search, kind: str, places: int) -> Table | None:
    """Return vLLM's table for all numbers of slices, as a missing one crashes the engine; None without results."""
    by_slices: dict[str, dict[str, dict[str, dict[str, Config]]]] = {}
    for (signature, size), config in sorted(search.best.items(), key=lambda one: one[0]):
        if signature.kind == kind:
            by_size = by_slices.setdefault(str(signature.slices), {})
            by_size.setdefault(str(size), {}).setdefault(str(signature.inputs), {})[str(signature.outputs)] = config
    if not by_slices:
        return None
    nearest = {slices: min(by_slices, key=lambda tuned: abs(int(tuned) - int(slices))) for slices in SLICES}
    return {str(places + 1): {slices: by_slices[source] for slices, source in nearest.items()}}


def write(search: Search, kinds: Sequence[str], places: int, card: str, folder: Path) -> Iterator[Path]:
    """Write a file for each kind that was tuned; yields the paths."""
    for kind in kinds:
        if (table := table_of(search, kind, places)) is not None:
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / tuned.file_name(card, kind)
            file.write_text(json.dumps(table, indent=1) + "\n")
            yield file
