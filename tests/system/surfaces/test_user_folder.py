"""A server that is started in a folder with modules named like our packages."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually
from tests.system.serving import STARTER, Server
from tests.system.test_adapters import new_content, register, say

pytestmark = pytest.mark.real
NAMES = ("runtime", "models", "adapters", "registry", "tenants", "console", "routing", "batches", "launch", "fleet")


def test_no_process_of_the_server_imports_what_lies_where_it_was_started(tmp_path: Path) -> None:
    """This includes the announcement, the process that checks adapters, slots and engines."""
    folder = tmp_path / "folder"
    (folder / "models").mkdir(parents=True)
    for name in NAMES:
        file = folder / "models" / "__init__.py" if name == "models" else folder / f"{name}.py"
        file.write_text(f"raise RuntimeError('{name} of the user')")
    recipes = [STARTER / "starter-chat.yaml", STARTER / "starter-speech.yaml"]  # one is imported in advance
    options: Any = {"prewarm": True, "cwd": folder}
    with Server(tmp_path / "a" / "data", recipes, "--slots", "3", **options).wait_ready() as server:
        assert register(server, "loud", new_content(tmp_path / "loud", 1.5)).status_code == 201
        server.http.post("/v1/models/starter-chat/load", timeout=600).raise_for_status()
        assert say(server, model="loud") == say(server, model="uppercase")
        eventually(lambda: "Roundhouse is ready" in server.log.read_text(), server.tail)  # from the announcement
        server.stop()
        log = server.log.read_text()
    assert "of the user" not in log
    assert not [line for line in log.splitlines() if not line.startswith("{")], "each line is JSON, of libraries too"
    stopped = [line for line in map(json.loads, log.splitlines()) if line["message"] == "stopped"]
    assert [line["processes_left"] for line in stopped] == [0]
