"""The stream that must go on: one after the other, each token's arrival noted, beside samples of the system.

A process of its own, so that the work of making requests is not in it. It writes a line of JSON for each gap that is
worth a look, and one with its totals every few seconds.
"""

import contextlib
import json
import os
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil

from models.parent import die_with_parent
from tests.fuzz.gaps import Beat, Gap, Sample, between, stood_still

STEP = 0.2
WORTH = 0.25
MODEL = "starter-chat"
ASKED = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 400, "temperature": 0}
BODY = {**ASKED, "stream": True, "ignore_eos": True}
TICK = os.sysconf("SC_CLK_TCK")


class Watch:
    """Samples of the system from a thread of its own, the last two minutes of them."""

    def __init__(self, main: int, gateway: int, slot: int, core: int) -> None:
        self._main, self._core, self._loops = psutil.Process(main), core, (gateway, slot, os.getpid())
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
            way = {pid: _times(pid, [pid]) for pid in self._loops}
            way[self._core] = _times(self._core, _threads(self._core))
            if at - self._looked > 3:
                self._family, self._looked = [self._main.pid, *(p.pid for p in self._main.children(recursive=True))], at
            for pid in self._family:
                with contextlib.suppress(OSError):
                    self._served[pid] = _taken(pid)
            times = psutil.cpu_times()
            return Sample(at, way, sum(times) - times.idle - times.iowait, dict(self._served))

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
    watch = Watch(server, gateway, slot, core)
    totals: dict[str, Any] = {"streams": 0, "tokens": 0, "longest": 0.0, "first": 0.0, "seconds": 0.0}
    told = 0.0
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as http:
        while True:
            fault = _one(http, watch, totals)
            if fault:
                _say({"fault": fault})
                time.sleep(0.2)
            if time.monotonic() - told > 5:
                told = time.monotonic()
                _say({"totals": totals})


def _one(http: httpx.Client, watch: Watch, totals: dict[str, Any]) -> str:
    """One stream. Why it did not come to its end, or nothing."""
    began, last, ended = time.monotonic(), 0.0, False
    try:
        with http.stream("POST", "/v1/chat/completions", json=BODY) as answer:
            if answer.status_code != 200:
                return f"{answer.status_code} {answer.read()[:300]!r}"
            for line in answer.iter_lines():
                if not line.startswith("data:"):
                    continue
                ended = line.endswith("[DONE]")
                now = time.monotonic()
                if not last:
                    totals["first"] = max(totals["first"], now - began)
                elif not ended:
                    totals["tokens"] += 1
                    totals["seconds"] += now - last
                    totals["longest"] = max(totals["longest"], now - last)
                    if now - last > WORTH:
                        _say({"gap": msgspec.to_builtins(watch.gap(last, now))})
                last = now
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    totals["streams"] += 1
    return "" if ended else "the stream ended without its end"


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    parent, *asked = map(int, sys.argv[1:])
    die_with_parent(parent)
    main(*asked)
