"""Checks that each answer is counted once while slots, EngineCores and the gateway are killed.

    python -m tests.faults.ledger.kills [--requests 5000] [--kills 24] [--clients 8] [--seed 22]

Sends mixed requests to real engines, each with its own id. At the end each request with a complete answer must have
exactly one settled row in the ledger, with the tokens of the answer's own usage. Requests that ran when the gateway
died must be interrupted, and no row may be open. Prints one line of JSON at the end.
"""

import argparse
import itertools
import json
import os
import random
import signal
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import httpx
import psutil

from tests.eventually import PATIENCE, eventually
from tests.faults.traffic import MODELS, WAV
from tests.system.serving import STARTER, Server

OPTIONS = ("--slots", "4")
Kind = Literal["slot", "core", "gateway"]
KINDS: tuple[Kind, ...] = ("slot", "core", "gateway")
KINDS_OF: Mapping[str, tuple[str, ...]] = {
    "starter-chat": ("chat", "stream", "adapter", "messages"), "starter-embed": ("embed",),
    "starter-rerank": ("rerank",), "starter-speech": ("speech",),
}  # fmt: skip
"""The kinds of requests for each model."""


@dataclass(frozen=True)
class Used:
    """The usage in an answer."""

    prompt: int = 0
    completion: int = 0
    audio_ms: int = 0


@dataclass
class Totals:
    requests: int = 0
    answered: int = 0
    broken: int = 0
    """Requests whose connection ended before the answer did."""
    refused: dict[str, int] = field(default_factory=dict)
    """Refused requests by status."""
    kills: dict[str, int] = field(default_factory=dict)
    interrupted: int = 0
    settled_unseen: int = 0
    """Settled requests whose connection broke before the client had read everything."""
    tokens: int = 0
    seconds: float = 0.0


class Run:
    def __init__(
        self, folder: Path, requests: int, kills: int, clients: int, seed: int, models: Sequence[str] = MODELS
    ) -> None:
        self._data, self._requests, self._clients = folder / "a" / "data", requests, clients
        self._models, self._recipes = models, [STARTER / f"{model}.yaml" for model in models]
        self._chance, self._numbers = random.Random(seed), itertools.count()
        self._kills = [KINDS[n % len(KINDS)] for n in range(kills)]
        self._server, self._key, self._up = (
            Server(self._data, self._recipes, *OPTIONS, fixed={"heartbeat": 0.5}),
            "",
            threading.Event(),
        )
        self._lock = threading.Lock()
        self.got: dict[str, Used] = {}
        self.reported, self._refused, self._requested = Totals(requests=requests), Counter[str](), 0

    def __call__(self) -> Totals:
        """Run everything. Raises AssertionError if the ledger is wrong."""
        began = time.monotonic()
        try:
            self._server.wait_ready()
            self._server.command("teams", "create", "counted")
            self._key = self._server.command("keys", "create", "--team", "counted", "--scopes", "infer,models")["value"]
            self._server.http.headers["x-api-key"] = self._key
            self._server.wait_closed()
            eventually(lambda: self._server.http.get("/v1/status").status_code == 200)
            self._up.set()
            threads = [threading.Thread(target=self._client, args=(number,)) for number in range(self._clients)]
            for thread in threads:
                thread.start()
            self._kill_all()
            for thread in threads:
                thread.join()
            self._end_gateway()
            self._begin([STARTER / "starter-speech.yaml"], "--slots", "1")  # only to end open rows, without a model
            checked = self._server.command("usage", "reconcile")
            assert (checked["differences"], checked["open"]) == ([], 0), checked
        finally:
            self._server.close()
        self._compare()
        self.reported.refused, self.reported.seconds = dict(self._refused), round(time.monotonic() - began, 1)
        return self.reported

    # --- who asks ---------------------------------------------------------------------------------------------------
    def _client(self, seed: int) -> None:
        chance, kinds = random.Random(seed), [kind for model in self._models for kind in KINDS_OF[model]]
        while (number := next(self._numbers)) < self._requests:
            assert self._up.wait(PATIENCE)
            name = f"kills-{number}"
            with suppress(httpx.TransportError), httpx.Client(base_url=self._server.url, timeout=PATIENCE) as http:
                http.headers.update({"x-api-key": self._key, "X-Request-Id": name})
                status, used = _ask(http, chance, chance.choice(kinds))
                with self._lock:
                    if used is not None:
                        self.got[name] = used
                    else:
                        self._refused[str(status)] += 1
            with self._lock:
                self._requested += 1

    # --- who kills --------------------------------------------------------------------------------------------------
    def _kill_all(self) -> None:
        counts = Counter[str]()
        for number, kind in enumerate(self._kills, start=1):
            at = self._chance.randrange(max(1, self._requests // (len(self._kills) + 1)))
            threshold = min(self._requests * number // (len(self._kills) + 1) + at, self._requests - 1)
            eventually(lambda at=threshold: self._requested >= at, self._server.tail, 10 * PATIENCE)  # type: ignore[misc]
            if kind == "gateway":
                self._end_gateway()
                self._begin()
            else:
                self._kill(kind)
            counts[kind] += 1
        self.reported.kills = dict(counts)

    def _kill(self, kind: Kind) -> None:
        """Kill a process. Raises AssertionError if the server does not notice."""
        model = "starter-chat" if kind == "core" else self._chance.choice(self._models)
        before = self._server.wait_state(model, "ready")["deaths"]
        who: Callable[[str], int] = self._server.core_pid if kind == "core" else self._server.slot_pid
        os.kill(who(model), signal.SIGKILL)
        eventually(lambda: self._server.model(model)["deaths"] > before, self._server.tail)

    def _end_gateway(self) -> None:
        self._up.clear()
        psutil.Process(self._server.http.get("/v1/status").json()["pid"]).kill()
        self._server.process.wait(PATIENCE)
        self._server.close()

    def _begin(self, recipes: Sequence[Path] = (), *options: str) -> None:
        """Start the server, by default with the run's own recipes."""
        self._server = Server(self._data, recipes or self._recipes, *(options or OPTIONS), fixed={"heartbeat": 0.5})
        self._server.http.headers["x-api-key"] = self._key
        self._server.wait_ready()
        self._up.set()

    # --- who counts -------------------------------------------------------------------------------------------------
    def _compare(self) -> None:
        with sqlite3.connect(self._data / "tenants.db") as database:
            database.row_factory = sqlite3.Row
            rows = database.execute("SELECT * FROM ledger WHERE request LIKE 'kills-%'").fetchall()
        assert not [row["request"] for row in rows if row["state"] == "open"]
        attempts = Counter((row["request"], row["attempt"]) for row in rows)
        assert max(attempts.values(), default=1) == 1, attempts.most_common(3)
        done = Counter(row["request"] for row in rows if row["end"] == "done")
        assert max(done.values(), default=1) == 1, done.most_common(3)
        found = {row["request"]: _used(row) for row in rows if row["end"] == "done"}
        wrong = {name: (used, found.get(name)) for name, used in self.got.items() if found.get(name) != used}
        assert not wrong, dict(itertools.islice(wrong.items(), 5))
        reported = self.reported
        reported.answered = len(self.got)
        reported.broken = reported.requests - len(self.got) - sum(self._refused.values())
        reported.interrupted = sum(row["state"] == "interrupted" for row in rows)
        reported.settled_unseen = len(found.keys() - self.got.keys())
        assert reported.settled_unseen <= reported.broken
        reported.tokens = sum(used.prompt + used.completion for used in self.got.values())


def _used(row: sqlite3.Row) -> Used:
    return Used(row["prompt_tokens"], row["completion_tokens"], row["audio_ms"])


def _ask(http: httpx.Client, chance: random.Random, kind: str) -> tuple[int, Used | None]:
    """Send a request of this kind; returns its status, and its usage if the whole answer arrived."""
    words = " ".join(chance.choice(("warm", "kitchen", "seven", "boats")) for _ in range(chance.randrange(1, 12)))
    match kind:
        case "chat" | "adapter":
            model = "starter-chat" if kind == "chat" else chance.choice(("uppercase", "rot13", "reverse-words"))
            body = {"model": model, "messages": [{"role": "user", "content": words}], "max_tokens": 12}
            return _read(http.post("/v1/chat/completions", json=body), _chat)
        case "stream":
            return _stream(http, words)
        case "messages":
            body = {"model": "starter-chat", "messages": [{"role": "user", "content": words}], "max_tokens": 8}
            return _read(http.post("/v1/messages", json=body), lambda u: Used(u["input_tokens"], u["output_tokens"]))
        case "embed":
            answer = http.post("/v1/embeddings", json={"model": "starter-embed", "input": words.split()})
            return _read(answer, lambda u: Used(u["prompt_tokens"]))
        case "rerank":
            body = {"model": "starter-rerank", "query": words, "documents": ["a boat", words]}
            return _read(http.post("/v1/rerank", json=body), lambda u: Used(u["total_tokens"]))
        case _:
            files = {"file": ("a.wav", WAV.read_bytes()), "model": (None, "starter-speech")}
            files |= {"response_format": (None, "verbose_json")}
            answer = http.post("/v1/audio/transcriptions", files=files)
            if answer.status_code != 200:
                return answer.status_code, None
            received = answer.json()
            made = sum(len(segment["tokens"]) for segment in received["segments"])
            return 200, Used(completion=made, audio_ms=round(received["duration"] * 1000))


def _read(answer: httpx.Response, of: Callable[[Mapping[str, int]], Used]) -> tuple[int, Used | None]:
    return answer.status_code, of(answer.json()["usage"]) if answer.status_code == 200 else None


def _chat(usage: Mapping[str, int]) -> Used:
    return Used(usage["prompt_tokens"], usage["completion_tokens"])


def _stream(http: httpx.Client, words: str) -> tuple[int, Used | None]:
    body = {"model": "starter-chat", "messages": [{"role": "user", "content": words}], "max_tokens": 40}
    more = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    used, status = None, 0
    with http.stream("POST", "/v1/chat/completions", json={**body, **more}) as answer:
        status = answer.status_code
        for line in answer.iter_lines():
            if line == "data: [DONE]":
                return status, used
            if line.startswith("data: {") and (usage := json.loads(line[6:]).get("usage")):
                used = _chat(usage)
    return status, None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=24)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=22)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reported = Run(Path(folder), given.requests, given.kills, given.clients, given.seed)()
    print(json.dumps(asdict(reported)))


if __name__ == "__main__":
    main()
