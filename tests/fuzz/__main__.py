"""python -m tests.fuzz: attack a real server for a while, beside a stream that must go on; see `tests.fuzz`.

A finding is an answer 500 or above that is not a stated 503, no answer, an error that is no JSON, a gap of the control
stream above half a second that is the server's own, a model that died, memory that grows. Exit code 1 if there is one.
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
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
import psutil

from benchmarks.report.environment import record
from tests.fuzz import memory
from tests.fuzz.cases import Cases
from tests.fuzz.corpus import KEPT, SEEDS, Kept, Raw, read
from tests.fuzz.gaps import Gap
from tests.fuzz.mutate import CHAT, mutate
from tests.fuzz.sending import Reply, send
from tests.fuzz.verdict import finding
from tests.system.serving import PACK, ROOT, STARTER, Server

GAP = 0.5
PATIENCE = 90.0
OPTIONS = ("--body-seconds", "5", "--device-memory", "8GiB", "--unread-seconds", "10")
SUSPECTS = ROOT / "build" / "fuzz" / "suspects.jsonl"
"""Each finding with the requests that may have caused it, however long they are."""
RESULT = SUSPECTS.with_name("result.json")
CHAT_ROUTES = {*CHAT, "/generate", "/generate_stream", "/", "/tokenize", "/detokenize", "/v1/messages/count_tokens"}
MODELS = ("starter-chat", "starter-embed", "starter-rerank", "starter-speech")


@dataclass
class Sent:
    raw: Raw
    began: float
    ended: float = 0.0


class Run:
    """What is shared by the attackers, and the report at the end."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server, self.seed = server, seed
        self.stop = threading.Event()
        self.statuses: Counter[int] = Counter()
        self.found: list[str] = []
        self.recent: deque[Sent] = deque(maxlen=400)
        self.gaps: list[Gap] = []
        self.totals: dict[str, float] = {}
        self.slowest = (0.0, "")
        self.kept = Kept(KEPT)
        self._lock = threading.Lock()

    def steps(self) -> str:
        """The longest gap as so many usual ones."""
        streams, tokens = self.totals.get("streams", 0), self.totals.get("tokens", 0)
        usual = self.totals.get("seconds", 0.0) / tokens if streams and tokens else 0.0
        return f"{self.totals['longest'] / usual:.0f} steps of {1000 * usual:.1f} ms" if usual else "not known"

    def send(self, raw: Raw, *, known: bool = False) -> Reply:
        sent = Sent(raw, time.time())
        with self._lock:
            self.recent.append(sent)
        reply = send(self.server.port, raw, PATIENCE)
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
        """`raws`: what may have caused it, kept at once."""
        if what in self.found:
            return
        self.found.append(what)
        print(f"FINDING {what}", flush=True)
        SUSPECTS.parent.mkdir(parents=True, exist_ok=True)
        with SUSPECTS.open("ab") as file:
            for raw in raws:
                file.write(msgspec.json.encode({"finding": what, **msgspec.structs.asdict(raw)}) + b"\n")

    def between(self, begin: float, end: float) -> list[Raw]:
        """What was asked of the chat model in this while, that which took longest first."""
        found = [s for s in list(self.recent) if s.began <= end and (s.ended or end) >= begin]
        asked = [s for s in found if s.raw.route in CHAT_ROUTES]
        return [s.raw for s in sorted(asked, key=lambda s: s.began - (s.ended or end))]

    def mutants(self, seeds: list[Raw], seed: int) -> None:
        random = Random(seed)
        while not self.stop.is_set():
            self.send(mutate(random.choice([*seeds, *self.kept.new]), random))

    def documented(self, seed: int) -> None:
        cases = Cases(self.server, seed)
        while not self.stop.is_set():
            for raw in cases.round(self.stop):
                self.send(raw)

    def _role(self, pid: int) -> str:
        """Of one of the server's processes."""
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
            told = json.loads(line)
            if "gap" in told:
                gap = msgspec.convert(told["gap"], Gap)
                self.gaps.append(gap)
                if gap.ours > GAP:
                    who = f"{self._role(gap.who)} computed {gap.who_seconds:.2f} s"
                    about = f"a gap of {gap.seconds:.2f} s in the control stream, {gap.ours:.2f} of it ours; {who}"
                    self.add(about, self.between(gap.at - gap.seconds, gap.at))
            elif "fault" in told:
                now = time.time()
                self.add(f"the control stream: {told['fault']}", self.between(now - PATIENCE, now))
            else:
                self.totals = told["totals"]


def attack(run: Run, minutes: float) -> list[dict[str, memory.Held]]:
    server = run.server
    way = (server.gateway().pid, server.slot_pid("starter-chat"), server.core_pid("starter-chat"))
    command = [
        sys.executable,
        "-m",
        "tests.fuzz.control",
        *map(str, (os.getpid(), server.port, server.process.pid, *way)),
    ]
    control = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    seeds = read(SEEDS, KEPT)
    threads = [threading.Thread(target=run.listen, args=(control,), daemon=True)]
    threads += [threading.Thread(target=run.documented, args=(run.seed,))]
    threads += [threading.Thread(target=run.mutants, args=(seeds, run.seed + i)) for i in (1, 2)]
    for thread in threads:
        thread.start()
    looks, ends = [], time.monotonic() + 60 * minutes
    try:
        for raw in seeds:
            run.send(raw, known=True)
        while (left := ends - time.monotonic()) > 0 and server.process.poll() is None:
            try:
                looks.append(memory.look(server))
            except httpx.HTTPError as error:
                run.add(f"the server did not tell its state: {type(error).__name__}: {error}")
            if len(looks) % 6 == 0:
                print(f"{left / 60:.0f} minutes left, {run.statuses.total()} requests, {run.totals}", flush=True)
            run.stop.wait(min(10.0, max(left, 0.1)))
    except KeyboardInterrupt:
        print("stopped early", flush=True)
    finally:
        run.stop.set()
        for thread in threads[1:]:
            thread.join(2 * PATIENCE)
        control.kill()
        control.wait()
    return looks


def after(run: Run, looks: list[dict[str, memory.Held]]) -> None:
    """What the server says at the end."""
    server = run.server
    if server.process.poll() is not None:
        run.add(f"the server ended with {server.process.poll()}: {server.tail()[-500:]}")
        return
    for model in server.http.get("/v1/status").json()["models"]:
        if model["deaths"]:
            run.add(f"{model['id']} died {model['deaths']} times: {model.get('failure')}")
    for what in memory.findings(looks):
        run.add(what)
    body = {"model": "uppercase", "messages": [{"role": "user", "content": "hello world"}], "temperature": 0}
    if "uppercase" not in server.http.get("/v1/models").text:  # an attack may have deleted it
        asked = {"name": "uppercase", "base": "starter-chat", "source": {"path": str(PACK / "adapters" / "uppercase")}}
        server.http.post("/v1/adapters", json=asked).raise_for_status()
    answer = server.http.post("/v1/chat/completions", json=body)
    if answer.status_code != 200 or "HELLO WORLD" not in answer.text:
        run.add(f"an adapter answers otherwise than before: {answer.status_code} {answer.text[:200]}")


def report(run: Run, looks: list[dict[str, memory.Held]], seconds: float) -> int:
    statuses = ", ".join(f"{status}: {count}" for status, count in sorted(run.statuses.items()))
    print(f"\n{run.statuses.total()} requests in {seconds / 60:.1f} minutes, seed {run.seed}; {statuses}")
    print(f"slowest answer {run.slowest[0]:.1f} s, {run.slowest[1]}; new in the corpus: {len(run.kept.new)}")
    print(f"control stream: {json.dumps(run.totals)}; longest gap: {run.steps()}")
    for gap in sorted(run.gaps, key=lambda gap: -gap.seconds)[:5]:
        waited = f"waited for a CPU {gap.waited:.2f} s, of which others had {gap.others:.0%}"
        print(f"  gap {gap.seconds:.2f} s: {waited}; heartbeat {gap.late:.2f} s late; ours {gap.ours:.2f} s")
    over = [gap for gap in run.gaps if gap.seconds > GAP]
    print(f"  gaps over {GAP} s: {len(over)}, of them ours: {sum(gap.ours > GAP for gap in over)}")
    for name in memory.MOST if looks else ():
        first, last = looks[len(looks) // 5][name], looks[-1][name]
        told = " to ".join(
            f"{held.bytes / memory.MIB:.0f} MiB and {held.descriptors} descriptors" for held in (first, last)
        )
        print(f"{name}: from {told}")
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(_result(run, looks, seconds), indent=1) + "\n")
    print(f"findings: {len(run.found)}; what may have caused them is in {SUSPECTS.relative_to(ROOT)}")
    for what in run.found:
        print(f"  {what}")
    return 1 if run.found else 0


def _result(run: Run, looks: list[dict[str, memory.Held]], seconds: float) -> dict[str, Any]:
    over = [gap for gap in run.gaps if gap.seconds > GAP]
    return {
        "environment": record(),
        "seconds": round(seconds),
        "seed": run.seed,
        "requests": run.statuses.total(),
        "statuses": {str(status): count for status, count in sorted(run.statuses.items())},
        "slowest": {"seconds": run.slowest[0], "request": run.slowest[1]},
        "control": run.totals,
        "gaps": {
            "over_half_a_second": len(over),
            "ours": sum(gap.ours > GAP for gap in over),
            "longest": [{**gap._asdict(), "ours": gap.ours} for gap in sorted(over, key=lambda g: -g.seconds)[:20]],
        },
        "memory": {
            name: [{"MiB": held.bytes // memory.MIB, "descriptors": held.descriptors} for held in _every(looks, name)]
            for name in memory.MOST
        },
        "findings": run.found,
    }


def _every(looks: list[dict[str, memory.Held]], name: str, count: int = 30) -> list[memory.Held]:
    """Some of them, over the whole time."""
    return [look[name] for look in looks[:: max(1, len(looks) // count)]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz ARGS=...", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default: 30)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the mutations; a run tells its own")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="roundhouse-fuzz") as folder:
        server = Server(Path(folder) / "server" / "data", [STARTER], *OPTIONS)
        try:
            server.wait_ready(600)
            for model in MODELS:
                server.http.post(f"/v1/models/{model}/load").raise_for_status()
            server.http.put("/v1/models/starter-chat/pin").raise_for_status()
            run, began = Run(server, asked.seed), time.monotonic()
            looks = attack(run, asked.minutes)
            after(run, looks)
            code = report(run, looks, time.monotonic() - began)
            run.kept.save()
            return code
        finally:
            server.close()
            SUSPECTS.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(server.log, SUSPECTS.with_name("server.log"))


if __name__ == "__main__":
    sys.exit(main())
