"""How soon sixteen fronts know a changed alias, measured on what a front uses for it: the state and its watch.

    python -m benchmarks.fleet.names URL FOLDER COUNT

runs COUNT of these fronts in one process. It prints 'ready' once all of them listen, then a line whenever one has read
a change: its name, the change's number, and the time by the machine's monotonic clock. It ends when its standard input
does.
"""

import asyncio
import queue
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from benchmarks.fleet.servers import wait_until
from benchmarks.harness import Bench
from benchmarks.load.stats import percentile
from registry.state.database import State
from registry.state.shared.opening import SharedTables, open_shared
from registry.state.shared.watch import SharedWatch
from tests.postgres import postgres

SCHEMA = "bench_names"
FRONTS, PROCESSES = 16, 4
PAUSE_SECONDS, WITHIN_SECONDS = 0.1, 60.0


async def run(bench: Bench) -> None:
    """Measure the milliseconds from the commit of a change until the last front has read it."""
    changes = bench.settings.pick(300, 60, 3)
    with postgres() as url:
        delays = await asyncio.to_thread(_measure, url, bench.settings.work / "names", changes)
    bench.note(f"{changes} changes of an alias on {FRONTS} fronts in {PROCESSES} processes")
    for q in (50, 99):
        bench.figure(f"alias.p{q}", [percentile(delays, q)], "ms")


def _measure(url: str, folder: Path, changes: int) -> list[float]:
    lines = queue.Queue[str]()
    with ExitStack() as stack:
        tables = open_shared(url, SCHEMA)
        state = stack.enter_context(State(folder / "own", shared=tables))
        for number in range(PROCESSES):
            words = [url, str(folder / f"{number}"), str(FRONTS // PROCESSES)]
            process = _started(words)
            stack.callback(_end, process)
            assert process.stdout is not None
            threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
        for _ in range(PROCESSES):
            assert lines.get(timeout=WITHIN_SECONDS).strip() == "ready"
        committed = dict(_changed(state, tables, changes))
        read: dict[str, list[tuple[int, float]]] = {}
        last = max(committed)
        while len(read) < FRONTS or any(known[-1][0] < last for known in read.values()):
            front, change, at = lines.get(timeout=WITHIN_SECONDS).split()
            read.setdefault(front, []).append((int(change), float(at)))
    # a front that reads two changes at once reports only the second, but knows the first as well
    seen = {change: [min(at for one, at in known if one >= change) for known in read.values()] for change in committed}
    return [(max(seen[change]) - at) * 1e3 for change, at in committed.items()]


def _changed(state: State, tables: SharedTables, changes: int) -> list[tuple[int, float]]:
    """Make changes; returns the number of each and the time after its commit."""
    committed = []
    for number in range(changes):
        state.models.set_alias("moving", ("one", "other")[number % 2])
        committed.append((tables.revision.known, time.monotonic()))
        time.sleep(PAUSE_SECONDS)
    return committed


def _started(words: list[str]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "benchmarks.fleet.names", *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _end(process: "subprocess.Popen[str]") -> None:
    """End a process of fronts through its input: closing its output would wait for the thread that reads it."""
    assert process.stdin is not None
    process.stdin.close()
    process.wait(WITHIN_SECONDS)


def _read(output: IO[str], lines: "queue.Queue[str]") -> None:
    for line in output:
        lines.put(line)


class _Front:
    """A front's names, and the watch that updates them."""

    def __init__(self, url: str, folder: Path, stack: ExitStack, lock: threading.Lock) -> None:
        self._tables, self._name, self._lock = open_shared(url, SCHEMA), str(folder), lock
        state = stack.enter_context(State(folder, shared=self._tables))
        watch = SharedWatch(self._tables, state, self._print)
        stack.callback(watch.close)
        watch.start()
        wait_until(lambda: watch.is_listening, "the watch does not listen")

    def _print(self) -> None:
        at, change = time.monotonic(), self._tables.revision.known
        with self._lock:
            print(self._name, change, at, flush=True)


def main() -> None:
    url, folder, count = sys.argv[1:]
    lock = threading.Lock()
    with ExitStack() as stack:
        for number in range(int(count)):
            _Front(url, Path(folder) / f"{number}", stack, lock)
        with lock:
            print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
