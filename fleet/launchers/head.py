"""Ray's own processes on a machine: `ray start --block` in a session of its own, with fixed ports and a token."""

import ipaddress
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from fleet.launchers.cluster import PORTS, WORKERS, Cluster
from fleet.launchers.processes import LaunchSpec, ProcessLauncher, ProcessRecord, RecordFile, without_ray
from registry.base.child import with_our_packages
from registry.errors import BadRequest, NotFound, Unavailable
from registry.storage.files import make_private, write_text

START_SECONDS, END_SECONDS = 120.0, 20.0
STARTS, RETRY_SECONDS = 3, 2.0
"""Starts before giving up, and the time in between, in which Ray ends what is left of the last one. Ray itself gives a
start up after 30 seconds, which a busy machine may need and no setting changes."""
STARTED = b"Ray runtime started."
"""The line in Ray's log with which a start is over. Its ports listen long before, and the start may still fail."""
CLIENT_PORT = PORTS - 1
"""Offset from the first port of a server for Ray's remote clients, which the head starts and which stays unused."""
OBJECT_STORE_BYTES = 80_000_000
"""Ray's least: nothing is stored there."""


def resource_of(server: str) -> str:
    """Ray's name for the right to run a server, which its machine alone has."""
    return f"roundhouse:{server}"


def ray_environment(cluster: Cluster) -> dict[str, str]:
    """The environment of Ray's processes and the driver: the token comes from a file that we name."""
    return {
        **with_our_packages(without_ray(os.environ)),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(cluster.token),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def ray_program() -> Path:
    """Ray's command line. Raises BadRequest where Ray is not installed."""
    program = Path(sys.executable).with_name("ray")
    if not program.exists():
        raise BadRequest("Ray is not installed. Install the extra `ray`: pip install 'roundhouse[ray]'.")
    return program


def start_ray(cluster: Cluster, host: str) -> bool:
    """Start Ray on this machine, called `host`; whether it had to be started.

    Raises BadRequest without Ray, and for a machine that the file does not have; NotFound without the token;
    Unavailable after STARTS starts that ended, or one that took START_SECONDS.
    """
    servers, is_head = cluster.on(host), host == cluster.head
    program = ray_program()
    make_private(cluster.folder)
    if not cluster.token.exists():
        if not is_head:
            raise NotFound(f"There is no token {cluster.token}. Copy it from {cluster.head}.")
        write_text(cluster.token, secrets.token_hex(32))
    file, launcher = _record(cluster), ProcessLauncher()
    before = file.read()
    if before is not None and not launcher.has_ended(before):
        return False
    where = (
        "--head", "--port", str(cluster.port), "--include-dashboard", "false",
        "--ray-client-server-port", str(cluster.port + CLIENT_PORT),
    ) if is_head else ("--address", cluster.address)  # fmt: skip
    spec = LaunchSpec(
        [str(program), "start", "--block", *where, *_own_address(host), *_ports(cluster.port), "--disable-usage-stats",
         "--num-cpus", "1", "--num-gpus", "0", "--object-store-memory", str(OBJECT_STORE_BYTES),
         "--resources", msgspec.json.encode({resource_of(server.name): 1 for server in servers}).decode()],
        ray_environment(cluster),
        cluster.folder / "ray.log",
    )  # fmt: skip
    for number in range(STARTS):
        if number:
            time.sleep(RETRY_SECONDS)
        size = spec.log.stat().st_size if spec.log.exists() else 0
        process = launcher.start(spec)
        file.write(process)
        if not _await(partial(_is_over, launcher, process, spec.log, size)):
            launcher.end(process, END_SECONDS)
            break
        if not launcher.has_ended(process):
            return True
    file.remove()
    raise Unavailable(f"Ray did not start. {spec.log} says why.")


def has_head(cluster: Cluster) -> bool:
    """Whether Ray's head listens. Without it Ray's client would wait for minutes."""
    try:
        socket.create_connection((cluster.head, cluster.port), 1.0).close()
    except OSError:
        return False
    return True


def end_ray(cluster: Cluster) -> bool:
    """End what `start_ray` started here, by its id: never `ray stop`, which ends all of a host's."""
    file, launcher = _record(cluster), ProcessLauncher()
    process = file.read()
    file.remove()
    if process is None or launcher.has_ended(process):
        return False
    launcher.end(process, END_SECONDS)
    return True


def _record(cluster: Cluster) -> RecordFile:
    return RecordFile(cluster.folder / "ray.json")


def _own_address(host: str) -> list[str]:
    """The address by which the others reach this machine. Ray's own choice is that of the default route.

    A host name is not looked up: many machines resolve their own to loopback.
    """
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        return []
    return [] if is_loopback else ["--node-ip-address", host]


def _ports(first: int) -> list[str]:
    """Fixed, so that a firewall can name them."""
    names = (
        "node-manager", "object-manager", "dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent",
        "metrics-export",
    )  # fmt: skip
    named = ((f"--{name}-port", first + number) for number, name in enumerate(names, 1))
    workers = (("--min-worker-port", first + PORTS), ("--max-worker-port", first + PORTS + WORKERS - 1))
    return [word for name, port in (*named, *workers) for word in (name, str(port))]


def _is_over(launcher: ProcessLauncher, process: ProcessRecord, log: Path, size: int) -> bool:
    """Whether a start has succeeded or ended. size: the log's bytes of earlier starts."""
    if launcher.has_ended(process):
        return True
    with log.open("rb") as lines:
        lines.seek(size)
        return STARTED in lines.read()


def _await(until: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if until():
            return True
        time.sleep(0.1)
    return False
