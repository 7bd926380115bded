"""If an engine hangs on a real server, its clients get an error, and it is loaded again in the pre-warmed slot."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.eventually import PATIENCE, eventually, slowness
from tests.system.serving import PATIENT, STARTER, Server

pytestmark = pytest.mark.real
EMBED, ENGINE = "starter-embed", "sentence-transformers"
HUNG_AFTER = 8.0
"""Seconds on an idle machine."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--slots", "3", "--hung-after", f"{HUNG_AFTER * slowness():.0f}")
    server = Server(
        tmp_path_factory.mktemp("data"), [STARTER / f"{EMBED}.yaml"], *options, prewarm=True, fixed={"heartbeat": 0.2}
    )
    try:
        server.wait_ready()
        assert server.http.post(f"/v1/models/{EMBED}/load", timeout=PATIENCE).status_code == 200, server.tail()
        yield server
    finally:
        server.close()


def warm(server: Server) -> int | None:
    """Return the number of the pre-warmed slot, if there is one."""
    slots: list[dict[str, Any]] = server.http.get("/v1/status").json()["slots"]["prewarmed"]
    return next((slot["slot"] for slot in slots if (slot["engine"], slot["state"]) == (ENGINE, "warm")), None)


def test_a_stopped_slot_is_reported_and_replaced_by_the_warm_one(server: Server) -> None:
    eventually(lambda: warm(server) is not None, server.tail)
    before, answers = warm(server), list[httpx.Response]()

    def ask() -> None:
        body = {"model": EMBED, "input": "steam"}
        answers.append(httpx.post(f"{server.url}/v1/embeddings", json=body, headers=PATIENT, timeout=PATIENCE))

    os.kill(server.slot_pid(EMBED), signal.SIGSTOP)
    asking = [threading.Thread(target=ask) for _ in range(3)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert {answer.status_code for answer in answers} <= {200, 503}
    refused = [answer for answer in answers if answer.status_code == 503]
    assert refused, "those that ran on it"
    for answer in refused:
        assert answer.json()["error"]["code"] == "engine_died"
        assert float(answer.headers["retry-after"]) >= 1
    eventually(lambda: server.model(EMBED)["state"] == "ready", server.tail)
    assert server.model(EMBED)["failure"]["code"] == "engine_hung"
    assert (server.model(EMBED)["loads"], server.model(EMBED)["deaths"]) == (2, 1)
    eventually(lambda: warm(server) is not None, server.tail)
    assert warm(server) != before, "the warm one was used, and another one is warm now"
    assert server.http.post("/v1/embeddings", json={"model": EMBED, "input": "steam"}).status_code == 200
