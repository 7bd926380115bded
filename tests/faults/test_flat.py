"""Memory and descriptors of all processes stay flat while clients, adapters and models come and go.

ROUNDHOUSE_CHURN_SECONDS sets the duration (default: a few rounds). Each round prints memory and descriptors.
"""

import os
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.eventually import PATIENCE, eventually
from tests.faults.traffic import ask
from tests.fuzz.memory import CHAT, GATEWAY, MAX_GROWTH, MIB, MemoryFootprint, look
from tests.system.serving import PACK, STARTER, Server

pytestmark = [pytest.mark.real, pytest.mark.timeout(24 * 3600)]
SECONDS = float(os.environ.get("ROUNDHOUSE_CHURN_SECONDS", "0"))
WARM_UP, ROUNDS = 2, 2
DESCRIPTORS = 4
"""How many more descriptors may be open than after warm-up: our own connections, a grammar's pipes."""
SPEECH = "starter-speech"
"""The model that is loaded and unloaded, since its library takes a tenth of the others' time to import."""
SOURCE = {"path": str(PACK / "adapters" / "rot13")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    recipes = [STARTER / f"{name}.yaml" for name in (CHAT, SPEECH)]
    server = Server(tmp_path_factory.mktemp("data"), recipes, "--slots", "3")
    try:
        server.wait_ready()
        for name in (CHAT, SPEECH):
            assert server.http.post(f"/v1/models/{name}/load", timeout=PATIENCE).status_code == 200, server.tail()
        yield server
    finally:
        server.close()


def come_and_go(server: Server) -> None:
    """Run a round, in which every client has its own connection."""
    name = f"churn-{time.monotonic_ns()}"
    added = server.http.post("/v1/adapters", json={"name": name, "base": CHAT, "source": SOURCE}, timeout=PATIENCE)
    assert added.status_code == 201, added.text
    for model in (CHAT, name, "uppercase", "acronym", SPEECH, "nobody"):
        kind = SPEECH if model == SPEECH else CHAT
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            assert ask(client, model, kind).status_code == (404 if model == "nobody" else 200)
    for index in range(6):
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            grammar = {"structured_outputs": {"regex": f"[a-z]{{{index + 1}}} {name}"}} if index % 2 else {}
            body = {"model": CHAT, "prompt": "on", "max_tokens": 400, "stream": True, "ignore_eos": True, **grammar}
            with client.stream("POST", "/v1/completions", json=body) as answer:
                assert next(answer.iter_lines())  # then the client leaves
    for sent in (
        b"",
        b"POST / HTTP/1.1\r\nHost",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n{",
        b"\0\0\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as wire:
            wire.sendall(sent)
    assert server.http.delete(f"/v1/adapters/{name}").status_code in (200, 204)
    for call in ("unload", "load"):
        assert server.http.post(f"/v1/models/{SPEECH}/{call}", timeout=PATIENCE).status_code == 200, server.tail()
    eventually(lambda: server.metric("roundhouse_running_requests") == 0)


def test_memory_and_descriptors_are_flat(server: Server) -> None:
    for _ in range(WARM_UP):
        come_and_go(server)
    first = now = look(server)
    ends, rounds = time.monotonic() + SECONDS, 0
    while rounds < ROUNDS or time.monotonic() < ends:
        come_and_go(server)
        rounds += 1
        now = look(server)
        print(f"round {rounds}:", {name: (round(held.bytes / MIB), held.descriptors) for name, held in now.items()})
    for name in (GATEWAY, CHAT):
        assert now[name].bytes - first[name].bytes < MAX_GROWTH[name], (name, first, now)
        eventually(lambda name=name: _open(server, name) <= first[name].descriptors + DESCRIPTORS)
    assert server.model(CHAT)["deaths"] == server.model(SPEECH)["deaths"] == 0


def _open(server: Server, name: str) -> int:
    held: MemoryFootprint = look(server)[name]
    return held.descriptors
