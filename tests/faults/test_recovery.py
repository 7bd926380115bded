"""Engines and the server itself are killed or stopped during requests of all four tasks: errors, and what remains."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.eventually import PATIENCE, eventually, slowness
from tests.faults.traffic import MODELS, Traffic
from tests.system.serving import STARTER, Server, alive

pytestmark = pytest.mark.real
HUNG_AFTER = 10.0
"""Seconds on an idle machine."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--slots", "5", "--hung-after", f"{HUNG_AFTER * slowness():.0f}")
    server = Server(tmp_path_factory.mktemp("data"), [STARTER], *options, fixed={"heartbeat": 0.5})
    try:
        server.wait_ready()
        for model in MODELS:
            assert server.http.post(f"/v1/models/{model}/load", timeout=600).status_code == 200, server.tail()
        yield server
    finally:
        server.close()


def slot(server: Server, model: str) -> int:
    return server.slot_pid(model)


def core(server: Server, model: str) -> int:
    return server.core_pid(model)


@pytest.mark.parametrize(
    ("model", "whom", "number", "reason", "stated"),
    [
        ("starter-speech", slot, signal.SIGKILL, "killed", "SIGKILL"),
        ("starter-chat", core, signal.SIGSTOP, "engine_hung", "did not answer within"),
    ],
    ids=["slot killed", "EngineCore stopped"],
)
def test_one_engine_fails_and_comes_back_and_the_others_do_not_notice(
    server: Server, model: str, whom: Callable[[Server, str], int], number: int, reason: str, stated: str
) -> None:
    """test_hang.py tests a stopped slot, and test_faults.py a killed EngineCore."""
    before = server.model(model)
    labels = {"model": model, "reason": reason}
    counted = server.metric("roundhouse_engine_deaths_total", **labels)
    others = {name: server.slot_pid(name) for name in MODELS if name != model}
    with Traffic(server) as traffic:
        traffic.wait_answers()
        os.kill(whom(server, model), number)
        eventually(lambda: server.model(model)["loads"] > before["loads"], server.tail)  # only the traffic loads it
        seen = traffic.take()
        traffic.wait_answers()
    for name in others:
        assert set(seen[name]) <= {200}, (name, seen[name])
    assert set(seen[model]) <= {200, 500, 503}, seen[model]
    after = server.model(model)
    assert after["deaths"] == before["deaths"] + 1
    assert after["failure"]["code"] == reason
    assert stated in after["failure"]["message"]
    assert server.metric("roundhouse_engine_deaths_total", **labels) == counted + 1
    logged = [json.loads(line) for line in server.log.read_text().splitlines() if '"engine died"' in line]
    assert (logged[-1]["model"], logged[-1]["reason"]) == (model, reason)
    assert {name: server.slot_pid(name) for name in others} == others


@pytest.mark.parametrize("whom", ["the gateway", "the main process"])
def test_the_server_is_killed_under_load_and_nothing_stays(tmp_path: Path, whom: str) -> None:
    """Nothing remains even before the next start, which finds pins and adapters unchanged."""
    models = ("starter-chat", "starter-speech") if whom == "the gateway" else ("starter-speech",)
    recipes = [STARTER / f"{model}.yaml" for model in models]
    server = Server(tmp_path / "data", recipes, "--slots", "2")
    try:
        server.wait_ready()
        with Traffic(server, models) as traffic:
            traffic.wait_answers()
            assert server.http.put("/v1/models/starter-speech/pin").status_code == 200
            family = server.family()
            sockets = server.data / "server.json"
            run_dir = Path(json.loads(sockets.read_text())["run_dir"])
            assert list(run_dir.glob("*.sock"))
            (server.gateway() if whom == "the gateway" else server.process).kill()
            code = server.process.wait(PATIENCE)
            eventually(lambda: not alive(family), lambda: [psutil.Process(pid).cmdline() for pid in alive(family)])
        assert code == (4 if whom == "the gateway" else -signal.SIGKILL)
    finally:
        server.close()
    again = Server(tmp_path / "data", recipes, "--slots", "1")
    try:
        again.wait_ready()
        assert not run_dir.exists()
        assert again.model("starter-speech")["pinned"] is True
        adapters = again.http.get("/v1/adapters").json()["data"]
        assert len(adapters) == (20 if "starter-chat" in models else 0)
    finally:
        again.close()
