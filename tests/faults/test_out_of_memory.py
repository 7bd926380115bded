"""The kernel kills a loading and a serving slot for lack of memory, under a limit that the budget does not know.

Only runs with MEMORY_KILLS=1, because the kernel decides which process it kills and when, and normal test runs must not
depend on that. tests/unit and tests/faults/test_recovery.py test what follows from a kill.
"""

import contextlib
import io
import json
import os
import signal
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.faults.memory_limit import MemoryLimit
from tests.faults.traffic import WAV, Traffic, ask
from tests.system.serving import STARTER, Server

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.environ.get("MEMORY_KILLS") != "1", reason="long form: set MEMORY_KILLS=1"),
]
MIB = 2**20
MODELS = ("steady", "late")


@pytest.fixture(scope="module")
def limit() -> Iterator[MemoryLimit]:
    with MemoryLimit() as limit:
        yield limit


@pytest.fixture(scope="module")
def server(limit: MemoryLimit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two speech models, one of them pinned, and embeddings."""
    folder = tmp_path_factory.mktemp("memory")
    recipe = yaml.safe_load((STARTER / "starter-speech.yaml").read_text())
    for name in MODELS:
        recipe.update({"id": name, "residency": {"pin": name == "steady"}, "aliases": []})
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    recipes = [STARTER / "starter-embed.yaml", *(folder / f"{name}.yaml" for name in MODELS)]
    options = ("--slots", "4", "--device-memory", "8GiB", "--hung-after", "120")
    server = Server(folder / "data", recipes, *options, fixed={"heartbeat": 0.5})
    server.http.timeout = 30
    try:
        limit.take(server)
        server.wait_ready()
        server.wait_state("steady", "ready")
        assert server.http.post("/v1/models/starter-embed/load").status_code == 200, server.tail()
        yield server
    finally:
        server.close()


def logged(server: Server, event: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log.read_text().splitlines() if f'"{event}"' in line]


def test_a_load_that_is_killed_is_tried_once_more_with_the_idle_ones_gone(server: Server, limit: MemoryLimit) -> None:
    steady = server.slot_pid("steady")
    with Traffic(server, ("steady",)) as traffic:
        traffic.wait_answers()
        for part in (3, 4, 6, 10):  # not enough for the load, but more than decoders need at the same time
            with contextlib.suppress(httpx.ReadTimeout), limit.leaves(server.model("steady")["bytes"] // part):
                answer = ask(server.http, "late")
            if limit.kills():
                break
            server.wait_state("late", "ready")  # the kernel only reclaimed pages, and killed no process
            assert server.http.post("/v1/models/late/unload").status_code == 200, server.tail()
        seen = traffic.wait_answers()["steady"]
    assert limit.kills() == 1, server.tail()
    assert answer.status_code == 200, answer.text + server.tail()
    assert set(seen) == {200}
    assert server.slot_pid("steady") == steady
    assert server.model("starter-embed")["state"] == "absent"
    found = server.model("late")
    assert (found["state"], found["failure"]) == ("ready", None)
    (event,) = logged(server, "a load ran out of memory")
    assert (event["model"], event["reason"], event["evicting"]) == ("late", "out_of_memory", ["starter-embed"])
    assert server.metric("roundhouse_load_retries_total", model="late", reason="out_of_memory") == 1
    assert server.metric("roundhouse_load_failures_total") == 0


def test_one_that_is_killed_while_it_serves_comes_back_and_the_others_do_not_notice(
    server: Server, limit: MemoryLimit
) -> None:
    """The kernel chooses the process to kill by its size, so the test makes sure of the choice beforehand."""
    assert ask(server.http, "late").status_code == 200
    steady, late, kills = server.slot_pid("steady"), server.slot_pid("late"), limit.kills()
    with Traffic(server, ("steady",)) as traffic:
        traffic.wait_answers()
        Path(f"/proc/{late}/oom_score_adj").write_text("1000")
        files = {"file": ("long.wav", long_recording()), "model": (None, "late")}
        words = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
        for room in (4, 2, 1, 0):  # sometimes the kernel reclaims other pages, or kills another process
            with contextlib.suppress(httpx.ReadTimeout), limit.leaves(room * MIB):
                answer = server.http.post("/v1/audio/transcriptions", data=words, files=files)
            if server.model("late")["deaths"]:
                break
        server.wait_state("late", "ready")  # without a request
        seen = traffic.wait_answers()["steady"]
    assert limit.kills() > kills, (answer.status_code, answer.text[:200])
    assert answer.status_code in (500, 503), answer.text
    assert set(seen) == {200}
    assert server.slot_pid("steady") == steady
    found = server.model("late")
    assert found["pid"] != late
    assert (found["deaths"], found["failure"]["code"]) == (1, "out_of_memory")
    assert "memory had run out" in found["failure"]["message"]
    assert [event["reason"] for event in logged(server, "engine died")] == ["out_of_memory"]
    assert server.metric("roundhouse_engine_deaths_total", model="late", reason="out_of_memory") == 1


def test_a_kill_by_hand_is_not_taken_for_the_kernels(server: Server, limit: MemoryLimit) -> None:
    """A kill by hand is not reported as the kernel's, even after the kernel has killed in this group."""
    assert limit.kills()
    assert ask(server.http, "steady").status_code == 200
    os.kill(server.slot_pid("steady"), signal.SIGKILL)
    assert ask(server.http, "steady").status_code in (200, 500, 503)
    server.wait_state("steady", "ready")
    assert server.model("steady")["failure"]["code"] == "killed"


def long_recording() -> bytes:
    """Return some minutes of speech, which are several windows in one step."""
    out = io.BytesIO()
    with wave.open(str(WAV)) as short, wave.open(out, "wb") as long:
        long.setparams(short.getparams())
        sound = short.readframes(short.getnframes())
        for _ in range(60):
            long.writeframes(sound)
    return out.getvalue()
