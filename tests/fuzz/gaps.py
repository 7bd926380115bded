"""Whether a gap in the control stream is ours, or that of a machine which others keep busy. No I/O, no clock.

Each process on the stream's way (gateway, slot, EngineCore, and the one that reads it here) can have waited for a CPU
by one of its threads, which Linux counts: who waits for a lock that it holds waits as long. Other programs are to blame
for that by the share that they had of the CPU time in that while, what these threads computed themselves left out. Nor
can what the server's other processes computed have kept all CPUs for longer than it takes all CPUs. A machine that
stands still as a whole, as virtual ones do, keeps a thread from waking up that does nothing else; where only one of its
CPUs does, its host is told to have stolen it. What remains of the gap is the server's.
"""

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

WORST = 0.5
"""Seconds of a gap of ours that are a finding."""
CPUS = len(os.sched_getaffinity(0))
Times = Mapping[int, Mapping[int, tuple[float, float]]]
"""Process to thread to seconds that it has computed, and seconds that it has waited for a CPU, so far."""


class Sample(NamedTuple):
    """What the system tells at one moment; seconds since some start."""

    at: float
    way: Times
    """The threads on the stream's way."""
    busy: float
    """Seconds of all CPUs together."""
    served: Mapping[int, float]
    """What each of the server's processes has taken of that."""
    stolen: tuple[float, ...] = ()
    """From each CPU, by the host."""


class Beat(NamedTuple):
    """A beat of a thread that only wakes up: when it was to, when it did, and how long it waited for a CPU."""

    due: float
    woke: float
    waited: float


def stood_still(beats: Iterable[Beat], begin: float, end: float) -> float:
    """Seconds between these in which a thread that only had to wake up did not, though no other one had its CPU."""
    late = [min(b.woke - b.due - b.waited, min(b.woke, end) - max(b.due, begin)) for b in beats]
    return sum(seconds for seconds in late if seconds > 0)


class Gap(NamedTuple):
    at: float
    seconds: float
    waited: float
    """The part of that in which it waited for a CPU."""
    others: float
    """Share of the CPU time that was not the stream's own, and not the server's either."""
    others_of_ours: float = 0.0
    """Seconds that the server's other processes would have kept all CPUs for what they computed."""
    late: float = 0.0
    """What `stood_still` says of it: the whole machine did."""
    stolen: float = 0.0
    """From the CPU that lost most."""
    who: int = 0
    """The process of the server that computed most meanwhile."""
    who_seconds: float = 0.0

    @property
    def ours(self) -> float:
        running = max(0.0, self.seconds - self.waited - max(self.late, self.stolen))
        return running + min(self.waited * (1 - self.others), self.others_of_ours)


def between(before: Sample, after: Sample, at: float, seconds: float, late: float = 0.0) -> Gap:
    """A gap, with what two samples around it tell."""
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
