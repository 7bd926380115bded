"""Ray's own processes on a machine: `ray start --block` in its own session, with fixed ports and a token."""

import ipaddress
import os
import secrets
import socket
import sys
import time
from functools import partial
from pathlib import Path

import msgspec

from fleet.launchers.cluster import PORTS, WORKERS, Cluster
from fleet.launchers.processes import (
    LaunchSpec,
    ProcessLauncher,
    ProcessRecord,
    RecordFile,
    wait_until,
    without_ray,
)
from registry.base.child import with_our_packages
from registry.errors import BadRequest, NotFound, Unavailable
from registry.storage.files import make_private, write_text

START_SECONDS, END_SECONDS = 120.0, 20.0
STARTS, RETRY_SECONDS = 3, 2.0
"""Attempts before giving up, and the time between them, in which Ray ends the rest of the last one. Ray itself gives up
after 30 seconds, which may be too short for a busy machine and cannot be configured."""
STARTED = b"Ray runtime started."
"""The line in Ray's log that ends a start. Its ports listen long before, when the start may still fail."""
CLIENT_PORT = PORTS - 1
"""Offset from the first port, for the head's server for remote clients, which is not used."""
OBJECT_STORE_BYTES = 80_000_000
"""Ray's minimum, as nothing is stored there."""


def resource_of(server: str) -> str:
    """Return Ray's resource for running a server, which only its machine has."""
    return f"roundhouse:{server}"


def ray_environment(cluster: Cluster) -> dict[str, str]:
    """Return the environment of Ray's processes and the driver, with the path of the token."""
    return {
        **with_our_packages(without_ray(os.environ)),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(cluster.token),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def ray_program() -> Path:
    """Return the path of Ray's command. Raises BadRequest if Ray is not installed."""
    program = Path(sys.executable).with_name("ray")
    if not program.exists():
        raise BadRequest("Ray is not installed. Install 'ray>=2.60,<2.61': docs/fleet-ray.md says how.")
    return program


def start_ray(cluster: Cluster, host: str) -> bool:
    """Start Ray on this machine, called `host`. Returns False if it was already running.

    Raises BadRequest if Ray is not installed or the machine is not in the file, NotFound without the token,
    Unavailable after STARTS failed attempts or one that took START_SECONDS.
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
        if not wait_until(partial(_is_over, launcher, process, spec.log, size), START_SECONDS):
            launcher.end(process, END_SECONDS)
            break
        if not launcher.has_ended(process):
            return True
    file.remove()
    raise Unavailable(f"Ray did not start. {spec.log} says why.")


def has_head(cluster: Cluster) -> bool:
    """Return whether Ray's head listens. Without it Ray's client would wait for minutes."""
    try:
        socket.create_connection((cluster.head, cluster.port), 1.0).close()
    except OSError:
        return False
    return True


def end_ray(cluster: Cluster) -> bool:
    """End the process that `start_ray` started here. Never `ray stop`, which ends all on a host."""
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
    """Return the option for this machine's address, as reached by others.

    By default Ray uses the address of the default route. A host name is not resolved, because many machines resolve
    their own name to loopback.
    """
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        return []
    return [] if is_loopback else ["--node-ip-address", host]


def _ports(first: int) -> list[str]:
    """Return options for fixed ports, so that a firewall can name them."""
    names = (
        "node-manager", "object-manager", "dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent",
        "metrics-export",
    )  # fmt: skip
    named = ((f"--{name}-port", first + number) for number, name in enumerate(names, 1))
    workers = (("--min-worker-port", first + PORTS), ("--max-worker-port", first + PORTS + WORKERS - 1))
    return [word for name, port in (*named, *workers) for word in (name, str(port))]


def _is_over(launcher: ProcessLauncher, process: ProcessRecord, log: Path, size: int) -> bool:
    """Return whether a start has succeeded or ended. size: the log's size before it."""
    if launcher.has_ended(process):
        return True
    with log.open("rb") as lines:
        lines.seek(size)
        return STARTED in lines.read()
