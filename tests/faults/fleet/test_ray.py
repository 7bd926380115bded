"""A fleet on three machines, joined by a real Ray: a front beside Ray's head, and two nodes.

Takes minutes, and only runs with RAY_FAULTS=1. Each machine is a network namespace with its own folders for Ray.
Requests run through the front all the time, and none may fail, no matter which part of Ray is killed.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from fleet.certificates import issue, make_authority
from fleet.launchers.processes import ProcessLauncher, ProcessRecord, RecordFile
from models.process_control import die_with_parent, has_ended
from tests.eventually import eventually
from tests.postgres import postgres
from tests.system.fleet.serving import PEPPER, has_postgres
from tests.system.serving import STARTER

RIGHT = ("unshare", "--net", "--mount", "true")
HEAD, FIRST, SECOND = "10.78.0.1", "10.78.0.2", "10.78.0.3"
SERVERS = {"front-1": HEAD, "node-1": FIRST, "node-2": SECOND}
BRIDGE = "rh-ray"
EMBED: Any = {"model": "starter-embed", "input": "hello"}
SERVE = ("--fleet=tests", "--host=0.0.0.0", "--port=8000", "--open", "--device=cpu")


def has_right() -> bool:
    return os.geteuid() == 0 and subprocess.run(RIGHT, capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.environ.get("RAY_FAULTS") != "1", reason="takes minutes: RAY_FAULTS=1"),
    pytest.mark.skipif(not has_postgres(), reason="apt-get install postgresql"),
    pytest.mark.skipif(not has_right(), reason="network namespaces need root"),
]


class Machine:
    """A network namespace with its own folders for Ray."""

    def __init__(self, address: str, own: Path, folder: Path, environment: Mapping[str, str]) -> None:
        """Create the machine. `own` is the actual place of its `folder` and /tmp/ray."""
        self.address, self.own, self._environment = address, own, environment
        holder = ["unshare", "--net", "--mount", "--propagation", "private", "sleep", "infinity"]
        self._holder = subprocess.Popen(holder, preexec_fn=partial(die_with_parent, os.getpid()))
        eventually(lambda: psutil.Process(self._holder.pid).name() == "sleep")  # then it is in its own namespaces
        link = f"{BRIDGE}{address.rpartition('.')[2]}"
        command("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(self._holder.pid))
        command("ip", "link", "set", link, "master", BRIDGE, "up")
        self.command("ip", "link", "set", "lo", "up")
        self.command("ip", "address", "add", f"{address}/24", "dev", "eth0")
        self.command("ip", "link", "set", "eth0", "up")
        for name, at in (("ray", folder), ("tmp", Path("/tmp/ray"))):
            (own / name).mkdir(parents=True)
            at.mkdir(parents=True, exist_ok=True)
            self.command("mount", "--bind", str(own / name), str(at))

    def start(self, *words: str) -> subprocess.Popen[str]:
        inside = ["nsenter", f"--target={self._holder.pid}", "--net", "--mount", "--", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(inside, env=dict(self._environment), stdout=pipe, stderr=pipe, text=True)

    def command(self, *words: str) -> str:
        process = self.start(*words)
        output, errors = process.communicate()
        assert process.returncode == 0, f"{words}: {output}{errors}{self.ray_log()}"
        return errors

    def ray_log(self) -> str:
        log = self.own / "ray" / "ray.log"
        return log.read_text(errors="replace")[-4000:] if log.exists() else ""

    def ray_processes(self, word: str = "") -> list[psutil.Process]:
        """Return Ray's processes on this machine with a word in their command line; '' for all."""
        record = RecordFile(self.own / "ray" / "ray.json").read()
        try:
            main = psutil.Process(0 if record is None else record.pid)
            found = [main, *main.children(recursive=True)]
            return [one for one in found if not has_ended(one) and word in " ".join(one.cmdline())]
        except psutil.NoSuchProcess:
            return []

    def close(self) -> None:
        for record in map(RecordFile.read, map(RecordFile, (self.own / "ray").glob("*.json"))):
            if record is not None:
                ProcessLauncher().end(record, 20.0)
        self._holder.kill()
        self._holder.wait()


def command(*words: str) -> None:
    subprocess.run(words, check=True)


class RayFleet:
    """The machines, and `roundhouse fleet ray` on them."""

    def __init__(self, folder: Path, database: str, stack: ExitStack) -> None:
        self.file, ray = folder / "cluster.yaml", folder / "ray"
        make_authority(folder / "authority")
        servers = []
        for name, host in SERVERS.items():
            issue(folder / "authority", name, folder / name)
            words = [*SERVE, f"--data-dir={folder / name / 'data'}", f"--fleet-certificates={folder / name}"]
            if host == HEAD:
                words += ["--front"]
            else:
                words += [f"--fleet-listen={host}:8443", f"--fleet-address=https://{host}:8443", "--slots=1"]
                words += ["--no-prewarm", f"--recipes={STARTER / 'starter-embed.yaml'}"]
            servers.append({"name": name, "host": host, "serve": words})
        self.file.write_text(yaml.safe_dump({"head": HEAD, "folder": str(ray), "servers": servers}))
        environment = {**os.environ, "ROUNDHOUSE_DATABASE": database, "ROUNDHOUSE_PEPPER": PEPPER}
        self.machines: dict[str, Machine] = {}
        for host in SERVERS.values():
            self.machines[host] = Machine(host, folder / host, ray, environment)
            stack.callback(self.machines[host].close)

    def words(self, verb: str, *more: str) -> tuple[str, ...]:
        return (str(Path(sys.executable).with_name("roundhouse")), "fleet", "ray", verb, str(self.file), *more)

    def up(self) -> None:
        """Start the fleet as in docs/fleet-ray.md: on Ray's head, which waits for the others, then on those."""
        head, token = self.machines[HEAD], Path("ray") / "ray-token"
        log = head.own / "ray" / "ray.log"
        before = log.stat().st_size if log.exists() else 0
        process = head.start(*self.words("up"))
        eventually(lambda: log.exists() and b"runtime started" in log.read_bytes()[before:], head.ray_log)
        for host in (FIRST, SECOND):
            shutil.copy(head.own / token, self.machines[host].own / token)
            self.join(host)
        output, errors = process.communicate()
        assert process.returncode == 0, f"{output}{errors}{head.ray_log()}"

    def join(self, host: str) -> None:
        self.machines[host].command(*self.words("up", "--host", host))

    def record(self, name: str) -> ProcessRecord | None:
        return RecordFile(self.machines[SERVERS[name]].own / "ray" / f"{name}.json").read()

    def records(self) -> list[ProcessRecord | None]:
        return [self.record(name) for name in SERVERS]

    def actor(self, name: str) -> psutil.Process | None:
        return next(iter(self.machines[SERVERS[name]].ray_processes("ServerActor")), None)

    def wait_actor(self, name: str, before: psutil.Process | None) -> None:
        """Wait until another actor supervises this server."""
        eventually(lambda: (now := self.actor(name)) is not None and now != before)


class Traffic:
    """Requests through the front, one after another, until the context ends."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.nodes: list[str] = []
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ending.set()
        self._thread.join()

    def _run(self) -> None:
        with httpx.Client(base_url=f"http://{HEAD}:8000", timeout=60.0, trust_env=False) as client:
            while not self._is_ending.wait(0.1):
                try:
                    answer = client.post("/v1/embeddings", json=EMBED)
                except httpx.TransportError as error:
                    self.failed.append(repr(error))
                    continue
                self.nodes.append(answer.headers.get("x-roundhouse-node", ""))
                if answer.status_code != 200:
                    self.failed.append(answer.text)

    def check(self, *nodes: str) -> None:
        """Check that another twenty requests are answered, only by these nodes."""
        first = len(self.nodes) + 1  # skips the one that may be running
        eventually(lambda: self.failed or len(self.nodes) >= first + 20)
        assert (self.failed, set(self.nodes[first:]) <= set(nodes)) == ([], True), self.failed or self.nodes[first:]


def is_up(host: str, model: str | None = None) -> bool:
    """Return whether a server answers, and whether it has `model` in memory."""
    with suppress(httpx.TransportError), httpx.Client(base_url=f"http://{host}:8000", trust_env=False) as client:
        if client.get("/health/ready").status_code != 200:
            return False
        return model is None or client.get(f"/v1/models/{model}").json().get("state") == "ready"
    return False


@contextmanager
def bridge() -> Iterator[None]:
    ports = Path("/sys/class/net", BRIDGE, "brif")
    if ports.is_dir() and not any(ports.iterdir()):  # left by a run that was killed
        command("ip", "link", "delete", BRIDGE)
    command("ip", "link", "add", BRIDGE, "type", "bridge")
    try:
        command("ip", "address", "add", "10.78.0.254/24", "dev", BRIDGE)
        command("ip", "link", "set", BRIDGE, "up")
        yield
    finally:
        command("ip", "link", "delete", BRIDGE)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[RayFleet]:
    pytest.importorskip("ray", reason="Ray is not installed: see docs/fleet-ray.md")
    with bridge(), postgres() as database, ExitStack() as stack:
        yield RayFleet(tmp_path, database, stack)


def kill(processes: Sequence[psutil.Process]) -> None:
    assert processes, "it runs"
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def test_servers_on_three_machines_outlive_whatever_of_ray_is_killed(fleet: RayFleet) -> None:
    fleet.up()
    for host in (FIRST, SECOND):
        eventually(lambda host=host: is_up(host))  # type: ignore[misc]
        assert httpx.post(f"http://{host}:8000/v1/models/starter-embed/load", timeout=600.0).status_code == 200
    eventually(lambda: httpx.post(f"http://{HEAD}:8000/v1/embeddings", json=EMBED, timeout=60.0).status_code == 200)
    records = fleet.records()
    with Traffic() as traffic:
        traffic.check("node-1", "node-2")

        actor = fleet.actor("node-1")
        kill([actor] if actor else [])
        fleet.wait_actor("node-1", actor)
        assert fleet.records() == records, "the next actor adopts the server"
        traffic.check("node-1", "node-2")

        actor = fleet.actor("node-2")
        kill(fleet.machines[SECOND].ray_processes("raylet/raylet"))
        eventually(lambda: not fleet.machines[SECOND].ray_processes())
        assert fleet.records() == records, "servers outlive a raylet"
        traffic.check("node-1", "node-2")
        fleet.join(SECOND)
        fleet.wait_actor("node-2", actor)
        assert fleet.records() == records

        first = fleet.record("node-1")
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        eventually(lambda: fleet.record("node-1") != first, lambda: "a killed server does not come back")
        eventually(lambda: is_up(FIRST, "starter-embed"))
        traffic.check("node-1", "node-2")
        records = fleet.records()

        kill(fleet.machines[HEAD].ray_processes())
        began = time.monotonic()
        for host in (FIRST, SECOND):
            machine = fleet.machines[host]
            eventually(lambda machine=machine: not machine.ray_processes())  # type: ignore[misc]
        print(f"without its head Ray ended on the others after {time.monotonic() - began:.0f} s")
        assert fleet.records() == records, "servers outlive Ray"
        assert all(is_up(host) for host in SERVERS.values())
        traffic.check("node-1", "node-2")
        fleet.up()
        assert fleet.records() == records, "a new Ray adopts them"
        traffic.check("node-1", "node-2")

    fleet.machines[HEAD].command(*fleet.words("down"))
    for host in (FIRST, SECOND):
        fleet.machines[host].command(*fleet.words("down", "--host", host))
    assert not any(is_up(host) for host in SERVERS.values())
    assert not any(machine.ray_processes() for machine in fleet.machines.values())
