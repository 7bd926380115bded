"""Decides whether the server caused a gap in the control stream or the machine did. No I/O, no clock.

Linux counts how long each thread waits for a CPU. A process on the stream's way (gateway, slot, EngineCore and the
reader) has waited as long as its longest-waiting thread, because the others may wait for a lock which that thread
holds. Other programs are to blame by their share of the CPU time meanwhile, without what the waiting processes computed
themselves. The server's other processes are to blame for at most the time that their work would take on all CPUs
together. If a virtual machine stands still as a whole, even a thread that does nothing else wakes up late. If only one
of its CPUs stands still, the kernel reports that the host has stolen it. The server caused the rest of the gap.
"""

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

WORST = 0.5
"""A gap is a finding if the server caused more than this many seconds."""
CPUS = len(os.sched_getaffinity(0))
Times = Mapping[int, Mapping[int, tuple[float, float]]]
"""Process to thread to the seconds that it has computed and has waited for a CPU so far."""


class Sample(NamedTuple):
    """The system's counters at one moment, in seconds since some start."""

    at: float
    way: Times
    """The threads on the stream's way."""
    busy: float
    """Seconds for which the CPUs were busy, all together."""
    served: Mapping[int, float]
    """The part of each of the server's processes."""
    stolen: tuple[float, ...] = ()
    """Seconds for which the host has stolen each CPU."""


class Beat(NamedTuple):
    """A wake-up of a thread that does nothing else: when it was due, when it came, and how long it waited for a CPU."""

    due: float
    woke: float
    waited: float


def stood_still(beats: Iterable[Beat], begin: float, end: float) -> float:
    """Return the seconds between these times for which a thread did not wake up, although no other had its CPU."""
    late = [min(b.woke - b.due - b.waited, min(b.woke, end) - max(b.due, begin)) for b in beats]
    return sum(seconds for seconds in late if seconds > 0)


class Gap(NamedTuple):
    at: float
    seconds: float
    waited: float
    """Seconds of the gap spent waiting for a CPU."""
    others: float
    """Other programs' share of the CPU time, the stream's own left out."""
    others_of_ours: float = 0.0
    """Seconds for which the work of the server's other processes would have kept all CPUs busy."""
    late: float = 0.0
    """Seconds for which the whole machine stood still, from `stood_still`."""
    stolen: float = 0.0
    """Seconds that the host has stolen from the CPU that lost most."""
    who: int = 0
    """The server's process that computed most meanwhile."""
    who_seconds: float = 0.0

    @property
    def ours(self) -> float:
        running = max(0.0, self.seconds - self.waited - max(self.late, self.stolen))
        return running + min(self.waited * (1 - self.others), self.others_of_ours)


def between(before: Sample, after: Sample, at: float, seconds: float, late: float = 0.0) -> Gap:
    """Return a gap, with its causes computed from two samples around it."""
    computed = waited = 0.0
    for pid, threads in after.way.items():
        earlier, longest = before.way.get(pid, {}), 0.0
        for thread, (run, wait) in threads.items():
            if thread in earlier:
                computed += run - earlier[thread][0]
                longest = max(longest, wait - earlier[thread][1])
        waited += longest
    rises = {pid: taken - before.served.get(pid, taken) for pid, taken in after.served.items()}
    busy, served = after.busy - before.busy - computed, sum(rises.values()) - computed
    others = 1 - max(0.0, served) / busy if busy > 0 else 0.0
    who = max(rises, key=lambda pid: rises[pid], default=0)
    alone = max(0.0, served) / CPUS
    stolen = max((now - then for now, then in zip(after.stolen, before.stolen, strict=True)), default=0.0)
    return Gap(
        at, seconds, min(waited, seconds), max(0.0, others), alone, late, min(stolen, seconds), who, rises.get(who, 0.0)
    )
