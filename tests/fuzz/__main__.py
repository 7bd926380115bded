"""python -m tests.fuzz: attack a real server for a while, while a stream must keep running; see `tests.fuzz`.

Findings: a status of 500 or above other than 503 with Retry-After, no answer, an error that is not JSON, a gap of more
than half a second in the control stream that the server caused, a model that died, memory that grows. The last line is
the verdict. Exit code 0: no findings; 1: findings; 2: stopped early.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx
import msgspec
import psutil

from tests.fuzz import key, memory, report
from tests.fuzz.corpus import KEPT, SEEDS, NewOutcomes, Raw, read
from tests.fuzz.gaps import WORST, Gap
from tests.fuzz.mutate import mutate
from tests.fuzz.sending import Reply, send
from tests.fuzz.verdict import finding
from tests.system.serving import PACK, ROOT, STARTER, Server

PATIENCE = 90.0
OPTIONS = ("--device-memory", "8GiB", "--open")
"""`--open`: the control stream sends no key, and some requests send an invalid one."""
FIXED = {"body_seconds": 5, "unread_seconds": 10}
FRESH = httpx.Limits(max_keepalive_connections=0)
"""Each request has a new connection: a server may close an idle one, but never a new one. So no request needs a retry,
and one without an answer is a finding."""
FOLDER = ROOT / "build" / "fuzz"
SUSPECTS = FOLDER / "suspects.jsonl"
"""Each finding, with the requests of any length that may have caused it."""
MODELS = ("starter-chat", "starter-embed", "starter-rerank", "starter-speech")


@dataclass
class Sent:
    raw: Raw
    began: float
    ended: float = 0.0


class Run:
    """The state that the attackers and the report at the end share."""

    def __init__(self, server: Server, seed: int, displayed: str) -> None:
        self.server, self.seed, self._key = server, seed, displayed
        self.stop = threading.Event()
        self.statuses: Counter[int] = Counter()
        self.found: list[str] = []
        self.recent: deque[Sent] = deque(maxlen=400)
        self.gaps: list[Gap] = []
        self.totals: dict[str, float] = {}
        self.slowest = (0.0, "")
        self.looks: list[dict[str, memory.MemoryFootprint]] = []
        self.seconds = 0.0
        self.whole = False
        """Whether it ran for the whole time that was asked for."""
        self.kept = NewOutcomes(KEPT)
        self._lock = threading.Lock()

    def send(self, raw: Raw, *, known: bool = False) -> Reply:
        sent = Sent(raw, time.time())
        with self._lock:
            self.recent.append(sent)
        reply = send(self.server.port, key.showing(raw, self._key), PATIENCE)
        sent.ended = time.time()
        wrong = finding(raw, reply)
        with self._lock:
            self.statuses[reply.status] += 1
            self.slowest = max(self.slowest, (reply.seconds, f"{raw.method} {raw.path[:80]} {reply.status}"))
            self.kept.saw(raw, (raw.route, reply.status, reply.code), known=known)
            if wrong:
                self.add(f"{raw.method} {raw.path[:80]}: {wrong}", [raw])
        return reply

    def add(self, what: str, raws: Sequence[Raw] = ()) -> None:
        """Add a finding. The `raws` that may have caused it are saved at once."""
        if what in self.found:
            return
        self.found.append(what)
        print(f"FINDING {what}", flush=True)
        SUSPECTS.parent.mkdir(parents=True, exist_ok=True)
        with SUSPECTS.open("ab") as file:
            for raw in raws:
                file.write(msgspec.json.encode({"finding": what, **msgspec.structs.asdict(raw)}) + b"\n")

    def between(self, begin: float, end: float) -> list[Raw]:
        """Return the requests between these times, the longest first."""
        found = [s for s in list(self.recent) if s.began <= end and (s.ended or end) >= begin]
        return [s.raw for s in sorted(found, key=lambda s: s.began - (s.ended or end))]

    def thread(self, work: Callable[..., None], *requested: object) -> threading.Thread:
        """Start a thread. If it fails, that is a finding, as the attack is no longer complete."""

        def watched() -> None:
            try:
                work(*requested)
            except Exception as error:
                traceback.print_exc()
                self.add(f"the fuzzer's own {work.__name__} broke: {type(error).__name__}: {error}")

        thread = threading.Thread(target=watched, daemon=True)
        thread.start()
        return thread

    def mutants(self, seeds: list[Raw], seed: int) -> None:
        random = Random(seed)
        while not self.stop.is_set():
            self.send(mutate(random.choice([*seeds, *self.kept.new]), random))

    def documented(self, seed: int) -> None:
        command = [sys.executable, "-m", "tests.fuzz.cases", str(os.getpid()), self.server.url, str(seed)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as made:
            assert made.stdout is not None
            for line in made.stdout:
                if self.stop.is_set():
                    made.kill()
                    return
                self.send(msgspec.json.decode(line, type=Raw))
        raise RuntimeError("the process that makes cases has ended")

    def _role(self, pid: int) -> str:
        """Return the role of one of the server's processes."""
        for model in self.server.http.get("/v1/status").json()["models"]:
            slot = model.get("pid")
            if pid == slot:
                return f"the slot of {model['id']}"
            if (
                slot
                and psutil.pid_exists(slot)
                and pid in [p.pid for p in psutil.Process(slot).children(recursive=True)]
            ):
                return f"a child of the slot of {model['id']}"
        return "the gateway" if pid == self.server.gateway().pid else f"process {pid}"

    def listen(self, control: "subprocess.Popen[str]") -> None:
        assert control.stdout is not None
        for line in control.stdout:
            reported = json.loads(line)
            if "gap" in reported:
                gap = msgspec.convert(reported["gap"], Gap)
                self.gaps.append(gap)
                if gap.ours > WORST:
                    who = f"{self._role(gap.who)} computed {gap.who_seconds:.2f} s"
                    about = f"a gap of {gap.seconds:.2f} s in the control stream, {gap.ours:.2f} of it ours; {who}"
                    self.add(about, self.between(gap.at - gap.seconds, gap.at))
            elif "fault" in reported:
                now = time.time()
                self.add(f"the control stream: {reported['fault']}", self.between(now - PATIENCE, now))
            else:
                self.totals = reported["totals"]


def attack(run: Run, minutes: float) -> None:
    server = run.server
    way = (server.gateway().pid, server.slot_pid("starter-chat"), server.core_pid("starter-chat"))
    command = [
        sys.executable,
        "-m",
        "tests.fuzz.control",
        *map(str, (os.getpid(), server.port, server.process.pid, *way)),
    ]
    control = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    seeds, threads, ends = read(SEEDS, KEPT), [], time.monotonic() + 60 * minutes
    try:
        run.thread(run.listen, control)
        for raw in seeds:  # before the others begin, so that known requests are not saved again
            run.send(raw, known=True)
        threads = [run.thread(run.documented, run.seed)]
        threads += [run.thread(run.mutants, seeds, run.seed + i) for i in (1, 2)]
        while (left := ends - time.monotonic()) > 0 and server.process.poll() is None:
            try:
                run.looks.append(memory.look(server))
            except httpx.HTTPError as error:
                run.add(f"the server did not report its state: {type(error).__name__}: {error}")
            if len(run.looks) % 6 == 0:
                print(f"{left / 60:.0f} minutes left, {run.statuses.total()} requests, {run.totals}", flush=True)
            run.stop.wait(min(10.0, max(left, 0.1)))
        run.whole = left <= 0
    except KeyboardInterrupt:
        print("stopped early", flush=True)
    finally:
        run.stop.set()
        for thread in threads:
            thread.join(2 * PATIENCE)
        control.kill()
        control.wait()


def after(run: Run) -> None:
    """Check the server's state at the end. Raises httpx.HTTPError if it does not answer."""
    server = run.server
    if server.process.poll() is not None:
        run.add(f"the server ended with {server.process.poll()}: {server.tail()[-500:]}")
        return
    for model in server.http.get("/v1/status").json()["models"]:
        if model["deaths"]:
            run.add(f"{model['id']} died {model['deaths']} times: {model.get('failure')}")
    for what in memory.findings(run.looks):
        run.add(what)
    body = {"model": "uppercase", "messages": [{"role": "user", "content": "hello world"}], "temperature": 0}
    if "uppercase" not in server.http.get("/v1/models").text:  # an attack may have deleted the adapter
        requested = {
            "name": "uppercase",
            "base": "starter-chat",
            "source": {"path": str(PACK / "adapters" / "uppercase")},
        }
        server.http.post("/v1/adapters", json=requested).raise_for_status()
    answer = server.http.post("/v1/chat/completions", json=body)
    if answer.status_code != 200 or "HELLO WORLD" not in answer.text:
        run.add(f"an adapter answers differently than before: {answer.status_code} {answer.text[:200]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz ARGS=...", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to run (default: 30)")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="seed of the mutations; each run prints its own"
    )
    requested = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="roundhouse-fuzz") as folder:
        server = Server(Path(folder) / "server" / "data", [STARTER], *OPTIONS, prewarm=True, fixed=FIXED)
        server.http = httpx.Client(base_url=server.url, timeout=PATIENCE, limits=FRESH)
        try:
            displayed = key.make(server.wait_ready(600))
            for model in MODELS:
                server.http.post(f"/v1/models/{model}/load").raise_for_status()
            server.http.put("/v1/models/starter-chat/pin").raise_for_status()
            run, began = Run(server, requested.seed, displayed), time.monotonic()
            attack(run, requested.minutes)
            try:
                after(run)
            except httpx.HTTPError as error:
                run.add(f"the server did not answer at the end: {type(error).__name__}: {error}")
            run.seconds = time.monotonic() - began
            run.kept.save()
            return report.write(run, FOLDER)
        finally:
            server.close()
            FOLDER.mkdir(parents=True, exist_ok=True)
            shutil.copy(server.log, FOLDER / "server.log")


if __name__ == "__main__":
    sys.exit(main())
