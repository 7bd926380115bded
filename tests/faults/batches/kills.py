"""Checks that each line of batches is answered and charged once while gateway, slots and EngineCores are killed.

    python -m tests.faults.batches.kills [--lines 2000] [--kills 50] [--seed 46]

Four kinds of lines (chat with the base and with adapters, embeddings, rerank, recordings) in four batches. At the end
each custom_id must be once in the output or the error file, the settled rows of the ledger must have the tokens or
seconds of the answers' own usage, `usage reconcile` must find no difference, and the budget must have spent what these
rows cost. Prints one line of JSON at the end.
"""

import argparse
import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from itertools import cycle, repeat
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

import httpx
import psutil
import yaml

from registry.storage.database import SQLITE, Database, url_of
from tenants.limits.history import history_of
from tenants.limits.records import Kind as LimitKind
from tenants.limits.records import Limit
from tests.eventually import PATIENCE, eventually
from tests.system.serving import PACK, ROOT, STARTER, Server

OPTIONS = ("--slots", "4")
CHAT = "starter-chat"
MODEL_OF = {
    "chat": CHAT, "embed": "starter-embed", "rerank": "starter-rerank", "speech": "starter-speech"
}  # fmt: skip
LINE_KINDS = ("base", "adapter", "embed", "rerank") * 4 + ("speech",)
"""Kinds of lines in turn, with few recordings, because one takes a hundred times as long as an embedding."""
ADAPTERS = ("uppercase", "rot13", "reverse-words", "kebab-case", "acronym", "last-word")
PRICE = {"input": 3.0, "cached_input": 3.0, "output": 7.0, "pairs": 5.0, "audio_hour": 9.0, "batch": 0.5}
BUDGET = "1000"
ZONE = f"Etc/GMT{time.gmtime().tm_hour - 12:+d}"
"""A time zone in which it is about noon, so that no month ends during a run."""
Kind = Literal["gateway", "slot", "core"]
KINDS: tuple[Kind, ...] = ("gateway", "slot", "core")
RUNS = ("validating", "in_progress")
URLS = {
    "chat": "/v1/chat/completions", "embed": "/v1/embeddings", "rerank": "/v1/rerank",
    "speech": "/v1/audio/transcriptions",
}  # fmt: skip
RECORDING = PACK / "samples" / "kitchen-light.wav"


@dataclass(frozen=True)
class Kill:
    """A kill once `at` lines of a batch have ended, or of all batches if `batch` is empty."""

    kind: Kind
    batch: str
    at: int


@dataclass
class Totals:
    lines: int = 0
    answered: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    """Failed lines by the error's code, as three engines may have died under one."""
    kills: dict[str, int] = field(default_factory=dict)
    repeated: int = 0
    """Attempts beyond the first of each line."""
    tokens: int = 0
    audio_seconds: int = 0
    cost_micro: int = 0
    resumed: list[float] = field(default_factory=list)
    """Seconds from when a model with remaining lines is in memory again until the next line ends.

    The server itself is ready earlier, because it accepts requests while models load.
    """
    loads: list[float] = field(default_factory=list)
    """Seconds from when the server is ready until that model is in memory."""
    seconds: float = 0.0


class Run:
    def __init__(self, folder: Path, lines: int, kills: int, seed: int, kinds: Sequence[str] = LINE_KINDS) -> None:
        self._folder, self._data, self._lines, self._kinds = folder, folder / "a" / "data", lines, kinds
        self._names = list(dict.fromkeys(_batch_of(kind) for kind in kinds))
        self._chance = random.Random(seed)
        self._kills = kills
        self._recipes = _priced(folder, [MODEL_OF[name] for name in self._names])
        self._server = self._serve()
        self._key = ""
        self._batches: list[str] = []
        self.reported = Totals(lines=lines)

    def __call__(self) -> Totals:
        """Run everything. Raises AssertionError if a line or its cost is wrong."""
        began = time.monotonic()
        try:
            self._server.wait_ready()
            command = self._server.command
            command("teams", "create", "counted", "--timezone", ZONE)
            command("limits", "set", "spend_per_month", BUDGET, "--team", "counted")
            self._key = command("keys", "create", "--team", "counted", "--scopes", "infer,models")["value"]
            self._server.http.headers["x-api-key"] = self._key
            self._server.wait_closed()
            eventually(lambda: self._server.http.get("/v1/status").status_code == 200)
            recording = self._upload(RECORDING.name, RECORDING.read_bytes(), "user_data")
            made = self._made(recording)
            sent = {name: self._create(name, lines) for name, lines in made.items()}
            self._kill_all(self._planned({name: len(lines) for name, lines in made.items()}))
            eventually(self._is_done, self._state, 20 * PATIENCE)
            results = {name: self._results(batch) for name, batch in sent.items()}
            eventually(lambda: not self._open_rows(), self._state)  # a client's own request may still be open
            checked = self._reconcile()
            assert (checked["differences"], checked["open"]) == ([], 0), checked
        finally:
            self._server.close()
        self._compare(results)
        self.reported.seconds = round(time.monotonic() - began, 1)
        return self.reported

    def _serve(self) -> Server:
        return Server(self._data, [self._recipes], *OPTIONS, fixed={"heartbeat": 0.5})

    def _reconcile(self) -> Any:
        """Run the command in its own process, as people do."""
        command = [sys.executable, "-m", "runtime.cli.main", "usage", "reconcile", "--data-dir", str(self._data)]
        command.append("--json")
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    # --- lines ------------------------------------------------------------------------------------------------------
    def _made(self, recording: str) -> dict[str, list[dict[str, Any]]]:
        made: dict[str, list[dict[str, Any]]] = {name: [] for name in self._names}
        for number in range(self._lines):
            kind = self._kinds[number % len(self._kinds)]
            name = _batch_of(kind)
            body = self._body(kind, recording)
            made[name].append({"custom_id": f"line-{number}", "method": "POST", "url": URLS[name], "body": body})
        return made

    def _body(self, kind: str, recording: str) -> dict[str, Any]:
        if kind == "speech":
            return {"model": "starter-speech", "file_id": recording}
        words = " ".join(self._chance.choices(("warm", "kitchen", "seven", "boats"), k=self._chance.randrange(1, 12)))
        if kind == "embed":
            return {"model": "starter-embed", "input": words}
        if kind == "rerank":
            return {"model": "starter-rerank", "query": words, "documents": ["a boat", words]}
        model = "starter-chat" if kind == "base" else self._chance.choice(ADAPTERS)
        message = {"role": "user", "content": words}
        return {"model": model, "messages": [message], "max_tokens": self._chance.randrange(4, 60), "ignore_eos": True}

    def _create(self, name: str, lines: list[dict[str, Any]]) -> str:
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        file = self._upload(f"{name}.jsonl", data, "batch")
        body = {"input_file_id": file, "endpoint": URLS[name], "completion_window": "24h"}
        created = self._server.http.post("/v1/batches", json=body)
        assert created.status_code == 200, created.text
        self._batches.append(created.json()["id"])
        return self._batches[-1]

    def _upload(self, name: str, data: bytes, purpose: str) -> str:
        uploaded = self._server.http.post("/v1/files", files={"file": (name, data)}, data={"purpose": purpose})
        assert uploaded.status_code == 200, uploaded.text
        return str(uploaded.json()["id"])

    def _views(self) -> list[dict[str, Any]]:
        found = {batch["id"]: batch for batch in self._server.http.get("/v1/batches").json()["data"]}
        return [found[id_] for id_ in self._batches]

    def _ended(self) -> int:
        """Return the number of ended lines."""
        return sum(self._ended_by_batch().values())

    def _ended_by_batch(self) -> dict[str, int]:
        """Return the ended lines of each batch; empty while the server is away."""
        with suppress(httpx.TransportError, KeyError):
            counts = [batch["request_counts"] for batch in self._views()]
            ended = [int(count["completed"]) + int(count["failed"]) for count in counts]
            return dict(zip(self._names, ended, strict=True))
        return {}

    def _is_done(self) -> bool:
        states = {batch["status"] for batch in self._views()}
        assert not states & {"cancelled", "failed", "expired"}, self._state()
        return states == {"completed"}

    def _state(self) -> str:
        return f"{json.dumps(self._views(), indent=1)}\n{self._server.tail()}"

    def _results(self, batch: str) -> list[dict[str, Any]]:
        view = self._server.http.get(f"/v1/batches/{batch}").json()
        return [
            json.loads(line)
            for id_ in (view["output_file_id"], view["error_file_id"])
            if id_ is not None
            for line in self._server.http.get(f"/v1/files/{id_}/content").text.splitlines()
        ]

    # --- kills ------------------------------------------------------------------------------------------------------
    def _planned(self, lines: Mapping[str, int]) -> list[Kill]:
        """Plan kills of each kind in turn. Those of slots and cores are spread over one batch, as speeds differ."""
        names = list(lines)
        batches = {"gateway": repeat(""), "slot": cycle(names), "core": repeat("chat")}
        kills = [(kind, next(batches[kind])) for kind in (KINDS[number % len(KINDS)] for number in range(self._kills))]
        of_batch, planned = Counter(batch for _, batch in kills), []
        for batch, count in of_batch.items():
            all_lines = lines.get(batch, self._lines)
            kinds = [kind for kind, name in kills if name == batch]
            self._chance.shuffle(kinds)
            planned += [Kill(kind, batch, all_lines * number // (count + 2)) for number, kind in enumerate(kinds, 1)]
        return planned

    def _kill_all(self, planned: list[Kill]) -> None:
        """Carry out the kills at random moments between two ends of lines."""
        counts = Counter[str]()
        while planned:
            eventually(lambda: self._due(planned) or self._is_done(), self._state, 20 * PATIENCE)
            time.sleep(self._chance.uniform(0.0, 0.3))
            if not (due := self._due(planned)):
                if self._is_done():  # the lines ended before the kills
                    break
                continue
            kill = self._chance.choice(due)
            if kill.kind == "gateway":
                before = self._ended()
                self._end_gateway()
                self._begin()
                self._follow_resume(before)
            elif not self._kill(kill.kind, MODEL_OF[kill.batch]):
                continue
            planned.remove(kill)
            counts[kill.kind] += 1
        self.reported.kills = dict(counts)

    def _due(self, planned: Sequence[Kill]) -> list[Kill]:
        """Return the kills that are due, preferring those of slots and cores whose model is loaded."""
        ended, working = self._ended_by_batch(), set(self._models_with_lines())
        reached = [
            kill for kill in planned if ended and (ended[kill.batch] if kill.batch else sum(ended.values())) >= kill.at
        ]
        of_models = [
            kill for kill in reached
            if kill.batch and MODEL_OF[kill.batch] in working
            and self._server.model(MODEL_OF[kill.batch])["state"] == "ready"
        ]  # fmt: skip
        return of_models or [kill for kill in reached if not kill.batch and working]

    def _follow_resume(self, before: int) -> None:
        """Wait until more lines have ended than `before`, and record the times."""
        began = time.monotonic()
        waiting = self._models_with_lines()
        if not waiting:
            return

        def is_back() -> bool:
            return self._ended() > before or any(self._server.model(model)["state"] == "ready" for model in waiting)

        eventually(is_back, self._state)
        ready = time.monotonic()
        eventually(lambda: self._ended() > before, self._state)
        self.reported.loads.append(round(ready - began, 2))
        self.reported.resumed.append(round(time.monotonic() - ready, 2))

    def _models_with_lines(self) -> list[str]:
        views = zip(self._names, self._views(), strict=True)
        return [MODEL_OF[name] for name, batch in views if batch["status"] in RUNS]

    def _kill(self, kind: Kind, model: str) -> bool:
        """Kill a process of a model. Returns False if the model has just been unloaded because its lines ended."""
        if (found := self._server.model(model))["state"] != "ready":
            return False
        pid = self._server.core_pid(model) if kind == "core" else int(found["pid"])
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: self._server.model(model)["deaths"] > found["deaths"], self._server.tail)
        return True

    def _end_gateway(self) -> None:
        psutil.Process(self._server.http.get("/v1/status").json()["pid"]).kill()
        self._server.process.wait(PATIENCE)
        self._server.close()

    def _begin(self) -> None:
        self._server = self._serve()
        self._server.http.headers["x-api-key"] = self._key
        self._server.wait_ready()

    # --- comparison -------------------------------------------------------------------------------------------------
    def _compare(self, results: Mapping[str, list[dict[str, Any]]]) -> None:
        lines = [line for many in results.values() for line in many]
        ids = Counter(line["custom_id"] for line in lines)
        assert ids == Counter(f"line-{number}" for number in range(self._lines)), ids.most_common(3)
        answered = [line for line in lines if line["response"] is not None and line["response"]["status_code"] == 200]
        failed = Counter(_code(line) for line in lines if line not in answered)
        assert failed.keys() <= {"engine_died"}, failed
        rows = self._rows("source = 'batch'")
        done = [row for row in rows if row["end"] == "done"]
        assert len(done) == len(answered), "one settled row for each answer"
        assert not [row["uid"] for row in rows if row["state"] == "open"]
        assert not [row["uid"] for row in rows if row["end"] != "done" and row["cost_micro"] + row["prompt_tokens"]]
        mine = {line["response"]["request_id"]: _used(line["response"]["body"]["usage"]) for line in answered}
        assert mine == {row["request"]: _charged(row) for row in done}
        reported = self.reported
        reported.answered, reported.failed = len(answered), dict(failed)
        reported.repeated = len(rows) - self._lines
        reported.tokens, reported.audio_seconds = (sum(used) for used in zip(*mine.values(), strict=True))
        assert min(reported.tokens, reported.audio_seconds) > 0
        reported.cost_micro = sum(row["cost_micro"] for row in done)
        assert reported.cost_micro > 0
        assert self._spent() == reported.cost_micro

    def _open_rows(self) -> list[sqlite3.Row]:
        return self._rows("state = 'open'")

    def _rows(self, where: str) -> list[sqlite3.Row]:
        with closing(sqlite3.connect(self._data / "tenants.db")) as database:
            database.row_factory = sqlite3.Row
            return database.execute(f"SELECT * FROM ledger WHERE {where}").fetchall()

    def _spent(self) -> int:
        """Return the spent millionths of the budget as a newly started server reads them."""
        database = Database(url_of(f"{SQLITE}:///{self._data / 'tenants.db'}"))
        try:
            limit = Limit("l", "team", "counted", LimitKind.MONTH, 1)
            return history_of(database, [limit], {"counted": ZoneInfo(ZONE)}, time.time()).spent["l"]
        finally:
            database.close()


def _batch_of(kind: str) -> str:
    """Return the batch of a kind of lines."""
    return "chat" if kind in ("base", "adapter") else kind


def _priced(folder: Path, models: Sequence[str]) -> Path:
    """Write the models' starter recipes with prices."""
    recipes = folder / "recipes"
    recipes.mkdir()
    for model in models:
        recipe = yaml.safe_load((STARTER / f"{model}.yaml").read_text()) | {"price": PRICE}
        recipe["residency"] = {**recipe.get("residency", {}), "preload": True}
        (recipes / f"{model}.yaml").write_text(yaml.safe_dump(recipe))
    return recipes


def _charged(row: sqlite3.Row) -> tuple[int, int]:
    """Return the same from a row of the ledger, which also counts the tokens of a transcript."""
    if row["audio_ms"]:
        return 0, math.ceil(row["audio_ms"] / 1e3)
    return row["prompt_tokens"] + row["completion_tokens"], 0


def _used(usage: Mapping[str, Any]) -> tuple[int, int]:
    """Return the tokens, and the whole seconds of a recording."""
    return int(usage.get("total_tokens", 0)), int(usage.get("seconds", 0))


def _code(line: Mapping[str, Any]) -> str:
    if line["response"] is None:
        return str(line["error"]["code"])
    return str(line["response"]["body"]["error"]["code"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=46)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reported = Run(Path(folder), given.lines, given.kills, given.seed)()
    print(json.dumps(asdict(reported)))


if __name__ == "__main__":
    main()
