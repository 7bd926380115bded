"""Endless requests of all four tasks, each from its own client, and their results."""

import threading
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import httpx

from tests.eventually import PATIENCE, eventually
from tests.system.serving import PACK, Server

MODELS = ("starter-chat", "starter-embed", "starter-rerank", "starter-speech")
WAV = PACK / "samples" / "kitchen-light.wav"
PATIENT = {"Prefer": f"wait={PATIENCE:.0f}"}


def ask(http: httpx.Client, model: str, kind: str | None = None) -> httpx.Response:
    """Send a short request, which waits for a load without a limit. `kind` is the starter model of `model`'s task."""
    match kind or model:
        case "starter-chat":
            body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
            return http.post("/v1/chat/completions", json=body, headers=PATIENT)
        case "starter-embed":
            body = {"model": model, "input": "a warm kitchen"}
            return http.post("/v1/embeddings", json=body, headers=PATIENT)
        case "starter-rerank":
            body = {"model": model, "query": "a", "documents": ["a", "b"]}
            return http.post("/v1/rerank", json=body, headers=PATIENT)
        case _:
            files = {"file": ("a.wav", WAV.read_bytes()), "model": (None, model)}
            return http.post("/v1/audio/transcriptions", files=files, headers=PATIENT)


PAUSE = 0.25
"""Seconds between two requests of a client, so that the cores have time for loads of killed models."""


class ClientThreads:
    """A context manager that runs `_run` in a thread for each model. Its end sets `_stop`."""

    def __init__(self, models: Iterable[str], timeout: float = PATIENCE) -> None:
        self._timeout, self._stop = timeout, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(model,), daemon=True) for model in models]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(self._timeout)

    def _run(self, model: str) -> None:
        raise NotImplementedError


class Traffic(ClientThreads):
    """Requests to every model, without end, inside the context.

    Counts the statuses of answers; 0 means that the connection broke.
    """

    def __init__(self, server: Server, models: tuple[str, ...] = MODELS) -> None:
        super().__init__(models, PATIENCE)
        self._url, self._lock = server.url, threading.Lock()
        self._seen: dict[str, Counter[int]] = {model: Counter() for model in models}

    def _run(self, model: str) -> None:
        with httpx.Client(base_url=self._url, timeout=self._timeout) as http:
            while not self._stop.is_set():
                try:
                    status = ask(http, model).status_code
                except httpx.TransportError:
                    status = 0
                with self._lock:
                    self._seen[model][status] += 1
                self._stop.wait(PAUSE)

    def take(self) -> dict[str, Counter[int]]:
        """Return the statuses since the last call."""
        with self._lock:
            seen, self._seen = self._seen, {model: Counter() for model in self._seen}
        return seen

    def wait_answers(self) -> dict[str, Counter[int]]:
        """Wait until every model has answered twice with 200; returns the statuses since the last `take`."""
        eventually(lambda: all(seen[200] >= 2 for seen in self._copy().values()), self._copy)
        return self.take()

    def _copy(self) -> dict[str, Counter[int]]:
        with self._lock:
            return {model: seen.copy() for model, seen in self._seen.items()}
