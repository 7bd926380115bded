"""Restarts of servers with a scripted launcher, and processes that outlive their starter."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from fleet.launchers import head, processes
from fleet.launchers.cluster import Cluster, read_cluster
from fleet.launchers.head import CLIENT_PORT, STARTED, STARTS, _own_address, _ports, end_ray, ray_environment, start_ray
from fleet.launchers.processes import LaunchSpec, ProcessLauncher, ProcessRecord, RecordFile, boot, without_ray
from fleet.launchers.supervisor import LONGEST_PAUSE, STEADY_SECONDS, Supervisor, pause
from registry.errors import BadRequest, NotFound, Unavailable
from tests.eventually import eventually

SPEC = LaunchSpec(["server"], {}, Path("/nowhere"))
CLUSTER = """
head: 10.0.0.1
folder: /var/lib/roundhouse/ray
servers:
- {name: node-1, host: 10.0.0.1, serve: [--fleet, models]}
- {name: node-2, host: 10.0.0.2, serve: [--fleet, models], environment: {HF_HOME: /data}}
"""


class ScriptedLauncher:
    """Processes are numbers. `living` has those that have not ended."""

    def __init__(self) -> None:
        self.starts, self.living = 0, set[int]()

    def start(self, spec: LaunchSpec) -> ProcessRecord:
        self.starts += 1
        self.living.add(self.starts)
        return ProcessRecord(self.starts, 0.0, "boot")

    def has_ended(self, process: ProcessRecord) -> bool:
        return process.pid not in self.living

    def end(self, process: ProcessRecord, seconds: float) -> None:
        self.living.discard(process.pid)


@pytest.fixture
def launcher() -> ScriptedLauncher:
    return ScriptedLauncher()


@pytest.fixture
def file(tmp_path: Path) -> RecordFile:
    return RecordFile(tmp_path / "node-1.json")


def test_a_server_is_started_once_and_adopted_by_the_next_actor(launcher: ScriptedLauncher, file: RecordFile) -> None:
    first = Supervisor(launcher, SPEC, file)
    assert first.step(0.0) == first.step(1.0) == ProcessRecord(1, 0.0, "boot")
    assert Supervisor(launcher, SPEC, file).step(2.0) == ProcessRecord(1, 0.0, "boot")
    assert launcher.starts == 1


def test_a_server_that_ends_is_started_again_after_longer_and_longer_pauses(
    launcher: ScriptedLauncher, file: RecordFile
) -> None:
    supervisor, now, pauses = Supervisor(launcher, SPEC, file), 0.0, []
    supervisor.step(now)
    for _ in range(4):
        launcher.living.clear()
        began = now
        while supervisor.step(now) is None:
            now += 0.5
        pauses.append(now - began)
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    assert pause(100) == LONGEST_PAUSE
    now += STEADY_SECONDS
    supervisor.step(now)
    launcher.living.clear()
    assert supervisor.step(now) is not None, "it had run for long"
    launcher.living.clear()
    assert supervisor.step(now + 0.5) is None
    assert supervisor.step(now + 1.0) is not None


def test_the_pauses_of_a_server_that_always_ends_stay_long(launcher: ScriptedLauncher, file: RecordFile) -> None:
    supervisor, times = Supervisor(launcher, SPEC, file), list[float]()
    for half_seconds in range(2000):
        before = launcher.starts
        supervisor.step(half_seconds / 2)
        launcher.living.clear()
        times.extend([half_seconds / 2] * (launcher.starts - before))
    pauses = [later - before for before, later in pairwise(times)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE


def test_a_new_actor_restarts_an_ended_server_at_once(launcher: ScriptedLauncher, file: RecordFile) -> None:
    Supervisor(launcher, SPEC, file).step(0.0)
    launcher.living.clear()
    assert Supervisor(launcher, SPEC, file).step(0.1) == ProcessRecord(2, 0.0, "boot")


def test_a_server_that_is_ended_leaves_no_record(launcher: ScriptedLauncher, file: RecordFile) -> None:
    supervisor = Supervisor(launcher, SPEC, file)
    supervisor.step(0.0)
    supervisor.end(1.0)
    assert (launcher.living, file.read()) == (set(), None)


def test_a_damaged_record_counts_as_missing(file: RecordFile, tmp_path: Path) -> None:
    (tmp_path / "node-1.json").write_text("{")
    assert file.read() is None


def test_a_process_outlives_its_starter_and_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The starter is an interpreter that ends at once."""
    script = (
        "import sys; from pathlib import Path; from fleet.launchers.processes import *;"
        "spec = LaunchSpec(['sleep', '600'], {'PATH': '/usr/bin:/bin', 'MINE': '1'}, Path(sys.argv[1]) / 'log');"
        "RecordFile(Path(sys.argv[1]) / 'record.json').write(ProcessLauncher().start(spec))"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    launcher, process = ProcessLauncher(), RecordFile(tmp_path / "record.json").read()
    assert process is not None
    try:
        assert process.boot == boot()
        assert not launcher.has_ended(process)
        eventually(lambda: os.getsid(process.pid) == process.pid)
        assert b"MINE=1" in Path(f"/proc/{process.pid}/environ").read_bytes()
        other = ProcessRecord(process.pid, process.created - 1, process.boot)
        assert launcher.has_ended(other), "its number is now of another process"
        assert launcher.has_ended(ProcessRecord(process.pid, process.created, "earlier"))
        booted = psutil.boot_time() - 3600
        with monkeypatch.context() as patch:  # the boot's time of day, as Linux computes it, follows the clock
            patch.setattr(psutil._pslinux, "boot_time", lambda: booted)
            assert not launcher.has_ended(process), "the clock was set back"
        launcher.end(other, 0.1)
        assert not launcher.has_ended(process), "another process is not ended"
    finally:
        launcher.end(process, 10.0)
    assert launcher.has_ended(process)


def test_a_process_that_does_not_end_by_itself_is_killed(tmp_path: Path) -> None:
    launcher = ProcessLauncher()
    words = ["/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"]
    process = launcher.start(LaunchSpec(words, {"PATH": os.environ["PATH"]}, tmp_path / "log"))
    eventually(lambda: (tmp_path / "log").read_text() == "ready\n")
    launcher.end(process, 0.5)
    assert launcher.has_ended(process)


def test_with_systemd_a_process_gets_its_own_scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script replaces systemd-run, and like it executes the command."""
    fake = tmp_path / "systemd-run"
    fake.write_text('#!/bin/sh\necho "$@" | cut -d" " -f1-5\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setattr(processes, "SYSTEMD", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    launcher, log = ProcessLauncher(), tmp_path / "log"
    spec = LaunchSpec(["sleep", "600"], {"PATH": f"{tmp_path}:/usr/bin:/bin"}, log)
    process = launcher.start(spec)
    try:
        eventually(lambda: log.read_text() == "--scope --collect --quiet -- sleep\n")
        eventually(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes() == b"sleep\x00600\x00")
        assert os.getsid(process.pid) == process.pid
    finally:
        launcher.end(process, 10.0)
    assert launcher.has_ended(process)


def test_a_servers_environment_has_nothing_of_ray() -> None:
    raylets = {"RAY_AUTH_TOKEN_PATH": "x", "RAY_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    assert without_ray({**raylets, "HOME": "/root"}) == {"HOME": "/root"}


def test_the_file_names_servers_and_machines(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    cluster = read_cluster(tmp_path / "cluster.yaml")
    assert [one.name for one in cluster.on("10.0.0.2")] == ["node-2"]
    assert cluster.address == "10.0.0.1:6379"
    environment = ray_environment(cluster)
    assert (environment["RAY_AUTH_MODE"], environment["RAY_AUTH_TOKEN_PATH"]) == ("token", str(cluster.token))
    ports = [int(word) for word in _ports(6379) if word.isdigit()]
    ports.append(cluster.port + CLIENT_PORT)
    assert len(set(ports)) == len(ports)
    assert cluster.port not in ports
    assert _own_address("10.0.0.2") == ["--node-ip-address", "10.0.0.2"]
    assert _own_address("gpu.lan") == _own_address("127.0.0.1") == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("name: node-2", "name: node-1", "two servers with the name node-1"),
        ("/var/lib/roundhouse/ray", "ray", "absolute path"),
        ("head: 10.0.0.1", "had: 10.0.0.1", "had"),
        ("serve: [--fleet, models]}", "serve: 7}", "serve"),
        ("name: node-2", "name: Node_2", "name"),
    ],
)
def test_a_faulty_file_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER.replace(old, new))
    with pytest.raises(BadRequest, match=words):
        read_cluster(tmp_path / "cluster.yaml")


def test_a_machine_that_is_not_in_the_file_and_one_without_the_token_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER.replace("/var/lib/roundhouse/ray", str(tmp_path / "ray")))
    cluster: Cluster = read_cluster(tmp_path / "cluster.yaml")
    with pytest.raises(BadRequest, match="no server on"):
        start_ray(cluster, "10.0.0.9")
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    with pytest.raises(BadRequest, match="Ray is not installed"):
        start_ray(cluster, "10.0.0.2")
    (tmp_path / "bin" / "ray").touch()
    with pytest.raises(NotFound, match="Copy it from"):
        start_ray(cluster, "10.0.0.2")


RAY = """#!/bin/sh
echo start >> "{folder}/starts"
test $(wc -l < "{folder}/starts") -lt {good} && exit 1
echo "{words}"
exec sleep 600
"""


@pytest.mark.parametrize(("good", "starts"), [(1, 1), (STARTS, STARTS), (STARTS + 1, STARTS)])
def test_a_failed_start_of_ray_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: int, starts: int
) -> None:
    """Also if its log has an earlier start's message."""
    folder, program = tmp_path / "ray", tmp_path / "bin" / "ray"
    program.parent.mkdir()
    program.write_text(RAY.format(folder=tmp_path, good=good, words=STARTED.decode()))
    program.chmod(0o755)
    folder.mkdir()
    (folder / "ray.log").write_bytes(STARTED + b"\n")
    (tmp_path / "cluster.yaml").write_text(CLUSTER.replace("/var/lib/roundhouse/ray", str(folder)))
    cluster = read_cluster(tmp_path / "cluster.yaml")
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    monkeypatch.setattr(head, "RETRY_SECONDS", 0.0)
    if good > STARTS:
        with pytest.raises(Unavailable, match="says why"):
            start_ray(cluster, "10.0.0.1")
    else:
        assert start_ray(cluster, "10.0.0.1")
        assert not start_ray(cluster, "10.0.0.1"), "it already runs"
    assert end_ray(cluster) == (good <= STARTS)
    assert len((tmp_path / "starts").read_text().splitlines()) == starts
