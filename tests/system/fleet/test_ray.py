"""Servers started by a real Ray: killed actors and servers are replaced, and servers outlive Ray."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

from fleet.launchers.cluster import PORTS, WORKERS, Cluster, read_cluster
from fleet.launchers.head import end_ray
from fleet.launchers.processes import ProcessLauncher, ProcessRecord, RecordFile
from tests.eventually import PATIENCE, eventually
from tests.ports import is_free
from tests.system.serving import STARTER, free_port

pytest.importorskip("ray", reason="Ray is not installed: see docs/fleet-ray.md")
pytestmark = pytest.mark.real


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive ports that are free."""
    while True:
        first = free_port()
        if all(is_free(first + offset) for offset in range(count)):
            return first


class RayFleet:
    """One server on this machine, started by `roundhouse fleet ray`."""

    def __init__(self, folder: Path) -> None:
        self.port, self.file = free_port(), folder / "cluster.yaml"
        serve = [f"--port={self.port}", f"--data-dir={folder / 'data'}", f"--recipes={STARTER / 'starter-embed.yaml'}"]
        servers = [{"name": "node-1", "host": "127.0.0.1", "serve": [*serve, "--no-prewarm"]}]
        head = {"head": "127.0.0.1", "port": free_ports(PORTS + WORKERS)}
        self.file.write_text(yaml.safe_dump({**head, "folder": str(folder / "ray"), "servers": servers}))
        self.cluster: Cluster = read_cluster(self.file)

    def call(self, command: str) -> str:
        arguments = [Path(sys.executable).with_name("roundhouse"), "fleet", "ray", command, self.file]
        done = subprocess.run(arguments, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stderr

    def record(self) -> ProcessRecord | None:
        return RecordFile(self.cluster.folder / "node-1.json").read()

    def actor(self) -> psutil.Process | None:
        ray = RecordFile(self.cluster.folder / "ray.json").read()
        children = [] if ray is None else psutil.Process(ray.pid).children(recursive=True)
        return next((one for one in children if "ServerActor" in " ".join(one.cmdline())), None)

    def is_answering(self, pid: int | None = None) -> bool:
        """pid: a process that does not count, because it was killed."""
        record = self.record()
        if record is None or ProcessLauncher().has_ended(record) or record.pid == pid:
            return False
        try:
            address = f"http://127.0.0.1:{self.port}/health/ready"
            return httpx.get(address, trust_env=False, timeout=PATIENCE).status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayFleet]:
    fleet = RayFleet(tmp_path_factory.mktemp("r"))
    try:
        fleet.call("up")
        yield fleet
    finally:
        fleet.call("down")
        end_ray(fleet.cluster)


def test_killed_actors_and_servers_are_replaced_and_servers_outlive_ray(servers: RayFleet) -> None:
    eventually(servers.is_answering)
    first = servers.record()
    assert first is not None
    environment = Path(f"/proc/{first.pid}/environ").read_bytes().decode()
    assert "RAY_" not in environment
    assert os.getsid(first.pid) == first.pid

    actor = servers.actor()
    assert actor is not None
    actor.kill()
    eventually(lambda: (now := servers.actor()) is not None and now.pid != actor.pid)
    assert servers.record() == first, "the next actor adopts the server"
    assert servers.is_answering()

    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: servers.is_answering(first.pid))
    second = servers.record()

    end_ray(servers.cluster)
    assert servers.actor() is None
    assert servers.is_answering(), "also without Ray"
    assert "runs as" in servers.call("up")
    assert servers.record() == second, "a new Ray adopts it, too"
    assert servers.is_answering()
