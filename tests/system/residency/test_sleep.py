"""A model sleeps on a real server. It is a speech model, as CTranslate2 frees weights on a CPU, too.

In the long form (LARGE_SLEEP=1, 2 GB of disk) two speech models with 800 MB of weights take turns in a budget for an
awake and a sleeping one.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import yaml

from models.engines import engine_version
from registry.records import LoadKey
from registry.state.database import State
from tests.eventually import PATIENCE
from tests.system.serving import PACK, STARTER, Server, alive, zombies

pytestmark = pytest.mark.real
SAMPLE = PACK / "samples" / "kitchen-light.wav"
IDLE = 4.0


def hears(server: Server, model: str = "starter-speech") -> str:
    answer = server.http.post(
        "/v1/audio/transcriptions", data={"model": model}, files={"file": SAMPLE.read_bytes()}, timeout=600
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["text"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("sleep")
    recipe = yaml.safe_load((STARTER / "starter-speech.yaml").read_text())
    recipe["residency"] = {"min_resident": "0s", "idle_timeout": f"{IDLE}s", "sleep": "always"}
    (folder / "speech.yaml").write_text(yaml.safe_dump(recipe))
    server = Server(folder / "data", [folder / "speech.yaml"], "--slots", "2", fixed={"heartbeat": 0.5})
    yield server.wait_ready()
    server.close()


def test_it_falls_asleep_when_idle_and_wakes_for_the_next_request(server: Server) -> None:
    text = hears(server)
    pid = server.slot_pid("starter-speech")
    assert server.model("starter-speech")["can_sleep"]
    found = server.wait_state("starter-speech", "asleep")
    assert found["tier"] == "host"
    assert found["pid"] == pid
    assert found["host_bytes"] == 0, "on a CPU all of it is the device's"
    assert 0 < found["bytes"] < found["expected_bytes"]
    assert server.metric("roundhouse_resident_bytes", tier="device") == found["bytes"]
    plan = server.http.post("/v1/models/starter-speech/plan").json()
    assert (plan["verdict"], plan["host"]) == ("wake", None)
    with ThreadPoolExecutor(4) as pool:  # all waiting requests need one wake-up
        assert list(pool.map(lambda _: hears(server), range(4))) == [text] * 4
    found = server.model("starter-speech")
    assert (found["loads"], found["pid"]) == (1, pid)
    assert server.metric("roundhouse_wake_seconds_count", model="starter-speech") == found["wakes"]
    sleeps = server.metric("roundhouse_sleep_seconds_count", model="starter-speech", reason="idle")
    assert 1 <= found["wakes"] <= sleeps, "more than once only where a busy client let it fall asleep again"
    assert server.metric("roundhouse_sleep_failures_total") == 0
    assert zombies(server) == []


def test_one_that_is_killed_asleep_is_on_disk_and_loads_at_the_next_request(server: Server) -> None:
    text = hears(server)
    server.wait_state("starter-speech", "asleep")
    pid = server.slot_pid("starter-speech")
    os.kill(pid, signal.SIGKILL)
    found = server.wait_state("starter-speech", "absent")
    assert (found["failure"], found["deaths"], found["tier"], found["bytes"]) == (None, 1, "disk", 0)
    assert hears(server) == text
    assert server.slot_pid("starter-speech") != pid


def test_one_that_is_unloaded_asleep_is_gone(server: Server) -> None:
    hears(server)
    server.wait_state("starter-speech", "asleep")
    slot = psutil.Process(server.slot_pid("starter-speech"))
    assert server.http.post("/v1/models/starter-speech/unload").json()["state"] == "absent"
    assert alive([slot]) == []


def test_what_sleeps_and_wakes_cost_is_known_after_a_restart(server: Server) -> None:
    hears(server)
    before = server.wait_state("starter-speech", "asleep")
    slept = server.metric("roundhouse_sleep_seconds_count", model="starter-speech")
    assert server.stop() == 0
    version = yaml.safe_load((server.data.parent / "speech.yaml").read_text())["version"]
    with State(server.data) as state:
        kept = state.models.slept(LoadKey("starter-speech", version, engine_version("faster-whisper"), "cpu"))
    assert kept is not None
    assert kept.count == slept >= 1
    assert (kept.device_bytes, kept.host_bytes) == (before["bytes"], 0)
    again = Server(server.data, [server.data.parent / "speech.yaml"], "--slots", "1", fixed={"heartbeat": 0.5})
    try:
        again.wait_ready()
        assert again.http.post("/v1/models/starter-speech/load").status_code == 200
        displayed = again.model("starter-speech")
        assert displayed["wakes"] == 0
        assert displayed["expected_wake_seconds"] == pytest.approx(kept.seconds["wake"], abs=1e-3)
        again.wait_state("starter-speech", "asleep")
        plan = again.http.post("/v1/models/starter-speech/plan").json()
        assert (plan["verdict"], plan["expected_seconds"]) == ("wake", displayed["expected_wake_seconds"])
    finally:
        again.close()


@pytest.mark.skipif(not os.environ.get("LARGE_SLEEP"), reason="long form: set LARGE_SLEEP=1")
def test_two_large_ones_take_turns_in_a_budget_for_one(tmp_path: Path) -> None:
    from tests.contract.speech.fixtures import build

    folder = build(tmp_path / "large", multilingual=True, width=2048)
    for name in ("one", "two"):
        recipe = {
            "id": name, "version": 1, "task": "transcribe", "source": {"path": str(folder)},
            "engine": {"name": "faster-whisper", "flags": {"beam_size": 1, "vad": False}},
            "batching": {"max_requests": 1, "max_tokens": 30}, "residency": {"min_resident": "0s", "sleep": "always"},
        }  # fmt: skip
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    recipes = [tmp_path / "one.yaml", tmp_path / "two.yaml"]
    server = Server(tmp_path / "data", recipes, "--device-memory", "2000MiB", "--slots", "3")
    seen: dict[str, list[float]] = {"load": [], "turn": []}
    most = 0

    def watch() -> None:
        nonlocal most
        while not stop.wait(0.05):
            most = max(most, server.http.get("/v1/status").json()["device"]["resident_bytes"])

    stop = threading.Event()
    try:
        server.wait_ready()
        threading.Thread(target=watch, daemon=True).start()
        texts = {}
        for turn in range(6):
            name = ("one", "two")[turn % 2]
            began = time.monotonic()
            found = server.http.post(f"/v1/models/{name}/load", timeout=PATIENCE)
            assert found.status_code == 200, found.text + server.tail()
            seen["load" if turn < 2 else "turn"].append(round(time.monotonic() - began, 2))
            text = hears(server, name)
            assert texts.setdefault(name, text) == text
        states = {name: server.model(name) for name in ("one", "two")}
        print(
            {**seen, "most": most >> 20, "asleep": states["one"]["bytes"] >> 20, "awake": states["two"]["bytes"] >> 20}
        )
        assert states["one"]["state"] == "asleep"
        assert [m["loads"] for m in states.values()] == [1, 1], server.tail()
        assert [m["wakes"] for m in states.values()] == [2, 2]
        assert most <= 2000 << 20
    finally:
        stop.set()
        server.close()
