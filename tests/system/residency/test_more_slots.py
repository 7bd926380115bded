"""A server with more models than slots adds a slot, unless the number of slots was set."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.eventually import eventually
from tests.faults.traffic import ask
from tests.system.serving import PACK, STARTER, Server

pytestmark = pytest.mark.real


def test_a_model_that_is_added_gets_a_slot_of_its_own_while_memory_allows(tmp_path: Path) -> None:
    """The first model uses the only slot. The added slot is killed once, and ends when the server stops."""
    recipes = [STARTER / "starter-speech.yaml"]
    with Server(tmp_path / "a" / "data", recipes, fixed={"slots_at_start": 1}).wait_ready() as server:
        server.http.post("/v1/models/starter-speech/load").raise_for_status()
        first = server.slot_pid("starter-speech")
        source = str((PACK / "starter-speech").resolve())
        added = server.http.post("/v1/models", json={"id": "later", "source": source})
        assert added.status_code == 201, added.text
        plan = server.http.post("/v1/models/later/plan").json()
        assert (plan["why"], plan["victims"]) == ("enough is free, and a slot is added", [])
        answer = ask(server.http, "later", "starter-speech")
        assert answer.status_code == 200, answer.text
        assert server.slot_pid("starter-speech") == first, "it has not left"
        assert server.http.get("/v1/status").json()["slots"]["total"] == 2
        grown = psutil.Process(server.slot_pid("later"))
        assert grown.ppid() == server.process.pid
        grown.send_signal(signal.SIGKILL)
        eventually(lambda: server.model("later")["pid"] not in (None, grown.pid))
        server.wait_state("later", "ready")
        assert ask(server.http, "later", "starter-speech").json()["text"] == answer.json()["text"]
        assert server.slot_pid("starter-speech") == first
        assert server.stop() == 0
        assert not os.path.exists(f"/proc/{grown.pid}")
        lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert [line["processes_left"] for line in lines if line["message"] == "stopped"] == [0]
