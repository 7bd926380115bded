"""The settings of a run, and the record of a benchmark: turns between servers, figures, bars."""

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from benchmarks.load.clients import Cell
from benchmarks.load.stats import Figure
from benchmarks.peers import processes
from benchmarks.peers.servers import Server, start_all
from benchmarks.report import environment

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of a run.

    Attributes:
        quick: fewer rounds, requests and settings, for a rough result.
        tiny: a generated model with random weights in place of the starter pack.
        smoke: the smallest run that reaches every line; its figures mean nothing.
        work: a folder for data, logs and generated files.
        real: SmolLM2-135M-Instruct in place of the starter pack.
    """

    quick: bool
    tiny: bool
    smoke: bool
    seed: int
    work: Path
    real: bool = False

    @property
    def model(self) -> str:
        """The chat model: starter, tiny or real."""
        return "real" if self.real else "tiny" if self.tiny else "starter"

    def pick(self, full: T, quick: T, smoke: T | None = None) -> T:
        """Return the size for a full, a quick or a smoke run."""
        if self.smoke and smoke is not None:
            return smoke
        return quick if self.quick or self.smoke else full

    @property
    def rounds(self) -> int:
        return self.pick(3, 2, 1)

    @property
    def starts(self) -> int:
        return self.pick(4, 2, 1)


@dataclass(frozen=True, slots=True)
class Aim:
    """An aim and its result. `seen` is the median over rounds; `met` is None if nothing was measured."""

    name: str
    seen: float | None
    relation: Literal["<=", ">="]
    aim: float
    unit: str
    met: bool | None


@dataclass
class Bench:
    """The record of one benchmark: figures, aims, failures."""

    name: str
    settings: RunSettings
    figures: dict[str, Figure] = field(default_factory=dict)
    bars: list[Aim] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    series: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)
    load_before: dict[str, Any] = field(default_factory=environment.load)

    def say(self, text: str) -> None:
        """Print progress to standard error."""
        print(f"[{self.name} {time.perf_counter() - self.began:6.1f} s] {text}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Add a remark that a reader needs to interpret the figures."""
        self.notes.append(text)
        self.say(text)

    def figure(self, name: str, values: Sequence[float], unit: str) -> Figure | None:
        """Record a figure from one value per round. Without values returns None and counts a failure."""
        if not values:
            self.failures[f"{name}: nothing measured"] += 1
            return None
        figure = self.figures[name] = Figure.over(values, unit)
        self.say(f"{name} = {figure.value:.4g} {unit} ({figure.low:.4g} to {figure.high:.4g})")
        return figure

    def chat_figures(self, key: str, cells: Sequence[Cell]) -> list[Cell]:
        """Record latencies and throughput of chat from one cell per round; returns the cells with an answer."""
        good = [cell for cell in cells if cell.good]
        for q in (50, 99):
            self.figure(f"{key}.ttft_p{q}", [cell.ttft_ms(q) for cell in good], "ms")
            self.figure(f"{key}.gap_p{q}", [cell.gap_ms(q) for cell in good], "ms")
        self.figure(f"{key}.tokens_per_second", [cell.tokens_per_second for cell in good], "tokens/s")
        return good

    def bar(self, name: str, figure: str, relation: Literal["<=", ">="], aim: float) -> None:
        """Compare a recorded figure with an aim."""
        measured = self.figures.get(figure)
        if measured is None:
            self.bars.append(Aim(name, None, relation, aim, "", None))
            return
        met = measured.value <= aim if relation == "<=" else measured.value >= aim
        self.bars.append(Aim(name, measured.value, relation, aim, measured.unit, met))

    def count(self, where: str, cell: Cell) -> None:
        """Count the requests of a cell and its failures."""
        self.counts[where] += len(cell.replies)
        for error, number in cell.failures.items():
            self.failures[f"{where}: {error}"] += number

    async def turns(
        self, servers: Sequence[Server], run: Callable[[Server, int], Awaitable[T]], rounds: int | None = None
    ) -> Mapping[str, Sequence[T]]:
        """Run rounds in the order A B A B ...; returns the results of each server's rounds by its name.

        A turn begins once all servers are idle after the turn before. rounds: default: the settings'.
        """
        results: dict[str, list[T]] = defaultdict(list)
        for number in range(rounds or self.settings.rounds):
            for server in servers:
                if len(servers) > 1:
                    await self.rest(servers, server)
                results[server.name].append(await run(server, number))
        return results

    async def starts(
        self, servers: Callable[[int], list[Server]], run: Callable[[Sequence[Server], int], Awaitable[None]]
    ) -> None:
        """Measure the settings' number of starts, since one can be 8 % faster than the next.

        Args:
            servers: returns new servers for a start, by its number. Every other start reverses their order.
            run: measures one round.
        """
        for number in range(self.settings.starts):
            with ExitStack() as stack:
                started = servers(number)
                if number % 2:
                    started.reverse()
                start_all(stack, started)
                self.say(f"start {number + 1} of {self.settings.starts}: the servers are ready")
                await run(started, number)

    async def rest(self, servers: Sequence[Server], following: Server) -> None:
        """Wait until all servers are idle. Adds a note if they are not when the turn of `following` begins."""
        if not await processes.come_to_rest([server.pid for server in servers]):
            self.note(f"a turn of {following.name} began while other servers were still busy")

    def result(self) -> dict[str, Any]:
        """Return the benchmark's section of the results file."""
        return {
            "seconds": round(time.perf_counter() - self.began, 1),
            "requests": dict(self.counts),
            "failures": dict(self.failures),
            "figures": {name: asdict(figure) for name, figure in self.figures.items()},
            "bars": [asdict(bar) for bar in self.bars],
            "notes": self.notes,
            "series": self.series,
            "load_before": self.load_before,
            "load_after": environment.load(),
        }
