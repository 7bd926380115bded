"""Ray's driver: `python -m fleet.launchers.driver up|down FILE`.

Each server gets a detached actor on its machine, which only supervises the server. If Ray restarts the actor, it adopts
the running server. The driver ends once all servers are started, and the actors stay. It prints one line of JSON for
each server.
"""

import importlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

import msgspec
import ray

from fleet.launchers.cluster import Cluster, LaunchedServer, read_cluster
from fleet.launchers.head import resource_of
from fleet.launchers.processes import LaunchSpec, ProcessLauncher, RecordFile, without_ray
from fleet.launchers.supervisor import Supervisor

NAMESPACE = "roundhouse"
STEP_SECONDS = 0.5
WAIT_SECONDS = 60.0
"""Longest wait for a machine to join."""
END_SECONDS = 90.0
"""Longer than a server's --drain-seconds."""


class ServerActor:
    """Supervises a server, on its machine."""

    def __init__(self, server: LaunchedServer, folder: Path) -> None:
        program = str(Path(sys.executable).with_name("roundhouse"))
        self._supervisor = Supervisor(
            ProcessLauncher(),
            LaunchSpec(
                [program, "serve", *server.serve],
                {**without_ray(os.environ), **server.environment},
                folder / f"{server.name}.log",
            ),
            RecordFile(folder / f"{server.name}.json"),
        )
        self._lock, self._is_ending = threading.Lock(), False
        self._pid = self._step()
        threading.Thread(target=self._supervise, daemon=True).start()

    def pid(self) -> int | None:
        """Return the server's process id, or None if it has ended and its restart is not due yet."""
        return self._pid

    def end(self) -> None:
        """End the server, and return once it has ended."""
        with self._lock:
            self._is_ending = True
            self._supervisor.end(END_SECONDS)

    def _supervise(self) -> None:
        while not self._is_ending:
            time.sleep(STEP_SECONDS)
            with self._lock:
                if not self._is_ending:
                    self._pid = self._step()

    def _step(self) -> int | None:
        record = self._supervisor.step(time.monotonic())
        return None if record is None else record.pid


def connect(cluster: Cluster) -> bool:
    """Connect to Ray. Returns False if it does not answer within WAIT_SECONDS."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            ray.init(cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level="WARNING")
        except ConnectionError as error:  # also raised while its head does not know this machine yet
            ray.shutdown()
            if time.monotonic() >= deadline:
                print(f"Ray at {cluster.address} does not answer: {error}", file=sys.stderr)
                return False
            time.sleep(STEP_SECONDS)
        else:
            return True


def up(cluster: Cluster, lines: TextIO) -> int:
    """Start all servers. Returns the exit code: 1 if a server's machine is missing."""
    actor = ray.remote(ServerActor)
    actors = {
        server.name: actor.options(
            name=server.name,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            num_cpus=0,
            resources={resource_of(server.name): 1},
        ).remote(server, cluster.folder)
        for server in cluster.servers
    }
    deadline, missing = time.monotonic() + WAIT_SECONDS, 0
    for server in cluster.servers:
        try:
            pid = ray.get(actors[server.name].pid.remote(), timeout=max(0.1, deadline - time.monotonic()))
        except ray.exceptions.GetTimeoutError:
            missing += 1
            _print(lines, {"name": server.name, "host": server.host, "pid": None})
        else:
            _print(lines, {"name": server.name, "host": server.host, "pid": pid})
    return 1 if missing else 0


def down(cluster: Cluster, lines: TextIO) -> int:
    for server in cluster.servers:
        try:
            actor = ray.get_actor(server.name)
        except ValueError:
            continue
        ray.get(actor.end.remote(), timeout=2 * END_SECONDS + WAIT_SECONDS)
        ray.kill(actor)
        _print(lines, {"name": server.name, "host": server.host, "pid": None})
    return 0


def _print(lines: TextIO, line: dict[str, object]) -> None:
    print(msgspec.json.encode(line).decode(), file=lines, flush=True)


def main() -> int:
    _, command, file = sys.argv
    lines = os.fdopen(os.dup(1), "w")
    sys.stdout = sys.stderr  # Ray prints and logs to stdout, which must contain only our lines
    os.dup2(2, 1)
    cluster = read_cluster(Path(file))
    if not connect(cluster):
        return 1
    try:
        return up(cluster, lines) if command == "up" else down(cluster, lines)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    # imported by its full name, by which actors find the class
    sys.exit(importlib.import_module("fleet.launchers.driver").main())
