"""The doctor reports what a host lacks, and how to get it."""

import errno
import json
import pwd
import re
import shlex
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from models import nvml, process_control
from runtime.cli.local import host
from runtime.cli.local.host import GIB, HostNeed, needs
from tests.unit.cli.conftest import Run

ROOT = Path(__file__).parents[4]

H100 = nvml.Gpu("NVIDIA H100", "GPU-1", 80 * GIB, GIB)

HOST = "runtime.cli.local.host"


@pytest.fixture
def good(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A host with a GPU and everything that is needed."""
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(nvml, "gpu", lambda device: H100)
    monkeypatch.setattr(nvml, "gpus", lambda: (H100,))
    monkeypatch.setattr(nvml, "driver", lambda: "580.65.06")
    monkeypatch.setattr(host, "engine_version", lambda engine: "1.0")
    monkeypatch.setattr(host, "_installed", lambda name: "2.13.0")
    monkeypatch.setattr(f"{HOST}.libraries.find_library", lambda name: tmp_path / name)
    monkeypatch.setattr(f"{HOST}.ctypes.CDLL", lambda name: name)
    monkeypatch.setattr(f"{HOST}.shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(f"{HOST}.shutil.disk_usage", lambda path: type("Disk", (), {"free": 100 * GIB}))
    monkeypatch.setattr("registry.storage.reserve.DiskReserve.measure", lambda _: (100 * GIB, GIB))
    monkeypatch.setattr(f"{HOST}.sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(f"{HOST}.resource.getrlimit", lambda kind: (1024, 65536))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"total": 64 * GIB}))
    monkeypatch.setattr(process_control, "memory_limit", lambda: None)
    monkeypatch.delenv("CC", raising=False)
    return monkeypatch


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def missing(kind: host.Kind = "cuda", data_dir: Path = ROOT / ".data") -> list[HostNeed]:
    return [need for need in needs(kind, free_port(), data_dir) if not need.met]


def no_gpu(*_device: str) -> nvml.Gpu:
    raise nvml.NoGpu("the NVIDIA driver does not answer")


def test_a_user_without_a_home_needs_a_place_for_weights(good: pytest.MonkeyPatch) -> None:
    good.setenv("HOME", "")
    good.setattr(pwd, "getpwuid", {}.__getitem__)
    for name in ("HF_HOME", "XDG_CACHE_HOME"):
        good.delenv(name, raising=False)
    (need,) = missing()
    assert (need.name, need.optional) == ("disk", True)
    assert "HF_HOME" in need.help


def test_a_complete_host_lacks_nothing(good: pytest.MonkeyPatch) -> None:
    assert missing() == []
    good.setattr(host, "_installed", lambda name: "2.13.0+cpu")
    assert missing("cpu") == []


@pytest.mark.parametrize(
    ("spoil", "name", "help"),
    [
        (lambda m, p: m.setattr(nvml, "gpus", no_gpu), "gpu", "--gpus all"),
        (lambda m, p: m.setattr(nvml, "driver", lambda: "575.1"), "driver", "580"),
        (
            lambda m, p: m.setattr(f"{HOST}.libraries.find_library", lambda name: None),
            "cublas 12",
            "ACCELERATOR=cuda",
        ),
        (
            lambda m, p: m.setattr(f"{HOST}.shutil.which", lambda name: None),
            "c compiler",
            "apt install gcc",
        ),
        (lambda m, p: (p / "Python.h").unlink(), "Python.h", "python3-dev"),
        (lambda m, p: m.setattr(process_control, "memory_limit", lambda: 8 * GIB), "host memory", "16 GiB"),
        (lambda m, p: m.setattr(host, "_installed", lambda name: "2.13.0+cpu"), "torch", "the build for cuda"),
        (
            lambda m, p: m.setattr(f"{HOST}.resource.getrlimit", lambda k: (256, 256)),
            "open files",
            "ulimit",
        ),
    ],
)
def test_each_fault_is_printed_with_its_remedy(
    good: pytest.MonkeyPatch, tmp_path: Path, spoil: Callable[[pytest.MonkeyPatch, Path], object], name: str, help: str
) -> None:
    spoil(good, tmp_path)
    (one,) = missing()
    assert one.name == name
    assert help in one.help


@pytest.mark.parametrize(("free", "known"), [(8 * GIB, ""), (GIB, "data directory")])
def test_the_data_directory_needs_room_for_uploads(
    good: pytest.MonkeyPatch, tmp_path: Path, free: int, known: str
) -> None:
    """After the first start, less free space is enough, because the last server has used some."""
    good.setattr("registry.storage.reserve.DiskReserve.measure", lambda _: (free, GIB))
    folder = tmp_path / "not made yet" / "data"
    assert [need.name for need in missing(data_dir=folder)] == ([known] if known else [])
    (need,) = [need for need in needs("cuda", free_port(), folder) if need.name == "data directory"]
    assert (need.found, need.optional) == (f"{free / GIB:.1f} GiB free at {folder}", True)
    assert ("1.0 GiB (--disk-reserve)" in need.help) is bool(known)


def test_a_data_directory_that_cannot_be_written_keeps_the_server_from_starting(
    good: pytest.MonkeyPatch, tmp_path: Path, run: Run
) -> None:
    def read_only(dir: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    good.setattr(f"{HOST}.TemporaryFile", read_only)
    (one,) = missing(data_dir=tmp_path / "data")
    assert (one.name, one.optional, one.found) == ("data directory", False, f"{tmp_path / 'data'} cannot be written")
    result = run("doctor", "--port", str(free_port()), "--data-dir", str(tmp_path / "data"))
    assert result.exit_code == 1
    assert "data directory: look as the server's user" in result.stderr


def test_a_cpu_needs_libnuma(good: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    good.setattr(host, "_installed", lambda name: "2.13.0+cpu")
    good.setattr(f"{HOST}.ctypes.CDLL", absent)
    (one,) = missing("cpu")
    assert (one.name, one.optional, "apt install libnuma1" in one.help) == ("libnuma", False, True)
    assert missing("cuda")
    assert "libnuma" not in {need.name for need in missing("cuda")}


def test_a_port_in_use_is_reported(good: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (one,) = [need for need in needs("cuda", port, ROOT / ".data") if not need.met]
    assert not any("port" in need.name for need in needs("cuda", 0, ROOT / ".data")), "0 checks none"
    assert (one.name, "--port" in one.help) == (f"port {port}", True)


def test_the_command_prints_faults_and_fails(good: pytest.MonkeyPatch, tmp_path: Path, run: Run) -> None:
    port = str(free_port())
    assert run("doctor", "--port", port).exit_code == 0
    good.setattr(f"{HOST}.resource.getrlimit", lambda kind: (256, 256))
    advised = run("doctor", "--port", port)
    assert advised.exit_code == 0, "advice alone is no failure"
    assert "advised" in advised.stdout
    (tmp_path / "Python.h").unlink()
    stated = run("doctor", "--port", port)
    assert stated.exit_code == 1
    assert "python3-dev" in stated.stderr
    reported = json.loads(run("doctor", "--json", "--port", port).stdout)
    assert (reported["device"], reported["ok"]) == ("cuda", False)
    assert {need["name"] for need in reported["needs"] if not need["met"]} == {"Python.h", "open files"}


def test_a_cpu_needs_no_driver(good: pytest.MonkeyPatch, run: Run) -> None:
    good.setattr(nvml, "gpu", no_gpu)
    good.setattr(host, "_installed", lambda name: "2.13.0+cpu")
    reported = json.loads(run("doctor", "--json", "--port", str(free_port())).stdout)
    assert (reported["device"], reported["ok"]) == ("cpu", True)
    assert not {"gpu", "driver", "Python.h", "cublas 12"} & {need["name"] for need in reported["needs"]}


def test_the_options_of_the_installation_script_are_accepted(run: Run) -> None:
    """It does not check a port, because the server's port is not known then."""
    command = re.search(r"roundhouse doctor (.*?) 2>", (ROOT / "scripts" / "install").read_text())
    assert command is not None
    words = shlex.split(command[1].replace("$ACCELERATOR", "cpu"))
    assert run("doctor", *words).exit_code in (0, 1)
    assert run("doctor", "--port", "99999").exit_code == 2
