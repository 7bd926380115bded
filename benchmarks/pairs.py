"""Pairs of rounds of two servers: what one adds to the other, and how much of that is noise of the machine."""

from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

from benchmarks.harness import Bench
from benchmarks.load.clients import Cell
from benchmarks.peers.servers import Server


async def in_pairs(
    bench: Bench,
    name: str,
    plain: Server,
    other: Server,
    load: Callable[[Server], Awaitable[Cell]],
    rounds: int | None = None,
) -> None:
    """Record `compare`'s figures of the other server against the plain one as `name`, and those of each server against
    itself as `name.itself`.

    The order is A B B A A B B A, so that each server is equally often the first after a rest.

    Args:
        rounds: number of pairs (default: four for each of the settings' rounds).
    """
    cells: list[tuple[Server, Cell]] = []
    for number in range(rounds or 4 * bench.settings.rounds):
        for server in (plain, other) if number % 2 == 0 else (other, plain):
            await bench.rest([plain, other], server)
            cells.append((server, await load(server)))
    pairs = [cells[n : n + 2] for n in range(0, len(cells), 2)]
    compare(bench, name, [(b, a) if pair is plain else (a, b) for (pair, a), (_, b) in pairs])
    if len(pairs) > 1:
        compare(bench, f"{name}.itself", [(b, a) for (_, a), (_, b) in pairwise(cells[1:-1])][::2])


def compare(bench: Bench, name: str, pairs: Sequence[tuple[Cell, Cell]]) -> None:
    """Record the differences between the two cells of each pair (with, without)."""
    good = [(a, b) for a, b in pairs if a.good and b.good]
    bench.figure(f"{name}.tokens_ratio", [a.tokens_per_second / b.tokens_per_second for a, b in good], "x")
    for q in (50, 99):
        bench.figure(f"{name}.ttft_p{q}_added", [a.ttft_ms(q) - b.ttft_ms(q) for a, b in good], "ms")
