"""Repeated loads and unloads leave no process, file, socket or descriptor, and no memory in the gateway.

CYCLES=500 runs the long form with all tasks; the short one is part of every test run.
"""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.faults.traffic import MODELS, ask
from tests.system.serving import STARTER, Server, alive, zombies

CYCLES = int(os.environ.get("CYCLES", "4"))
pytestmark = [pytest.mark.real, pytest.mark.timeout(900 + 60 * CYCLES)]
SLOTS = 2
FLAT = 32 * 2**20
"""Bytes by which the gateway may grow in all: slack of the allocator, independent of the number of cycles."""


@dataclass(frozen=True)
class Footprint:
    """Resources of the server while no model is loaded."""

    processes: int
    descriptors: int
    sockets: int
    threads: int
    temporary: tuple[str, ...]
    memory: int

    @classmethod
    def of(cls, server: Server, temporary: Path) -> "Footprint":
        gateway = server.gateway()
        run_dir = Path(json.loads((server.data / "server.json").read_text())["run_dir"])
        names = (path.name for path in temporary.iterdir())
        return cls(
            processes=len(alive(server.family())),
            descriptors=gateway.num_fds(),
            sockets=sum(path.is_socket() for path in run_dir.iterdir()),
            threads=gateway.num_threads(),
            temporary=tuple(sorted([*names, *(str(path.relative_to(run_dir)) for path in run_dir.rglob("*"))])),
            memory=gateway.memory_full_info().uss,
        )


def model_of(cycle: int) -> str:
    """Return the model of a cycle. Speech loads in a second, so it has most of them."""
    if cycle % 50 == 49:
        return "starter-chat"
    return {12: "starter-embed", 24: "starter-rerank"}.get(cycle % 25, "starter-speech")


def settled(server: Server, temporary: Path) -> Footprint:
    """Return the footprint once all slots are empty again and the last connections are closed."""

    def look() -> Footprint | None:
        free = server.http.get("/v1/status").json()["slots"]["free"]
        found = Footprint.of(server, temporary)
        same = len(alive(server.family())) == found.processes
        return found if free == SLOTS and same else None

    found = eventually(look, lambda: server.http.get("/v1/status").json()["slots"])
    assert found is not None
    return found


def test_loading_and_unloading_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="rh") as short:  # because the paths of sockets must be short
        monkeypatch.setenv("TMPDIR", short)
        recipes = [STARTER / f"{model}.yaml" for model in (MODELS if CYCLES >= 50 else ("starter-speech",))]
        server = Server(tmp_path / "data", recipes, "--slots", str(SLOTS))
        try:
            server.wait_ready()
            chat = "starter-chat" in {path.stem for path in recipes}
            if chat:  # its recipe preloads it
                server.wait_state("starter-chat", "ready")
                assert server.http.post("/v1/models/starter-chat/unload").status_code == 200
            cycle(server, "starter-speech")  # creates pools, tables and threads that remain
            before = settled(server, Path(short))
            print(f"\nbefore {before}", flush=True)
            for number in range(CYCLES):
                cycle(server, model_of(number))
                if number % 50 == 49:
                    print(f"after {number + 1} cycles: {settled(server, Path(short))}", flush=True)
            after = settled(server, Path(short))
            print(f"after {CYCLES} cycles: {after}")
            assert after.processes <= before.processes  # one of the start may have ended meanwhile
            assert after.sockets == before.sockets
            assert after.temporary == before.temporary
            # keep-alive connections and a database's second reader may differ; one of each cycle would be noticed
            assert after.descriptors <= before.descriptors + 3
            assert after.threads <= before.threads + 4  # a pool of threads fills up gradually
            assert after.memory <= before.memory + FLAT
            assert server.metric("roundhouse_engine_deaths_total") == 0
            assert zombies(server) == []
        finally:
            server.close()


def cycle(server: Server, model: str) -> None:
    assert server.http.post(f"/v1/models/{model}/load", timeout=600).status_code == 200, server.tail()
    answer = ask(server.http, model)
    assert answer.status_code == 200, answer.text
    assert server.http.post(f"/v1/models/{model}/unload", timeout=600).status_code == 200, server.tail()
    assert server.model(model)["bytes"] == 0
