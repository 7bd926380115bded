"""Access to a server with one tiny base: adapters by number, greedy answers, streams in the background."""

import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from tests.contract.chat import fixtures as chat_fixtures
from tests.faults.traffic import ClientThreads
from tests.system.serving import Server

PATIENCE = 600.0
"""Seconds; no test decides by time."""
RECIPE = """
id: tiny
version: 1
task: chat
source: {{path: {base}}}
engine: {{name: vllm}}
dtype: float32
context_length: 512
memory: {{kv_cache: 64MiB, adapters: {{device: 4, host: {host}, max_rank: 16}}}}
batching: {{max_requests: 16, max_tokens: 2048}}
"""
"""A recipe to fill in with `base`, its folder, and `host`, the number of adapters in host memory."""


@dataclass(frozen=True)
class Tiny:
    server: Server
    folder: Path

    @property
    def http(self) -> httpx.Client:
        return self.server.http

    def content(self, seed: int) -> Path:
        """Return the folder of a generated adapter."""
        path = self.folder / f"content-{seed}"
        if not path.exists():
            chat_fixtures.write_adapter(path, seed)
        return path

    def register(self, name: str, source: Path, **about: Any) -> httpx.Response:
        body = {"name": name, "base": "tiny", "source": {"path": str(source)}, **about}
        return self.http.post("/v1/adapters", json=body)

    def upload(self, name: str, data: bytes) -> httpx.Response:
        """Register an archive."""
        form = {"name": name, "base": "tiny"}
        return self.http.post("/v1/adapters", data=form, files={"file": ("a.tar.gz", data)})

    def add(self, name: str, seed: int, **about: Any) -> dict[str, Any]:
        """Register content `seed`; returns the server's answer."""
        answer = self.register(name, self.content(seed), **about)
        assert answer.status_code in (200, 201), answer.text
        found: dict[str, Any] = answer.json()
        return found

    def show(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/v1/adapters/{name}").json()
        return found

    def ask(self, model: str, tokens: int = 8) -> httpx.Response:
        """Request a greedy answer to 'hello'."""
        return self.http.post("/v1/chat/completions", json=body(model, tokens), timeout=PATIENCE)

    def tokens(self, model: str, count: int = 8) -> list[int]:
        answer = self.ask(model, count)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["choices"][0]["token_ids"])


def body(model: str, tokens: int) -> dict[str, Any]:
    return {
        "model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": tokens, "temperature": 0,
        "return_token_ids": True, "ignore_eos": True,
    }  # fmt: skip


def archive(folder: Path) -> bytes:
    """Return a folder as a tar.gz with one top-level folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(folder, "mine")
    return buffer.getvalue()


class Bystanders(ClientThreads):
    """Greedy streams in rounds while the block runs. `rounds` has the tokens of each round."""

    def __init__(self, tiny: Tiny, models: list[str], tokens: int = 200) -> None:
        super().__init__(models)
        self._tiny, self._tokens = tiny, tokens
        self.rounds: dict[str, list[list[int]]] = {model: [] for model in models}
        self.faults: list[Exception] = []

    def _run(self, model: str) -> None:
        try:
            with httpx.Client(base_url=self._tiny.server.url, timeout=PATIENCE) as http:
                while not self._stop.is_set() or not self.rounds[model]:
                    self.rounds[model].append(self._stream(http, model))
        except Exception as error:  # raised at the end of the block
            self.faults.append(error)

    def _stream(self, http: httpx.Client, model: str) -> list[int]:
        found: list[int] = []
        with http.stream("POST", "/v1/chat/completions", json={**body(model, self._tokens), "stream": True}) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    assert "error" not in event, event
                    found += [token for choice in event["choices"] for token in choice.get("token_ids") or ()]
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if error is None and self.faults:
            raise self.faults[0]


def undisturbed(tiny: Tiny, models: list[str]) -> dict[str, list[int]]:
    """Return the streams' tokens while nothing else happens, from one round of all of them at once."""
    with Bystanders(tiny, models) as alone:
        alone._stop.set()
    return {model: rounds[0] for model, rounds in alone.rounds.items()}


def same_as_alone(seen: Bystanders, alone: dict[str, list[int]]) -> None:
    for model, rounds in seen.rounds.items():
        assert rounds
        assert all(tokens == alone[model] for tokens in rounds), model
