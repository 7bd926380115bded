"""Memory and descriptors of the server's processes over time, and whether they are flat."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import psutil

from tests.system.serving import Server

MIB = 2**20
GATEWAY, CHAT = "gateway", "starter-chat"
MAX_GROWTH = {GATEWAY: 64 * MIB, CHAT: 128 * MIB}
"""Growth after warm-up that counts as flat: allocators' slack, and EngineCore's cache of grammars, which is bounded.
Its KV cache (128 MiB) is allocated from the start, but Linux only provides a page when it is first written, which is in
the first minutes."""
DESCRIPTORS = 40
"""The same for descriptors, for the connections at that time."""


class MemoryFootprint(NamedTuple):
    bytes: int
    """Proportional set size, as forks of the slot share most of their pages."""
    descriptors: int


def look(server: Server) -> dict[str, MemoryFootprint]:
    """Measure the gateway's process, and the model's slot with its children."""
    gateway = server.gateway()
    slot = psutil.Process(server.slot_pid(CHAT))
    return {GATEWAY: _held([gateway]), CHAT: _held([slot, *slot.children(recursive=True)])}


def _held(processes: list[psutil.Process]) -> MemoryFootprint:
    held = MemoryFootprint(0, 0)
    for process in processes:
        try:
            held = MemoryFootprint(held.bytes + process.memory_full_info().pss, held.descriptors + process.num_fds())
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # a short-lived process that compiles a grammar
            continue
    return held


def growth(held: Sequence[MemoryFootprint]) -> MemoryFootprint:
    """Return the growth from the second fifth, after warm-up, to the last fifth.

    These are medians, because one measurement may fall into a large request.
    """
    part = len(held) // 5
    early, late = held[part : 2 * part], held[-part:]
    if not early:
        return MemoryFootprint(0, 0)
    return MemoryFootprint(
        int(median(h.bytes for h in late) - median(h.bytes for h in early)),
        int(median(h.descriptors for h in late) - median(h.descriptors for h in early)),
    )


def findings(looks: Sequence[dict[str, MemoryFootprint]]) -> list[str]:
    found = []
    for name, most in MAX_GROWTH.items():
        grown = growth([look[name] for look in looks])
        if grown.bytes > most:
            found.append(f"{name} grew by {grown.bytes / MIB:.0f} MiB after warm-up; flat is at most {most / MIB:.0f}")
        if grown.descriptors > DESCRIPTORS:
            found.append(f"{name} holds {grown.descriptors} descriptors more than after warm-up")
    return found
