"""The API process and LitServe's manager are killed or stopped: what clients see, and that no process remains."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from tests.eventually import PATIENCE, eventually
from tests.ports import is_free
from tests.system.serving import STARTER, Server, alive

pytestmark = pytest.mark.real
EMBED = [STARTER / "starter-embed.yaml"]
CHAT = [STARTER / "starter-chat.yaml"]
COMPLETE = {"model": "starter-chat", "prompt": "on", "max_tokens": 1}


def gateway(server: Server) -> psutil.Process:
    return server.gateway()


def manager(server: Server) -> psutil.Process:
    """Return the other fork of the main process, which has the same command line."""
    main, api = psutil.Process(server.process.pid), server.gateway()
    forks = [p for p in main.children() if _command(p) == main.cmdline() and p.pid != api.pid]
    assert len(forks) == 1, [_command(p) for p in main.children()]
    return forks[0]


def _command(process: psutil.Process) -> list[str]:
    """Return a process's command line; empty if it has ended, like the one that reports readiness soon has."""
    try:
        return process.cmdline()
    except (psutil.ZombieProcess, psutil.NoSuchProcess):
        return []


def gone(server: Server, family: list[psutil.Process]) -> None:
    """Wait until no process remains and the port is free."""
    eventually(lambda: not alive(family), lambda: [psutil.Process(pid).cmdline() for pid in alive(family)])
    eventually(lambda: is_free(server.port))


def reported_of_the_end(server: Server) -> bool:
    """Return whether clients that wait for an answer notice the end, because their connections break."""
    try:
        while True:
            server.http.get("/v1/models", timeout=PATIENCE)
    except httpx.TransportError as error:
        return not isinstance(error, httpx.TimeoutException)


@pytest.mark.parametrize("whom", [gateway, manager])
def test_one_that_is_stopped_for_long_ends_the_server(tmp_path: Path, whom: Callable[[Server], psutil.Process]) -> None:
    """The limit is --hung-after, as for engines, because busy cores could prevent an answer within 2 s."""
    server = Server(tmp_path / "data", EMBED, "--slots", "1", "--hung-after", "2")
    try:
        server.wait_ready()
        family = server.family()
        whom(server).suspend()
        assert reported_of_the_end(server)
        assert server.process.wait(PATIENCE) == 4, server.tail()
        gone(server, family)
        assert "stopped for too long" in server.log.read_text()
    finally:
        server.close()


@pytest.mark.parametrize("whom", [gateway, manager])
def test_one_that_goes_on_in_time_has_lost_nothing_and_a_killed_one_cuts_streams(
    tmp_path: Path, whom: Callable[[Server], psutil.Process]
) -> None:
    server = Server(tmp_path / "data", CHAT, "--slots", "1", "--hung-after", str(PATIENCE))
    try:
        server.wait_ready()
        assert server.http.post("/v1/completions", json=COMPLETE, timeout=PATIENCE).status_code == 200
        _stop_and_go_on(server, whom(server))
        _cut_a_stream(server, whom(server))
    finally:
        server.close()


def _stop_and_go_on(server: Server, stopped: psutil.Process) -> None:
    """Stop and continue the process. A request that arrives meanwhile is answered by the same engine."""
    before = server.slot_pid("starter-chat")
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as wire:
        stopped.suspend()
        eventually(lambda: stopped.status() == psutil.STATUS_STOPPED)
        body = json.dumps(COMPLETE).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        wire.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        stopped.resume()
        assert wire.recv(12) == b"HTTP/1.1 200"
    assert server.slot_pid("starter-chat") == before


def _cut_a_stream(server: Server, killed: psutil.Process) -> None:
    """Kill the process with SIGKILL. No answer looks complete, the port closes, and the engine ends, too."""
    body = {**COMPLETE, "max_tokens": 500, "stream": True, "ignore_eos": True}
    with server.http.stream("POST", "/v1/completions", json=body, timeout=PATIENCE) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data:")
        family, reported = server.family(), list[str]()
        psutil.Process(server.core_pid("starter-chat")).suspend()  # so that the answer cannot end before
        killed.kill()
        with pytest.raises(httpx.TransportError):
            reported = list(lines)
        assert "data: [DONE]" not in reported
    assert server.process.wait(PATIENCE) == 4, server.tail()
    gone(server, family)
    with pytest.raises(httpx.ConnectError):
        server.http.get("/health/live")
