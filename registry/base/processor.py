"""The processor according to Linux, and our share of its cores."""

import math
import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from registry.base import control_groups

CPUINFO = Path("/proc/cpuinfo")


@cache
def features() -> frozenset[str]:
    """Return instruction sets by Linux's names, such as `avx512_vnni`; empty if unknown."""
    return frozenset((_line("flags") or _line("Features")).split())


def model() -> str:
    """Return the processor's name for people."""
    return _line("model name") or platform.machine()


def cores() -> int:
    """Return how many cores this process may use; a part of a core counts as one."""
    return math.ceil(min(len(os.sched_getaffinity(0)), _quota(control_groups.folders("cpu"))))


def _quota(groups: Iterable[Path]) -> float:
    """Return the cores that control groups allow, by the lowest limit; cgroup v2 or v1."""
    quotas = [math.inf]
    for folder in groups:
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            with suppress(OSError, ValueError):  # 'max': no limit
                quota, period = " ".join((folder / name).read_text() for name in names).split()
                if int(quota) > 0:
                    quotas.append(int(quota) / int(period))
    return min(quotas)


def _line(key: str) -> str:
    try:
        pairs = [line.partition(":") for line in CPUINFO.read_text().splitlines()]
    except OSError:
        return ""
    return next((value.strip() for name, _, value in pairs if name.strip() == key), "")
