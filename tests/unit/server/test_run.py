"""The server process: the fork of the API process, its manager, its slots and its end."""

import errno
import logging
import multiprocessing.connection
import os
import signal
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import psutil
import pytest

from runtime.server import run
from runtime.server.run import _is_relevant, _restart_in_lasting_thread
from tests.eventually import eventually
from tests.ports import is_open

CODE = """
import gc, sys
from pathlib import Path
from litserve import LitServer
from runtime.server import run as server
from runtime.config.device import Device
from runtime.config.settings import Settings
from registry.recipes.loading import Documents

def run(self, **_):
    print(gc.get_freeze_count(), len(gc.get_objects()))

LitServer.run = run
folder = Path(sys.argv[1])
server.run(Settings(recipes=(), data_dir=folder, run_dir=folder), Documents(), Device("cpu", "cpu", "cpu", 1, 1))
"""


@pytest.mark.long
def test_imported_objects_are_frozen_before_the_fork(tmp_path: Path) -> None:
    """A garbage collection over all objects would stop every stream of the API process for 80 ms."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, check=True, timeout=240
    )
    frozen, others = map(int, done.stdout.split())
    assert frozen > 50_000
    assert others < frozen / 20


MANAGER = """
import multiprocessing, os, sys, time
from runtime.server import run as server

if __name__ == "__main__":
    multiprocessing.set_start_method("forkserver")
    server._forks_die_with(os.getpid())
    server._keep_sockets_in(sys.argv[1])
    manager = multiprocessing.Manager()  # as LitServe makes its own
    print(manager._process.pid, flush=True)
    time.sleep(600)
"""


def test_the_manager_ends_with_a_killed_server_with_any_start_method(tmp_path: Path) -> None:
    """Since Python 3.14 a fork server starts the manager, which would outlive our server.

    Its socket is in the run folder, which the next start removes.
    """
    command = [sys.executable, "-c", MANAGER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        manager = psutil.Process(int(server.stdout.readline()))
        assert [path.name[:9] for path in tmp_path.iterdir()] == ["listener-"]
        server.kill()
        try:
            eventually(lambda: not manager.is_running() or manager.status() == psutil.STATUS_ZOMBIE)
        finally:
            if manager.is_running():
                manager.kill()


def test_the_api_process_may_close_after_uvicorn_has_cut_off_the_rest() -> None:
    """LitServe has one timeout for both, and would kill it before the ledger is written."""
    seen: list[int] = []
    server: Any = SimpleNamespace(uvicorn_graceful_timeout=65)
    server._perform_graceful_shutdown = lambda *_: seen.append(server.uvicorn_graceful_timeout)
    run._wait_for_close(server)
    server._perform_graceful_shutdown("manager", {})
    assert seen == [75]


STOPPING = """
import asyncio, os, sys
import litserve.server, uvicorn
from runtime.server import run  # it says how the API process stops

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    print("running", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})

config = uvicorn.Config(app, log_level="error", loop=sys.argv[1], lifespan="off")
config.port = 0
listening = config.bind_socket()
print(listening.getsockname()[1], flush=True)
if os.fork() == 0:  # the API process; its parent keeps the socket, as LitServe does
    litserve.server._Server(config).run(0, [listening])
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_no_connection_is_accepted_while_running_requests_finish(loop: str) -> None:
    """The parent has the listening socket, too, so that a load balancer would wait for an answer in vain."""
    command = [sys.executable, "-c", STOPPING, loop]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        port = int(server.stdout.readline())
        client = HTTPConnection("127.0.0.1", port)
        eventually(lambda: is_open(port))
        client.request("GET", "/")
        assert server.stdout.readline() == "running\n"
        (child,) = psutil.Process(server.pid).children()
        child.terminate()
        eventually(lambda: not is_open(port))
        print("end", file=server.stdin, flush=True)
        assert client.getresponse().status == 204
        client.close()
        assert server.wait() == 0


def test_a_failed_start_of_a_slot_is_repeated() -> None:
    """The error would end LitServe's monitoring, so that no slot would be restarted."""
    tries: list[str | OSError] = [OSError(errno.EAGAIN, "Resource temporarily unavailable"), "process"]

    def launch(_api: object, _worker_id: int) -> str:
        tried = tries.pop(0)
        if isinstance(tried, OSError):
            raise tried
        return tried

    server: Any = SimpleNamespace(launch_single_inference_worker=launch, inference_workers=[])
    _restart_in_lasting_thread(server)
    with pytest.raises(OSError, match="temporarily"):
        server.launch_single_inference_worker(None, 0)
    tries.insert(0, OSError(errno.ENOMEM, "Cannot allocate memory"))
    server.inference_workers.append("ended process")
    assert server.launch_single_inference_worker(None, 0) == "ended process", "ended, so that it is started again"
    assert server.launch_single_inference_worker(None, 0) == "process"


def test_a_stop_that_hangs_ends_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """LitServe's manager needs a thread for each caller, also for the one that stops the server."""
    names = (run.API, "SyncManager-1")
    children = [SimpleNamespace(name=name, pid=os.getpid(), sentinel=0) for name in names]
    monkeypatch.setattr(multiprocessing.connection, "wait", lambda *_, **__: [])

    def ended(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(multiprocessing, "active_children", lambda: children)
    monkeypatch.setattr(run, "end_everything", ended)
    monkeypatch.setattr(run, "POLL_SECONDS", 0.0)
    main = run._MainProcess(SimpleNamespace(), 30.0, -run.STOP_SECONDS)  # type: ignore[arg-type]
    monkeypatch.setattr(main, "_stop", lambda: None)
    main._on_signal(signal.SIGTERM, None)
    with pytest.raises(SystemExit) as code:
        main._watch()
    assert code.value.code == run.EXIT_FAILED


@pytest.mark.parametrize(("error", "count"), [(EOFError(), 0), (ConnectionRefusedError(), 0), (ValueError("new"), 1)])
def test_an_error_because_the_manager_ended_first_is_not_logged(
    error: Exception, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("tests.litserve")
    logger.addFilter(_is_relevant)
    try:
        raise error
    except type(error):
        logger.exception("Monitoring worker crashed")
    assert len(caplog.records) == count
