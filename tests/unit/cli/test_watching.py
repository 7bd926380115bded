"""`roundhouse top` and `roundhouse logs` against a fake server."""

import json
import os
import pty
import subprocess
import sys
from typing import Any

import pytest

from runtime.cli.commands.server.logs import seconds
from tests.eventually import PATIENCE
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_server import Answer, FakeServer

EVENTS = {"Content-Type": "text/event-stream"}


def now(**more: Any) -> dict[str, Any]:
    minute = {
        "requests": 12,
        "tokens": 600,
        "swaps": 3,
        "first_p90": 0.02,
        "firsts": [],
        "rates": [],
        "swap_rates": [],
        "request_rates": [],
        "causes": {"queue": 0.5, "load": 0.0, "swap": 0.1, "prefill": 1, "decode": 3, "provider": 0},
    }
    model = {
        "id": "starter-chat",
        "task": "chat",
        "state": "loading",
        "bytes": 2**20,
        "host_bytes": 0,
        "running": 1,
        "waiting": 2,
        "pinned": True,
        "idle_seconds": None,
        "wake_seconds": None,
        "phase": "weights",
        "percent": 40.0,
        "detail": "1 of 2 files",
        "failure": "",
    }
    ring = {
        "model": "starter-chat",
        "state": "ready",
        "places": 4,
        "host_used": 1,
        "host_places": 8,
        "running": 1,
        "waiting": 0,
        "adapters": 9,
        "away": [],
        "stalls": [
            {"number": 0, "adapter": "legal", "state": "run", "running": 1},
            {"number": 2, "adapter": "polite", "state": "swap"},
        ],
    }
    reported = {
        "number": 1,
        "at": 995.0,
        "kind": "swap",
        "model": "starter-chat",
        "subject": "legal",
        "words": "takes the place of",
        "object": "polite",
        "more": "staged in 1.0 ms",
        "seconds": 0.002,
    }
    device = {"label": "cpu", "budget": 2**30, "held": 2**20, "name": "cpu", "fault": ""}
    found = {
        "at": 1000.0,
        "phase": "ready",
        "uptime": 90.0,
        "device": device,
        "devices": [device],
        "host": None,
        "models": [model],
        "rings": [ring],
        "running": 1,
        "waiting": 2,
        "longest_wait": 0.4,
        "minute": minute,
        "decisions": [reported],
        "shares": {"search": 3.0},
    }
    return {**found, **more}


def streamed(*looks: dict[str, Any]) -> Answer:
    events = "".join(f"event: now\ndata: {json.dumps(look)}\n\n" for look in looks)
    return Answer(f"retry: 1000\n\n{events}", headers=EVENTS)


def test_top_prints_one_snapshot_without_a_terminal(server: FakeServer, run: Run) -> None:
    server.on("GET", "/console/events", streamed(now(), now(phase="stopping")))
    result = run("top")
    assert result.exit_code == 0, result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 200
    for words in (
        "ready",
        "1 running, 2 waiting, the longest for 400.0 ms",
        "loading 40 %, pinned",
        "2 of 4 places  ●·◐·",
        "legal, polite",
        "queue 500.0 ms",
        "search 3.0 s",
        "legal takes the place of polite",
    ):
        assert words in result.stdout, words
    assert "stopping" not in result.stdout


def test_top_prints_one_snapshot_on_a_terminal_without_cursor_control(server: FakeServer) -> None:
    """Rich draws nothing there, so that the command would show nothing, and never end."""
    server.on("GET", "/console/events", streamed(now()))
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "runtime.cli.main", "top"]
    environment = {**os.environ, "TERM": "dumb"}
    done = subprocess.run(command, stdout=its, stderr=subprocess.PIPE, env=environment, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"1 running, 2 waiting" in os.read(ours, 4096)
    os.close(its)
    os.close(ours)


def test_top_prints_json_once_or_repeatedly(server: FakeServer, run: Run) -> None:
    server.on("GET", "/console/events", streamed(now(), now(phase="stopping")))
    assert json.loads(run("top", "--once", "--json").stdout)["phase"] == "ready"
    result = run("top", "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line.get("phase") for line in lines[:2]] == ["ready", "stopping"]
    assert result.exit_code == 4, "because the stream ended"


def test_top_of_a_server_without_decisions(server: FakeServer, run: Run) -> None:
    quiet = now(decisions=[], shares=None, rings=[])
    quiet["minute"] |= {"causes": dict.fromkeys(quiet["minute"]["causes"], 0.0), "first_p90": None}
    server.on("GET", "/console/events", streamed(quiet))
    displayed = run("top", "--once").stdout
    assert "no request ended in the last minute" in displayed
    assert "none yet" in displayed


def test_top_of_a_server_without_a_stream_fails(server: FakeServer, run: Run) -> None:
    server.on("GET", "/console/events", Answer({"object": "other"}))
    result = run("top")
    assert (result.exit_code, "no event stream" in result.stderr) == (4, True)


ROUTE = {
    "router": "auto@v1",
    "target": "starter-chat:iso-date",
    "reason": "intent:iso-date",
    "score": 0.998,
    "scores": {"iso-date": 0.998, "acronym": 0.001},
    "alternatives": ["starter-chat:acronym"],
    "saw": {"features": "letters"},
}
RECORD = {
    "id": "req-1",
    "at": 1000.0,
    "team": "search",
    "endpoint": "/v1/chat/completions",
    "asked": "auto",
    "model": "starter-chat",
    "adapter": "iso-date",
    "digest": "sha256:" + "ab" * 32,
    "provider": "",
    "route": ROUTE,
    "service_class": "interactive",
    "source": "api",
    "end": "done",
    "status": 200,
    "code": None,
    "causes": {"queue": 0.1, "load": 0.0, "swap": 0.1, "prefill": 0.2, "decode": 0.4},
    "total": 0.8,
    "first": 0.4,
    "prompt_tokens": 7,
    "completion_tokens": 9,
    "audio_seconds": 0.0,
}
ROW = {
    "uid": "u",
    "attempt": 1,
    "at": 999.0,
    "team": "search",
    "key": "abcdefgh",
    "state": "ended",
    "model": "starter-chat",
    "revision": "1f2e",
    "adapter": "iso-date@sha256:ab",
    "prompt_tokens": 7,
    "cached_tokens": 3,
    "completion_tokens": 9,
    "device_us": 400_000,
    "cold_ms": 0,
    "cost_micro": 1234,
    "own_micro": 55,
    "reserved_tokens": 64,
    "reserved_micro": 0,
    "accepted": True,
}


def test_logs_prints_everything_about_a_request(server: FakeServer, run: Run) -> None:
    server.on(
        "GET", "/v1/requests/req-1", Answer({"object": "request", "id": "req-1", "record": RECORD, "ledger": [ROW]})
    )
    displayed = run("logs", "req-1").stdout
    for words in ("done 200", "starter-chat:iso-date sha256:abab", "auto@v1", "intent:iso-date 0.998", "also near"):
        assert words in displayed, words
    for words in ("attempt 1", "0.001234", "accepted", "saw features", "7 in (3 cached), 9 out"):
        assert words in displayed, words
    queue, swap, decode = (
        next(line for line in displayed.splitlines() if line.startswith(name)) for name in ("queue", "swap", "decode")
    )
    assert queue.index("█") < swap.index("█") < decode.index("█"), "each phase begins at the end of the previous one"
    assert decode.count("█") == 24


@pytest.mark.parametrize(("duration", "text"), [(0.9994, "999.4 ms"), (0.99996, "1.0 s"), (1.0, "1.0 s")])
def test_a_duration_just_under_a_second_is_not_1000_ms(duration: float, text: str) -> None:
    assert seconds(duration) == text


@pytest.mark.parametrize("record", [RECORD, None], ids=["both", "ledger"])
def test_logs_as_json_are_the_servers_answer(server: FakeServer, run: Run, record: dict[str, Any] | None) -> None:
    body = {"object": "request", "id": "a/b", "record": record, "ledger": [ROW]}
    server.on("GET", "/v1/requests/a%2Fb", Answer(body))
    assert json.loads(run("logs", "a/b", "--json").stdout) == body
    assert run("logs", "a/b").exit_code == 0


def test_logs_of_an_unknown_request_are_an_error(server: FakeServer, run: Run) -> None:
    reported = {"error": {"message": "Nothing is known of a request 'x' of yours.", "code": "request_not_found"}}
    server.on("GET", "/v1/requests/x", Answer(reported, status=404))
    result = run("logs", "x")
    assert (result.exit_code, "Nothing is known" in result.stderr) == (1, True)
