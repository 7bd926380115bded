"""The server shell: LitServe binds the port, spawns and restarts the slots, and drains.

All uses of private parts of LitServe 0.2.19 are in this file, hooks.py, slot_starter.py and slots/worker.py, and are
checked by tests/unit/server/test_litserve_pin.py.

LitServe's own request queue and transport stay idle, because the endpoints are plain FastAPI routes added by LitSpec.
"""

import contextlib
import logging
import math
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import litserve as ls
import litserve.server
import psutil
import uvicorn
from fastapi import FastAPI

from models.process_control import die_with_parent
from registry.base.heap import freeze_heap
from registry.base.limits import NO_PROCESSES, is_out_of_processes
from registry.recipes.loading import Documents
from runtime.config import logs
from runtime.config.device import Device
from runtime.config.settings import Settings
from runtime.http.app import finish
from runtime.http.guard.layers import raise_file_limit, uvicorn_options
from runtime.http.routes import routes
from runtime.residency.watcher import engines_at_start
from runtime.server.api_process import ApiProcess
from runtime.server.hooks import RuntimeAPI, RuntimeSpec
from runtime.server.orphans import FIRST, OrphanReaper
from runtime.server.shutdown import ProcessWatchdog, log
from runtime.server.slot_starter import SlotStarter
from runtime.slots.worker import SlotLoop

# With `mcp` installed but not `fastmcp` (vLLM brings the former), LitServe's run() fails on a missing name.
litserve.server._MCP_AVAILABLE = False

CLOSE_SECONDS = 10
"""Most time in which the API process closes after uvicorn has cut off the last requests."""


async def _allow_all() -> None:
    """Allow everything. A coroutine, because for LitServe's own function FastAPI would use a thread."""


litserve.server.no_auth = _allow_all


async def _close_port(server: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
    """Close the port in all processes that share it, then continue as uvicorn does.

    The main process and the manager have the listening socket, too. If only the API process closed it, the kernel
    would keep accepting connections that get no answer until the whole server has ended.
    """
    shared = [listener.dup() for listener in sockets or ()]
    for listening in server.servers:  # first, so that the event loop sees no errors of these sockets
        listening.close()
    for listener in shared:
        with listener, contextlib.suppress(OSError):  # does not listen yet if the stop comes during the start
            listener.shutdown(socket.SHUT_RDWR)
    await uvicorn.Server.shutdown(server, sockets)


litserve.server._Server.shutdown = _close_port
# If set, LitServe would require a second key of each request, and refuse requests without it in its own format.
litserve.server.LIT_SERVER_API_KEY = None

EXIT_FAILED = 4
"""Exit code of the command line for a server that ended by itself and can no longer clean up."""
API = "LitServer-0"
"""LitServe's name for the API process."""
START_SECONDS = 10.0
"""Longest time that a stop during the start waits for the start to complete."""
STOP_SECONDS = 60.0
"""Longest time of a stop beyond `drain_seconds`."""
POLL_SECONDS = 0.5
"""Seconds between checks whether the API process or the manager is stopped."""


def build(
    settings: Settings, documents: Documents, device: Device, request_slot: Callable[[], None] | None = None
) -> ls.LitServer:
    """Build the LitServer with all endpoints. Its API process opens the gateway.

    request_slot: called in the API process to request one more slot.
    """
    process = ApiProcess(settings, documents, device, request_slot)
    warms = engines_at_start(settings, documents.models)
    loop = SlotLoop(str(settings.run_dir), warms, settings.bounds, settings.slot_spin)
    api = RuntimeAPI(spec=RuntimeSpec(routes()), loop=loop, enable_async=False)
    server = ls.LitServer(
        api,
        accelerator="cpu",  # slots get their device from the Load frame, so that each may use any device
        workers_per_device=settings.slots,
        timeout=False,
        restart_workers=True,
        healthcheck_path="/litserve/health",
        info_path="/litserve/info",
        middlewares=process.layers(),
    )
    server.monitor_internal = 0.05
    _restart_in_lasting_thread(server)
    server.uvicorn_graceful_timeout = int(settings.drain_seconds) + 5
    _wait_for_close(server)
    app: FastAPI = server.app
    process.app = app
    finish(app, documents.models)
    return server


def _listen_at(host: str, port: int) -> None:
    """Listen on any address of this machine; LitServe allows only three."""
    address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    bind = uvicorn.Config.bind_socket

    def bound(self: uvicorn.Config) -> socket.socket:
        self.host = str(address)
        return bind(self)

    uvicorn.Config.bind_socket = bound  # type: ignore[method-assign]


def _wait_for_close(server: ls.LitServer) -> None:
    """Let the API process close after uvicorn's timeout, which LitServe also uses for its own patience with it.

    Otherwise LitServe kills it at the moment at which uvicorn cancels what is left, before the ledger is written.
    """
    stop = server._perform_graceful_shutdown

    def stop_later(*arguments: Any, **options: Any) -> None:
        server.uvicorn_graceful_timeout += CLOSE_SECONDS
        stop(*arguments, **options)

    server._perform_graceful_shutdown = stop_later


def _restart_in_lasting_thread(server: ls.LitServer) -> None:
    """Restart slots in a thread that lives as long as the server, because slots die with the thread that started them.

    LitServe restarts them in its monitoring thread, which ends as soon as a stop begins. A restarted slot would then be
    killed while its requests may still finish (`die_with_parent`).
    """
    launch, executor = server.launch_single_inference_worker, ThreadPoolExecutor(1, "slots")

    def restart(api: ls.LitAPI, worker_id: int) -> object:
        try:
            return executor.submit(launch, api, worker_id).result()
        except OSError as error:  # out of processes, memory or files; it would end LitServe's monitoring for good
            if worker_id >= len(server.inference_workers):  # a first start
                raise
            cause = NO_PROCESSES if is_out_of_processes(error) else str(error)
            log.error("cannot start a slot's process; trying again", extra={"cause": cause})
            return server.inference_workers[worker_id]

    server.launch_single_inference_worker = restart


class _MainProcess:
    """Handles signals and watches LitServe's two processes, API and manager."""

    def __init__(self, server: ls.LitServer, hung_after: float, drain_seconds: float) -> None:
        self._server, self._hung_after = server, hung_after
        self._stopping, self._started = threading.Event(), threading.Event()
        self.failed = threading.Event()
        self._processes: dict[str, multiprocessing.process.BaseProcess] = {}
        self._has_terminal = sys.stderr.isatty()
        self._reloads_later = False
        self._stop_seconds, self._stop_by = drain_seconds + STOP_SECONDS, math.inf

    def listen(self) -> None:
        signal.signal(signal.SIGHUP, self._on_hangup)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        threading.Thread(target=self._watch, daemon=True).start()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stop_by = min(self._stop_by, time.monotonic() + self._stop_seconds)
        self._stopping.set()
        threading.Thread(target=self._stop, daemon=True).start()

    def _on_hangup(self, number: int, frame: FrameType | None) -> None:
        """Reload the recipes; stop the server if the terminal where it was started has closed."""
        if self._has_terminal and not sys.stderr.isatty():
            self._on_signal(number, frame)
        elif (api := self._processes.get(API)) is not None:
            self._reload(api)
        else:
            self._reloads_later = True

    def _reload(self, api: multiprocessing.process.BaseProcess) -> None:
        if api.pid:
            os.kill(api.pid, signal.SIGHUP)

    def _stop(self) -> None:
        """Shut down, or end everything if the start hangs, because LitServe would wait for killed workers."""
        if not self._started.wait(START_SECONDS):
            end_everything(0)
        self._shut_down()

    def _shut_down(self) -> None:
        while self._server._shutdown_event is None:  # a signal before the start is complete
            time.sleep(0.05)
        self._server._shutdown_event.set()

    def _watch(self) -> None:
        """End everything if the API process or the manager dies, which LitServe does not do.

        Also if one of them is stopped (SIGSTOP) for as long as an engine may be silent. Without the API process no
        request is answered; without the manager no slot is replaced and no signal ends the server.
        """
        processes, expected = self._processes, {API, "SyncManager"}
        while processes.keys() != expected:
            for process in multiprocessing.active_children():
                processes.update({name: process for name in expected if process.name.startswith(name)})
            time.sleep(0.05)
        self._started.set()
        if self._reloads_later:
            self._reload(processes[API])
        reaper = OrphanReaper() if os.getpid() == FIRST else None
        watchdog = ProcessWatchdog([process.pid for process in processes.values() if process.pid], self._hung_after)
        while not (
            ended := multiprocessing.connection.wait([p.sentinel for p in processes.values()], timeout=POLL_SECONDS)
        ):
            if reaper is not None:
                reaper.reap()
            if watchdog.is_stopped_too_long(time.monotonic()):
                log.error("a process of the server was stopped for too long", extra={"seconds": self._hung_after})
                end_everything(EXIT_FAILED)
            if time.monotonic() > self._stop_by:  # as when the manager could start no thread for `_shut_down`
                log.error("the stop hangs, so everything is ended", extra={"seconds": self._stop_seconds})
                end_everything(EXIT_FAILED)
        if self._stopping.is_set():
            return
        self.failed.set()
        names = ", ".join(name for name, process in processes.items() if process.sentinel in ended)
        log.error("a process of the server has ended by itself", extra={"ended": names})
        if processes["SyncManager"].sentinel in ended:  # its event cannot be set any more
            end_everything(EXIT_FAILED)
        self._shut_down()


def run(
    settings: Settings, documents: Documents, device: Device, background: Callable[[], object] | None = None
) -> int:
    """Serve until SIGINT or SIGTERM. Returns exit code 0 if drained, 1 if a process died.

    `background` runs in a thread of the main process in the meantime.

    Shutdown, in phases:
    1. A signal sets LitServe's shutdown event (from a thread, because the event is a proxy that takes a lock).
    2. LitServe sends SIGTERM to the API process: uvicorn closes the port and waits for running responses, at most
       `drain_seconds`; then the gateway stops.
    3. LitServe sends SIGTERM to each slot, which closes its engine and exits; SIGKILL after 5 s.
    4. The slots' children end with their parents; the run folder is removed.

    Each phase is logged with the remaining work (`runtime.server.shutdown`).
    """
    os.environ["ROUNDHOUSE_LOG_LEVEL"] = settings.log_level
    logs.configure(settings.log_level)
    _keep_sockets_in(settings.run_dir)
    _forks_die_with(os.getpid())
    raise_file_limit()
    starter = SlotStarter()
    server = build(settings, documents, device, starter.request)
    main = _MainProcess(server, settings.hung_after, settings.drain_seconds)
    main.listen()
    starter.listen(server)
    if background is not None:
        threading.Thread(target=background, daemon=True).start()
    freeze_heap()  # the API process is a fork, and a garbage collection over all imports would take it 80 ms
    _listen_at(settings.host, settings.port)
    logging.getLogger("litserve.server").addFilter(_is_relevant)
    try:
        server.run(
            host="127.0.0.1",  # LitServe accepts only hosts that it knows; see `_listen_at`
            port=settings.port,
            num_api_servers=1,
            log_level="warning",
            generate_client_file=False,
            access_log=False,
            log_config=None,
            **uvicorn_options(settings),
        )
    except (EOFError, ConnectionError):  # LitServe's manager is dead
        end_everything(EXIT_FAILED)
    starter.close(server)
    return 1 if main.failed.is_set() else 0


def _is_relevant(record: logging.LogRecord) -> bool:
    """Filter out the error of LitServe's monitoring when the manager ends during the stop."""
    kind = None if not record.exc_info else record.exc_info[0]
    manager_ended = kind is not None and issubclass(kind, EOFError | ConnectionError | FileNotFoundError)
    return not (manager_ended and record.msg == "Monitoring worker crashed")


def _keep_sockets_in(run_dir: Path) -> None:
    """Put the sockets of LitServe's manager into the run folder, which the next start removes after a kill."""
    config: dict[str, Any] = vars(multiprocessing.process.current_process())["_config"]
    config["tempdir"] = str(run_dir)


def _forks_die_with(main: int) -> None:
    """Make LitServe's forks, the API process and the manager, die with this process.

    Both are forked by the main thread; for the kernel the parent ends when the thread that forked ends.
    From Python 3.14 on, the manager would be forked from another process unless "fork" is set.
    """
    multiprocessing.set_start_method("fork", force=True)

    def in_child() -> None:
        if os.getppid() == main:  # leaves forks of forks alone
            die_with_parent(main)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])  # until it can reload the recipes

    os.register_at_fork(after_in_child=in_child)


def end_everything(code: int) -> NoReturn:
    """Kill all children, including engines, and exit with `code`; the last resort."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    os._exit(code)
