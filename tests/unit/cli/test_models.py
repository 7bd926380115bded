"""`roundhouse models` and `status`: the calls and the output."""

import json
from typing import Any

import pytest

from tests.unit.cli.conftest import Run, model
from tests.unit.cli.fake_server import Answer, FakeServer


def test_list_prints_models_but_no_adapters(server: FakeServer, run: Run) -> None:
    card = {"id": "uppercase", "object": "model", "parent": "starter-chat", "task": "chat"}
    server.on("GET", "/v1/models", {"object": "list", "data": [model(), card]})
    result = run("models", "list")
    assert result.exit_code == 0
    assert "starter-chat" in result.stdout
    assert "3.0 MiB" in result.stdout
    assert "uppercase" not in result.stdout


def test_json_is_only_the_servers_answer(server: FakeServer, run: Run) -> None:
    reported = {"object": "list", "data": [model()]}
    server.on("GET", "/v1/models", reported)
    result = run("models", "list", "--json")
    assert json.loads(result.stdout) == reported
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("command", "method", "path", "query"),
    [
        (["load", "a/b"], "POST", "/v1/models/a%2Fb/load", ""),
        (["load", "m", "--no-wait"], "POST", "/v1/models/m/load", "wait=false"),
        (["unload", "m"], "POST", "/v1/models/m/unload", ""),
        (["unload", "m", "--force"], "POST", "/v1/models/m/unload", "force=true"),
        (["pin", "m"], "PUT", "/v1/models/m/pin", ""),
        (["unpin", "m"], "DELETE", "/v1/models/m/pin", ""),
    ],
)
def test_load_unload_and_pin_are_calls(
    server: FakeServer, run: Run, command: list[str], method: str, path: str, query: str
) -> None:
    server.on(method, path, model("m", pinned=True))
    result = run("models", *command)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "m: ready, pinned, 3.0 MiB\n"
    received = server.received[-1]
    assert (received.method, received.path, received.query) == (method, path, query)


def test_show_prints_progress_and_problems(server: FakeServer, run: Run) -> None:
    loading = {"phase": "weights", "percent": 40.0, "detail": ""}
    server.on("GET", "/v1/models/m", model("m", state="loading", progress=loading))
    assert "loading, weights 40 %" in run("models", "show", "m").stdout
    server.on("GET", "/v1/models/m", model("m", problem="its files are not there"))
    assert "its files are not there" in run("models", "show", "m").stdout


def test_a_plan_is_printed(server: FakeServer, run: Run) -> None:
    victim = {"model": "old", "bytes": 2**30, "running": 2, "action": "drain"}
    server.on(
        "POST",
        "/v1/models/m/plan",
        {
            "object": "plan", "model": "m", "verdict": "evict", "why": "too little is free", "devices": [],
            "replicas": [], "bytes_needed": 2**31,
            "bytes_free": 2**20, "budget_bytes": 2**32, "host": None, "victims": [victim], "expected_seconds": 3.25,
        },
    )  # fmt: skip
    reported = run("models", "plan", "m").stdout
    assert "old (1.0 GiB, 2 running, drain)" in reported
    assert "2.0 GiB" in reported
    assert "3.2 s" in reported


def test_a_plan_has_a_line_for_each_device_and_each_replica(server: FakeServer, run: Run) -> None:
    rooms = [{"device": f"cuda:{n}", "bytes_free": n * 2**30, "budget_bytes": 2**36} for n in range(4)]
    victim = {"model": "old", "bytes": 2**30, "running": 0, "action": "evict"}
    replicas = [
        {"number": 1, "verdict": "load", "why": "", "devices": rooms[:2], "victims": [victim]},
        {"number": 2, "verdict": "load", "why": "", "devices": rooms[2:], "victims": []},
        {"number": 3, "verdict": "impossible", "why": "It is too large.", "devices": [], "victims": []},
    ]
    plan = {
        "object": "plan", "model": "m", "verdict": "load", "why": "", "bytes_needed": 2**31, "bytes_free": 0,
        "budget_bytes": 2**36, "host": None, "victims": [victim], "expected_seconds": 3.0, "devices": rooms[:2],
        "replicas": replicas,
    }  # fmt: skip
    server.on("POST", "/v1/models/m/plan", plan)
    lines = [" ".join(line.split()) for line in run("models", "plan", "m").stdout.splitlines()]
    assert lines[3:6] == [
        "needs 2.0 GiB on each device", "free on cuda:0 0 Bytes of 64.0 GiB", "free on cuda:1 1.0 GiB of 64.0 GiB",
    ]  # fmt: skip
    assert lines[-4:-1] == [
        "replica 1 load: cuda:0 (0 Bytes of 64.0 GiB free), cuda:1 (1.0 GiB of 64.0 GiB free); "
        "would evict: old (1.0 GiB, 0 running, evict)",
        "replica 2 load: cuda:2 (2.0 GiB of 64.0 GiB free), cuda:3 (3.0 GiB of 64.0 GiB free)",
        "replica 3 impossible: It is too large.",
    ]


def test_a_plan_with_a_gpu_has_host_memory_and_sleep(server: FakeServer, run: Run) -> None:
    victim = {"model": "old", "bytes": 2**30, "running": 0, "action": "sleep"}
    host = {"bytes_needed": 2**30, "bytes_free": 2**34, "budget_bytes": 2**35}
    plan = {
        "object": "plan", "model": "m", "verdict": "wake", "why": "", "devices": [], "replicas": [],
        "bytes_needed": 2**31, "bytes_free": 0,
        "budget_bytes": 2**32, "host": host, "victims": [victim], "expected_seconds": 0.9,
    }  # fmt: skip
    server.on("POST", "/v1/models/m/plan", plan)
    reported = run("models", "plan", "m").stdout
    assert "old (1.0 GiB, 0 running, sleep)" in reported
    assert "needs 1.0 GiB, 16.0 GiB of 32.0 GiB free" in reported


def test_a_key_without_the_right_to_others_usage_is_named(server: FakeServer, run: Run) -> None:
    server.on("GET", "/v1/models/starter-chat", Answer(model(running=None, waiting=None)))
    reported = run("models", "show", "starter-chat").stdout
    assert reported.count("not shown to this key, or by a front") == 2
    assert "None" not in reported


def test_show_prints_the_time_of_a_wake(server: FakeServer, run: Run) -> None:
    sleeping = model("m", state="asleep", tier="host", can_sleep=True, expected_wake_seconds=0.9, wakes=3)
    server.on("GET", "/v1/models/m", sleeping)
    reported = run("models", "show", "m").stdout
    assert "asleep" in reported
    assert "0.9 s" in reported
    assert "3 wakes" in reported


def test_a_plan_lists_models_that_fall_asleep(server: FakeServer, run: Run) -> None:
    falls = {"phase": "falling asleep", "percent": 0.0, "detail": ""}
    server.on("GET", "/v1/models", {"data": [model("m", state="draining", progress=falls)]})
    assert "draining, falling asleep" in run("models", "list").stdout


def test_forget_estimate_is_one_call(server: FakeServer, run: Run) -> None:
    server.on("DELETE", "/v1/models/m/estimate", model("m", state="absent", bytes=0, expected_bytes=2**30))
    assert run("models", "forget-estimate", "m").stdout == "m: absent, needs 1.0 GiB\n"


def test_a_load_that_fails_is_a_server_error(server: FakeServer, run: Run) -> None:
    error = {"message": "It does not fit.", "type": "service_unavailable_error", "code": "insufficient_memory"}
    server.on("POST", "/v1/models/m/load", Answer({"error": error}, 503, {"Retry-After": "7"}))
    result = run("models", "load", "m")
    assert result.exit_code == 4
    assert result.stderr == "error: It does not fit. Try again in 7 s.\n"


STATUS: dict[str, Any] = {
    "devices": [], "host": None, "waiting": 0, "uptime_seconds": 5.0, "models": [], "recipe_faults": [], "degraded": [],
}  # fmt: skip


def test_status_prints_a_table(server: FakeServer, run: Run) -> None:
    device = {
        "name": "cpu", "label": "cpu", "total_bytes": 2**34, "budget_bytes": 2**33, "resident_bytes": 2**20,
        "free_bytes": 2**33 - 2**20,
    }  # fmt: skip
    warm = [
        {"slot": 2, "engine": "faster-whisper", "state": "warm", "bytes": 140 * 2**20},
        {"slot": 3, "engine": "vllm", "state": "importing", "bytes": 690 * 2**20},
    ]
    slots = {"total": 6, "free": 5, "restarts": 0, "prewarmed": warm}
    models = [
        model(),
        model("cold", state="absent", tier="disk", bytes=0),
        model("warm", state="absent", tier="prewarmed", bytes=0),
    ]
    server.on("GET", "/v1/status", {**STATUS, "device": device, "slots": slots, "models": models})
    reported = run("status").stdout.splitlines()
    assert reported[0].startswith("cpu (cpu): 1.0 MiB of 8.0 GiB used; 1 of 6 slots")
    assert reported[1] == "pre-warmed slots: faster-whisper (140.0 MiB), vllm (690.0 MiB, importing)"
    assert reported[3].split()[:5] == ["starter-chat", "ready", "device", "3.0", "MiB"]
    assert reported[4].split()[:4] == ["cold", "absent", "disk", "-"]
    assert reported[5].split()[:4] == ["warm", "absent", "prewarmed", "-"]


def test_status_prints_what_does_not_work(server: FakeServer, run: Run) -> None:
    device = {"name": "cpu", "label": "cpu", "total_bytes": 8, "budget_bytes": 8, "resident_bytes": 0, "free_bytes": 8}
    slots = {"total": 6, "free": 6, "restarts": 0, "prewarmed": []}
    reported = {**STATUS, "device": device, "slots": slots}
    faults = {"degraded": ["storage_full", "ledger_journalled"], "recipe_faults": ["mine.yaml:2: unknown key: modle"]}
    server.on("GET", "/v1/status", {**reported, **faults})
    lines = run("status").stdout.splitlines()
    assert lines[1].startswith("degraded: storage_full, ledger_journalled (docs/monitor.md#what-does-not-work")
    assert lines[2] == "faulty recipe, its former version counts: mine.yaml:2: unknown key: modle"
    server.on("GET", "/v1/status", reported)
    assert not any("degraded" in line or "faulty" in line for line in run("status").stdout.splitlines())


def test_status_with_a_gpu_shows_the_host_too(server: FakeServer, run: Run) -> None:
    device = {"name": "cuda:0", "label": "GPU", "total_bytes": 2**36, "budget_bytes": 2**35, "resident_bytes": 2**30}
    host = {"total_bytes": 2**37, "budget_bytes": 2**36, "resident_bytes": 2**34, "free_bytes": 2**36 - 2**34}
    slots = {"total": 6, "free": 5, "restarts": 0, "prewarmed": []}
    models = [model("m", state="asleep", tier="host", bytes=2**29, host_bytes=2**34)]
    reported = {**STATUS, "device": device, "host": host, "slots": slots, "models": models}
    server.on("GET", "/v1/status", reported)
    lines = run("status").stdout.splitlines()
    assert lines[1] == "host memory: 16.0 GiB of 64.0 GiB used"
    assert lines[3].split()[:7] == ["m", "asleep", "host", "512.0", "MiB", "16.0", "GiB"]


def test_status_of_several_devices_has_a_line_for_each(server: FakeServer, run: Run) -> None:
    sizes = {"total_bytes": 2**36, "budget_bytes": 2**35, "resident_bytes": 2**30, "free_bytes": 2**35 - 2**30}
    cards = [
        {"name": "cuda:0", "label": "GPU", "uuid": "GPU-a", "fault": "", **sizes},
        {"name": "cuda:1", "label": "GPU", "uuid": "GPU-b", "fault": "GPU is lost", **sizes},
    ]
    slots = {"total": 6, "free": 5, "restarts": 0, "prewarmed": []}
    reported = {
        **STATUS, "device": {"name": "cuda:0", "label": "2 × GPU", **sizes}, "devices": cards, "slots": slots,
        "models": [model("m", devices=["cuda:1"], replicas=[
            {"number": 1, "state": "ready", "devices": ["cuda:1"], "bytes": 2**30, "running": 2, "waiting": 1},
            {"number": 2, "state": "absent", "devices": [], "bytes": 0, "running": 0, "waiting": 0},
        ])],
    }  # fmt: skip
    server.on("GET", "/v1/status", reported)
    lines = run("status").stdout.splitlines()
    assert lines[1] == "  cuda:0 GPU GPU-a: 1.0 GiB of 32.0 GiB used"
    assert lines[2] == "  cuda:1 GPU GPU-b: 1.0 GiB of 32.0 GiB used; gone: GPU is lost"
    assert lines[4].split()[:3] == ["m", "ready", "cuda:1"]
    assert lines[5].split() == ["replica", "1", "ready", "cuda:1", "1.0", "GiB", "2/1"]
    assert lines[6].split()[:4] == ["replica", "2", "absent", "-"]


def test_signal_has_a_line_for_each_model(server: FakeServer, run: Run) -> None:
    waits = {
        "critical": {"predicted_wait_seconds": 0.0, "goal_seconds": 1.0},
        "batch": {"predicted_wait_seconds": 7.25, "goal_seconds": 60.0},
    }
    one = {
        "model": "m", "wanted_replicas": 3, "replicas": 2, "waiting_work": 1200.0, "arriving_work_per_second": 90.5,
        "replica_work_per_second": 40.0, "classes": waits, "kv_cache_use": 0.5, "lead_seconds": 12.0,
    }  # fmt: skip
    empty = {**one, "model": "e", "kv_cache_use": None, "replica_work_per_second": 0.0}
    server.on("GET", "/v1/signal", {"object": "list", "data": [one, empty]})
    lines = run("signal", "m").stdout.splitlines()
    assert lines[0].split()[:3] == ["MODEL", "WANTED", "REPLICAS"]
    assert lines[1].split() == ["m", "3", "2", "1200", "90", "40", "0.0/1", "7.2/60", "50%", "12.0"]
    assert lines[2].split() == ["e", "3", "2", "1200", "90", "-", "0.0/1", "7.2/60", "-", "12.0"]
    server.on("GET", "/v1/signal", {"object": "list", "data": []})
    assert run("signal").exit_code == 0
