"""The processes of a chat engine: what they hold, and how they ended."""

import signal
import time
from pathlib import Path
from typing import Any

import psutil


def held(processes: list[Any]) -> int:
    """Bytes of this process and EngineCore's. A fork shares most pages with its parent: 'proportional' counts each
    page once over both."""
    own = [psutil.Process(), *(psutil.Process(process.pid) for process in processes)]
    return sum(process.memory_full_info().pss for process in own)


def weights_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))


def how_ended(processes: list[Any]) -> str:
    """In words, by the exit codes of EngineCore's processes; waits up to a second for one that is just ending."""
    deadline = time.monotonic() + 1
    while True:
        for process in processes:
            process.join(0.05)  # vLLM's threads may ask at the same time: the second sees no code yet
        codes = [process.exitcode for process in processes]
        for code in codes:
            if code is not None and code < 0:
                return f"the engine's process was ended by {signal.Signals(-code).name}"
            if code:
                return f"the engine's process ended with status {code}"
        if None not in codes or time.monotonic() > deadline:
            return "the engine's process ended"
