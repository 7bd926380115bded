"""Input files of batches, and a client that uploads them, creates batches and polls them."""

import asyncio
import json
import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from benchmarks.load.client import request_bytes
from benchmarks.load.workload import WORDS
from benchmarks.peers.servers import Server

CHAT = "/v1/chat/completions"
POLL_SECONDS, WITHIN_SECONDS = 0.1, 900.0
Body = dict[str, Any]


def paced_body(model: str, tokens: int, pause_ms: int, filling: int = 0) -> Body:
    """Return a body for the scripted engine: `tokens` tokens, one every `pause_ms` milliseconds."""
    content = "go" + "x" * filling
    return {
        "model": model, "messages": [{"role": "user", "content": content}], "max_tokens": tokens, "seed": pause_ms,
    }  # fmt: skip


def chat_bodies(chance: random.Random, models: Sequence[str], count: int, tokens: tuple[int, int]) -> list[Body]:
    """Return different chat requests, to these models in turn, with `tokens` the range of answer lengths."""
    return [
        {
            "model": models[number % len(models)],
            "messages": [{"role": "user", "content": f"{number} {' '.join(chance.choices(WORDS, k=6))}"}],
            "max_tokens": chance.randint(*tokens),
            "ignore_eos": True,
            "temperature": 0,
        }
        for number in range(count)
    ]


def requests_of(bodies: Sequence[Body]) -> list[bytes]:
    """Return the bodies as HTTP requests."""
    return [request_bytes(CHAT, body) for body in bodies]


def jsonl(bodies: Sequence[Body]) -> bytes:
    rows = ({"custom_id": f"line-{n}", "method": "POST", "url": CHAT, "body": body} for n, body in enumerate(bodies))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@dataclass
class BatchRun:
    """The times of one batch, in seconds."""

    upload: float = 0.0
    working: float = 0.0
    """From the storage of all lines until the batch ended."""
    tokens: int = 0
    completed: int = 0
    failed: int = 0


def upload(server: Server, data: bytes) -> str:
    answer = server.http.post("/v1/files", files={"file": ("in.jsonl", data)}, data={"purpose": "batch"})
    answer.raise_for_status()
    file = answer.json()
    assert file["status"] == "processed", file
    return str(file["id"])


def create(server: Server, file: str) -> str:
    body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    answer = server.http.post("/v1/batches", json=body)
    answer.raise_for_status()
    return str(answer.json()["id"])


async def view_of(server: Server, batch: str) -> dict[str, Any]:
    answer = await asyncio.to_thread(server.http.get, f"/v1/batches/{batch}")
    answer.raise_for_status()
    view: dict[str, Any] = answer.json()
    return view


async def until(
    server: Server, batch: str, condition: Callable[[dict[str, Any]], bool], pause: float = POLL_SECONDS
) -> dict[str, Any]:
    """Poll the batch until the condition holds; returns its view then. Raises TimeoutError."""
    deadline = time.monotonic() + WITHIN_SECONDS
    while time.monotonic() < deadline:
        view = await view_of(server, batch)
        if condition(view):
            return view
        await asyncio.sleep(pause)
    raise TimeoutError(f"batch {batch} after {WITHIN_SECONDS:.0f} s")


async def cancel(server: Server, batch: str) -> None:
    server.http.post(f"/v1/batches/{batch}/cancel").raise_for_status()
    await until(server, batch, lambda view: view["status"] == "cancelled")


def is_stored(view: dict[str, Any]) -> bool:
    return bool(view["status"] != "validating")


def completed(view: dict[str, Any]) -> int:
    return int(view["request_counts"]["completed"])


async def run_batch(server: Server, data: bytes) -> BatchRun:
    """Upload a file, create a batch and wait for its end. Raises AssertionError if the batch fails."""
    run, began = BatchRun(), time.time()
    file = await asyncio.to_thread(upload, server, data)
    uploaded = time.time()
    batch = await asyncio.to_thread(create, server, file)
    await until(server, batch, is_stored, 0.02)
    started = time.time()
    view = await until(server, batch, lambda view: view["status"] != "in_progress")
    ended = time.time()
    assert view["status"] == "completed", view
    run.upload, run.working = uploaded - began, ended - started
    run.tokens = view["usage"]["output_tokens"]
    run.completed, run.failed = completed(view), view["request_counts"]["failed"]
    return run


def forecast_ratios(server: Server) -> dict[str, list[float]]:
    """Return forecast over actual duration of a server's completed batches, by when the forecast was made.

    Reads the database, because the API has whole seconds and these batches take only some twenty.
    """
    columns = {"creation": "first_forecast", "tenth": "tenth_forecast"}
    query = f"SELECT {', '.join(columns.values())}, ended FROM batches WHERE state = 'completed' ORDER BY created"
    with closing(sqlite3.connect(f"file:{server.folder / 'data' / 'tenants.db'}?mode=ro", uri=True)) as database:
        rows = database.execute(query).fetchall()
    ratios: dict[str, list[float]] = {label: [] for label in columns}
    for *stored, ended in rows:
        for label, text in zip(columns, stored, strict=True):
            forecast = json.loads(text) if text else None
            if forecast and ended > forecast["made"]:
                ratios[label].append((forecast["likely"] - forecast["made"]) / (ended - forecast["made"]))
    return ratios
