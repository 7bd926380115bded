"""Reports the gaps in the control stream, with what the system did meanwhile.

The stream has its own process (`reading`), which nothing here can hold up. This process passes its lines on and adds
the cause to each gap.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

import msgspec
import psutil

from models.process_control import die_with_parent
from tests.fuzz.gaps import Beat, Gap, Sample, between, stood_still

STEP = 0.2
TICK = os.sysconf("SC_CLK_TCK")


class Watch:
    """Samples of the system over the last two minutes, taken by its own thread."""

    def __init__(self, main: int, *way: int) -> None:
        """way: the processes that a token passes. All their threads count, as they wait for one another."""
        self._main, self._way = psutil.Process(main), way
        self._samples: deque[Sample] = deque(maxlen=int(120 / STEP))
        self._beats: deque[Beat] = deque(maxlen=self._samples.maxlen)
        self._begun: tuple[int, float, float] | None = None
        """The next beat: its thread, when it is due, and how long that thread had waited for a CPU."""
        self._served: dict[int, float] = {}
        self._family: list[int] = []
        self._looked = 0.0
        self._lock = threading.Lock()
        self._samples.append(self.sample())
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        own = threading.get_native_id()
        while True:
            self._begun = own, time.monotonic() + STEP, _waited(own)
            time.sleep(STEP)
            beat = self._beat()
            self._begun = None
            self._beats.extend(beat)
            self._samples.append(self.sample())

    def _beat(self) -> list[Beat]:
        """Return the next beat as if it came now, as its thread may not have woken up yet after a standstill."""
        if (begun := self._begun) is None:
            return []
        own, due, waited = begun
        return [Beat(due, time.monotonic(), _waited(own) - waited)]

    def sample(self) -> Sample:
        with self._lock:
            at = time.monotonic()
            way = {pid: _times(pid, _threads(pid)) for pid in self._way}
            if at - self._looked > 3:
                self._family, self._looked = [self._main.pid, *(p.pid for p in self._main.children(recursive=True))], at
            for pid in self._family:
                with contextlib.suppress(OSError):
                    self._served[pid] = _taken(pid)
            times = psutil.cpu_times()
            stolen = tuple(one.steal for one in psutil.cpu_times(percpu=True))
            return Sample(at, way, sum(times) - times.idle - times.iowait, dict(self._served), stolen)

    def gap(self, begin: float, end: float) -> Gap:
        before = next((s for s in reversed(list(self._samples)) if s.at <= begin), self._samples[0])
        after = self.sample()
        late = stood_still([*self._beat(), *list(self._beats)], begin, end)
        return between(before, after, time.time(), end - begin, late)


def _threads(pid: int) -> list[int]:
    try:
        return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []


def _times(pid: int, threads: list[int]) -> dict[int, tuple[float, float]]:
    found = {}
    for thread in threads:
        with contextlib.suppress(OSError):
            computed, waited, _ = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()
            found[thread] = (int(computed) / 1e9, int(waited) / 1e9)
    return found


def _waited(thread: int) -> float:
    """Return how long a thread of this process has waited for a CPU."""
    return _times(os.getpid(), [thread])[thread][1]


def _taken(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def main(port: int, server: int, gateway: int, slot: int, core: int) -> None:
    command = [sys.executable, "-m", "tests.fuzz.reading", str(os.getpid()), str(port)]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    watch = Watch(server, gateway, slot, core, reader.pid)
    for line in reader.stdout:
        reported = json.loads(line)
        if "gap" in reported:
            reported["gap"] = msgspec.to_builtins(watch.gap(*reported["gap"]))
        print(json.dumps(reported), flush=True)


if __name__ == "__main__":
    parent, *requested = map(int, sys.argv[1:])
    die_with_parent(parent)
    main(*requested)
