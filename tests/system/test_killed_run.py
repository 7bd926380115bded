"""A killed test run leaves no server behind: no gateway, slot or engine."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.cli.local import processes
from tests.eventually import eventually
from tests.system.serving import ROOT

pytestmark = pytest.mark.real
RUN = """
import sys
from pathlib import Path
from tests.system.serving import STARTER, Server
server = Server(Path(sys.argv[1]), [STARTER / "starter-chat.yaml"], "--slots", "1")
if sys.argv[2] == "serving":
    server.wait_ready()
    server.http.post("/v1/models/starter-chat/load").raise_for_status()
    print(server.core_pid("starter-chat"), flush=True)
sys.stdin.read()
"""


def run_of(data: Path) -> str:
    """Return the id of the server's run when it has more than its first process."""
    record = data / "server.json"
    run: str = json.loads(eventually(lambda: record.exists() and record.read_text(), lambda: "no record"))["id"]
    eventually(lambda: len(processes.members(run)) > 3, lambda: "the server did not start")
    return run


@pytest.mark.parametrize("when", ["starting", "serving"])
def test_a_killed_test_run_takes_its_server_along(tmp_path: Path, when: str) -> None:
    command = [sys.executable, "-c", RUN, str(tmp_path), when]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        core = int(parent.stdout.readline()) if when == "serving" else None
        run = run_of(tmp_path)
        try:
            if core is not None:
                assert core in {process.pid for process in processes.members(run)}
                os.kill(core, signal.SIGSTOP)  # as in tests of faults: stopped processes end, too
            parent.kill()
            parent.wait()
            eventually(lambda: not processes.members(run), lambda: f"{processes.members(run)} outlived the test run")
        finally:
            parent.kill()
            processes.sweep(run)
