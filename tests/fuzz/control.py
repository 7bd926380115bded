"""The gaps of the stream that must go on, told beside what the system did meanwhile.

The stream is read by a process of its own (`reading`), which nothing here can hold up. This one writes its lines on,
each gap with whose it is.
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
    """Samples of the system from a thread of its own, the last two minutes of them."""

    def __init__(self, main: int, *way: int) -> None:
        """way: the processes that a token passes. Threads of one wait for one another, so all count."""
        self._main, self._way = psutil.Process(main), way
        self._samples: deque[Sample] = deque(maxlen=int(120 / STEP))
        self._beats: deque[Beat] = deque(maxlen=self._samples.maxlen)
        self._begun: tuple[int, float, float] | None = None
        """The beat that is to come: its thread, when it is due, and how long that thread had waited for a CPU."""
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
        """The one that is to come, as if it came now; it may not have woken up yet after all stood still."""
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
    """For a CPU; one of this process's."""
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
