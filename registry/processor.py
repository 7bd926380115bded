"""The processor at hand, as Linux tells it in /proc/cpuinfo."""

import os
import platform
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


@cache
def features() -> frozenset[str]:
    """Its instruction sets by Linux's names (x86's flags, Arm's features), such as `avx512_vnni`. Empty: not told."""
    return frozenset((_line("flags") or _line("Features")).split())


def model() -> str:
    """Its name for people."""
    return _line("model name") or platform.machine()


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def _line(key: str) -> str:
    try:
        pairs = [line.partition(":") for line in CPUINFO.read_text().splitlines()]
    except OSError:
        return ""
    return next((value.strip() for name, _, value in pairs if name.strip() == key), "")
