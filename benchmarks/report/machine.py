"""A machine's own costs, recorded with each result from a GPU: wake-ups, pinned memory, byte code.

On some virtual machines wake-ups and first touches of pages cost several times as much as on bare metal. Without these
figures that would be blamed on the measured code.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from benchmarks.load.stats import percentile
from benchmarks.report.environment import ROOT, text_of
from models.chat.vllm import prewarm

PINNED = 1 << 30
"""Bytes."""
PIN_WITHIN = 60.0
"""Seconds for that, most of them for the import of torch. A driver that hangs must not take a run's whole time."""
PIN = (sys.executable, "-m", "benchmarks.report.machine")


def record(device: str, seconds: float = 2.0) -> dict[str, object]:
    """Return all of these figures. `device` is 'cpu' or 'cuda:0'."""
    costs: dict[str, object] = {
        "hypervisor": hypervisor(),
        "pipe_round_trip_us": ping_pong(seconds),
        "byte_code": byte_code("vllm"),
    }
    return costs if device == "cpu" else {**costs, "pinned_memory": pin_apart()}


def hypervisor(root: Path = Path("/")) -> str:
    """Return the hypervisor's name from firmware and kernel; 'unnamed' if it has none, '' on bare metal."""
    files = ("sys/class/dmi/id/sys_vendor", "sys/class/dmi/id/product_name", "sys/hypervisor/type")
    names = [name for file in files if (name := text_of(root / file))]
    is_virtual = " hypervisor" in text_of(root / "proc" / "cpuinfo")
    return " ".join(names) if is_virtual and names else "unnamed" if is_virtual else ""


def ping_pong(seconds: float) -> dict[str, float]:
    """Measure the microseconds for a byte to another process and back, through two pipes."""
    there, back = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        while os.read(there[0], 1):
            os.write(back[1], b"x")
        os._exit(0)
    times, end = [], time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        os.write(there[1], b"x")
        os.read(back[0], 1)
        times.append(time.perf_counter() - began)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for descriptor in (*there, *back):
        os.close(descriptor)
    return {f"p{q}": round(percentile(times, q) * 1e6, 1) for q in (50, 99)}


def byte_code(package: str) -> dict[str, int]:
    """Count a package's modules, and those with byte code for this Python; imports compile the others every time."""
    spec = find_spec(package)
    files = [
        file for root in (spec.submodule_search_locations or [] if spec else []) for file in Path(root).rglob("*.py")
    ]
    return {"modules": len(files), "compiled": sum(os.path.exists(cache_from_source(str(file))) for file in files)}


def pin_apart(command: Sequence[str] = PIN, within: float = PIN_WITHIN) -> dict[str, object]:
    """Run `pin` in a child process, because this one would keep half a GB of the card. Returns any error."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=within)
    except subprocess.TimeoutExpired:
        return {"error": f"it took more than {within:g} s"}
    if done.returncode:
        return {"error": done.stderr[-500:]}
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def pin() -> dict[str, object]:
    """Measure the seconds to pin a GiB with the engines' settings, with torch's own counters."""
    prewarm.environment()
    import torch

    began = time.perf_counter()
    block = torch.empty(PINNED, dtype=torch.uint8, pin_memory=True)
    seconds = time.perf_counter() - began
    stats = torch.cuda.host_memory_stats()
    del block
    with suppress(AttributeError):
        torch._C._host_emptyCache()
    names = ("num_host_alloc", "host_alloc_time.total", "host_alloc_time.max")
    return {"gib_seconds": round(seconds, 3), **{name: stats[name] for name in names if name in stats}}


if __name__ == "__main__":
    print(json.dumps(pin()))
