"""The base's first token from each server in turns, and where its milliseconds go, by stamps (`peers.stamps`).

| from, to             | what happens there                                          |
|----------------------|-------------------------------------------------------------|
| client, asgi         | socket and HTTP parsing                                     |
| asgi, slot; slot, app | Roundhouse's gateway and the hop to its slot; its checks    |
| app, generate, sent  | vLLM's HTTP application and its tokenizer                   |
| sent, core           | the queue to the engine's process                           |
| core, step           | the engine's step, including the GPU's work                 |
| step, out            | the queue back                                              |
| out, answer, client  | vLLM's application; Roundhouse's way back                   |

Requests are timed without stamps first, then with them; the difference is the cost of the stamps.
"""

import contextlib
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.gpu.report import Report
from benchmarks.load.client import Reply
from benchmarks.load.stats import percentile
from benchmarks.peers import stamps as hooks
from benchmarks.peers.servers import Server

Stamps = Sequence[tuple[float, str]]
WARM = 5
"""Warm-up requests to each server."""


@contextlib.contextmanager
def stamps(folder: Path) -> Iterator[None]:
    """Have servers that start inside this context write stamps into the folder while `switched_on`."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(hooks.__file__, folder / "sitecustomize.py")
    (folder / "on").write_text("0")
    path = os.environ.get("PYTHONPATH")
    os.environ |= {hooks.VARIABLE: str(folder), "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), path)))}
    try:
        yield
    finally:
        del os.environ[hooks.VARIABLE]
        if path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = path


@contextlib.contextmanager
def switched_on(folder: Path) -> Iterator[None]:
    """Have the servers write stamps."""
    with (folder / "on").open("r+b", buffering=0) as switch:  # written in place, because the servers have mapped it
        switch.write(b"1")
        try:
            yield
        finally:
            switch.seek(0)
            switch.write(b"0")


async def run(
    report: Report,
    servers: Sequence[Server],
    ask: Callable[[Server, str], Awaitable[Reply]],
    folder: Path,
    number: int,
    time_is_over: Callable[[], Callable[[], bool]],
) -> None:
    """Measure `number` requests to each server without stamps, and as many with them.

    Args:
        time_is_over: called at the beginning of each of the two; returns a function that says when to stop.
    """
    for how in ("without stamps", "with stamps"):
        is_over = time_is_over()
        with switched_on(folder) if how == "with stamps" else contextlib.nullcontext():
            replies: dict[str, list[Reply]] = {server.name: [] for server in servers}
            for turn in range(-WARM, number):
                for server in servers if turn % 2 else servers[::-1]:
                    reply = await ask(server, server.model)
                    replies[server.name] += [reply] if turn >= 0 else []
                if turn > 0 and is_over():
                    break
        for name, some in replies.items():
            times = [reply.ttft for reply in some]
            figures = {f"p{q}_ms": round(percentile(times, q) * 1e3, 2) for q in (10, 50, 99)}
            report.add(f"ttft: {how}, {name}", True, requests=len(some), **figures)
    written = read(folder)
    for name, some in replies.items():
        legs = split(written, some)
        report.add(f"ttft: legs, {name}", "core to step" in legs, median_ms=legs)


def read(folder: Path) -> Stamps:
    """Return all stamps, the earliest first."""
    lines = (line.split() for file in folder.glob("stamps.*") for line in file.read_text().splitlines())
    return sorted((float(time), name) for name, time in lines)


def split(written: Stamps, replies: Sequence[Reply]) -> dict[str, float]:
    """Return the median milliseconds of each leg of these requests, which were sent one after another."""
    legs: dict[str, list[float]] = {}
    for reply in replies:
        last, at, end = "client", reply.sent, reply.arrivals[0]
        own = [(time, name) for time, name in written if at <= time <= end]
        for name in hooks.ORDER:
            if (time := next((time for time, stamp in own if stamp == name and time >= at), None)) is not None:
                legs.setdefault(f"{last} to {name}", []).append(time - at)
                last, at = name, time
        legs.setdefault(f"{last} to client", []).append(end - at)
    return {leg: round(median(times) * 1e3, 3) for leg, times in legs.items()}
