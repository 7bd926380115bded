"""Runs commands in this process against a fake server on a real socket."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import typer.main
import typer.testing
from typer.testing import CliRunner

from runtime.cli.main import app
from tests.unit.cli.fake_server import FakeServer

Run = Callable[..., Any]


@pytest.fixture(scope="session", autouse=True)
def built_once() -> Iterator[None]:
    """Build the commands once. Typer's runner would do so for each call, which takes ten times as long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    fake = FakeServer()
    monkeypatch.setenv("ROUNDHOUSE_URL", fake.url)
    yield fake
    fake.close()


@pytest.fixture
def run() -> Run:
    """Return a function such as `run("models", "list")`, whose result has exit_code, stdout and stderr."""
    runner = CliRunner()

    def invoke(*arguments: str, stdin: str | None = None) -> Any:
        return runner.invoke(app, list(arguments), input=stdin, env={"COLUMNS": "160"})

    return invoke


def model(id: str = "starter-chat", **more: Any) -> dict[str, Any]:
    """Return a model as the server shows it."""
    result: dict[str, Any] = {
        "id": id, "object": "model", "created": 1, "owned_by": "roundhouse", "task": "chat", "state": "ready",
        "tier": "device", "revision": "1f2e", "recipe_version": 1, "engine": "vllm", "aliases": ["chat"],
        "context_length": 512, "pinned": False, "bytes": 3 * 2**20, "host_bytes": 0, "expected_bytes": 4 * 2**20,
        "weights_bytes": 2**20, "kv_cache_bytes": 2**20, "expected_load_seconds": 8.0,
        "can_sleep": False, "expected_wake_seconds": None, "wakes": 0,
        "last_load_seconds": {"weights": 0.5}, "last_used": None, "running": 0, "waiting": 0, "loads": 1, "deaths": 0,
        "progress": None, "failure": None, "problem": None, "adapters": ["uppercase"], "description": "",
        "replicas": [],
    }  # fmt: skip
    return {**result, **more}


def adapter(name: str = "legal", **more: Any) -> dict[str, Any]:
    """Return an adapter as the server shows it."""
    version = {
        "version": "v2", "digest": "sha256:" + "ab" * 32, "rank": 8, "bytes": 2048, "created": 1, "source": "/a",
    }  # fmt: skip
    result: dict[str, Any] = {
        "object": "adapter", "name": name, "base": "starter-chat", "team": "default", "shared": True, **version,
        "versions": [version], "aliases": {"prod": "v2"}, "pinned": False, "tier": "device", "running": 0, "waiting": 0,
        "hits": 3, "misses": 1, "evictions": 0,
        "last_stage_seconds": None, "last_place_seconds": None, "last_used": None,
    }  # fmt: skip
    return {**result, **more}
