"""A CPU as two devices, on real engines: each model is on one of them with its own cores, and evictions stay there."""

import os
from pathlib import Path

import psutil
import pytest

from tests.eventually import eventually
from tests.faults.traffic import ask
from tests.system.serving import STARTER, Server

pytestmark = pytest.mark.real
NAMES = ("starter-embed", "starter-speech")


def resident(server: Server, model: str) -> float:
    """Return the bytes in use on the model's device. A heartbeat may measure more before the next call."""
    return server.metric("roundhouse_device_resident_bytes", device=server.model(model)["devices"][0])


def cores_of(pid: int) -> set[int]:
    return set(psutil.Process(pid).cpu_affinity() or ())


def test_models_on_two_halves_of_a_cpu(tmp_path: Path) -> None:
    recipes = [STARTER / f"{name}.yaml" for name in NAMES]
    with Server(tmp_path / "data", recipes, "--slots", "2", device="cpu:2").wait_ready() as server:
        assert [ask(server.http, name).status_code for name in NAMES] == [200, 200]
        status = server.http.get("/v1/status").json()
        by_name = {device["name"]: device for device in status["devices"]}
        assert list(by_name) == ["cpu:0", "cpu:1"]
        models = {model["id"]: model for model in status["models"]}
        assert {models[name]["devices"][0] for name in NAMES} == set(by_name)
        for name in NAMES:
            device = by_name[models[name]["devices"][0]]
            assert device["resident_bytes"] == models[name]["bytes"]
            eventually(lambda name=name: resident(server, name) == server.model(name)["bytes"], server.tail)  # type: ignore[misc]
        used = [cores_of(models[name]["pid"]) for name in NAMES]
        mine = os.sched_getaffinity(0)
        if len(mine) > 1:
            assert not used[0] & used[1]
        assert all(cores <= mine and cores for cores in used)
        assert server.stop() == 0
