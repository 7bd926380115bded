"""Check a host's requirements, and say how to meet them. Imports no engine."""

import ctypes
import errno
import os
import platform
import resource
import shlex
import shutil
import socket
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal

import psutil

from models import nvml, process_control
from models.engines import ENGINES, engine_version
from models.native import cache_folder
from models.speech import libraries
from registry.storage.reserve import DiskReserve

GIB = 2**30
Kind = Literal["cpu", "cuda"]
MIN_DRIVER = 580
"""Minimum major version of the driver for CUDA 13, with which torch is built."""
MEMORY = {"cpu": 4 * GIB, "cuda": 16 * GIB}
"""Minimum host memory. With a GPU an engine's process needs up to 4 GiB, plus the weights of sleeping models."""
DISK = {"cpu": 2 * GIB, "cuda": 20 * GIB}
"""Minimum free space for downloads. The weights of an 8B model are 15 GiB."""
NUMA = "libnuma.so.1"
FILES = 4096
"""Minimum limit of open files. Each stream to a client is one."""


@dataclass(frozen=True, slots=True)
class HostNeed:
    name: str
    met: bool
    found: str
    help: str = ""
    """Instructions to meet it; empty if it is met."""
    optional: bool = False
    """Whether the server can run without it, in a limited way."""


def needs(kind: Kind, port: int, data_dir: Path) -> Iterator[HostNeed]:
    """Check all requirements of a server on a CPU or a GPU."""
    yield _python()
    yield from _packages(kind)
    if kind == "cuda":
        yield from _gpu()
        yield _cublas()
    else:
        yield _numa()
    yield _compiler(kind)
    if kind == "cuda":
        yield _headers()
    yield _memory(kind)
    yield _disk(kind)
    yield _data_dir(data_dir)
    yield _files()
    if port:
        yield _port(port)


def kind_of_host() -> Kind:
    """Return the kind of host, by its driver."""
    try:
        nvml.gpu("cuda:0")
    except nvml.NoGpu:
        return "cpu"
    return "cuda"


def _need(name: str, met: bool, found: str, how: str, *, optional: bool = False) -> HostNeed:
    return HostNeed(name, met, found, "" if met else how, optional)


def _python() -> HostNeed:
    met = (3, 11) <= sys.version_info[:2] < (3, 15)
    return _need(
        "python", met, platform.python_version(), "Python 3.11 to 3.14: make install PYTHON=/path/to/python3.12"
    )


def _packages(kind: Kind) -> Iterator[HostNeed]:
    again = f"make install ACCELERATOR={kind}"
    for engine in ENGINES:
        found = engine_version(engine)
        yield _need(engine, bool(found), found or "not installed", again)
    torch = _installed("torch")
    fits = bool(torch) and ("+cpu" in torch) is (kind == "cpu")
    yield _need("torch", fits, torch or "not installed", f"the build for {kind}: rm -rf .venv, then {again}")


def _gpu() -> Iterator[HostNeed]:
    how = f"the NVIDIA driver {MIN_DRIVER} or newer, and in a container --gpus all: https://www.nvidia.com/drivers"
    try:
        cards, driver = nvml.gpus(), nvml.driver()
    except nvml.NoGpu as error:
        yield _need("gpu", False, str(error), how)
        return
    for card in cards:
        name = "gpu" if len(cards) == 1 else f"gpu {card.uuid}"
        yield _need(name, True, f"{card.name}, {card.total / GIB:.0f} GiB, {card.used / GIB:.1f} in use", "")
    yield _need("driver", int(driver.partition(".")[0]) >= MIN_DRIVER, driver, how)


def _cublas() -> HostNeed:
    present = [name for name in libraries.LIBRARIES if libraries.find_library(name)]
    how = "speech needs cuBLAS of CUDA 12: make install ACCELERATOR=cuda"
    return _need("cublas 12", len(present) == len(libraries.LIBRARIES), ", ".join(present) or "not installed", how)


def _numa() -> HostNeed:
    try:
        ctypes.CDLL(NUMA)
        met = True
    except OSError:
        met = False
    how = "chat needs it, because vLLM for CPUs links to it. On Debian and Ubuntu: apt install libnuma1"
    return _need("libnuma", met, NUMA if met else "not installed", how)


def _compiler(kind: Kind) -> HostNeed:
    requested = os.environ.get("CC")
    names = [shlex.split(requested)[0]] if requested else ["cc", "gcc", "clang"]
    found = next((path for name in names if (path := shutil.which(name))), "")
    why = "Triton compiles with it" if kind == "cuda" else "without it LoRA and embeddings are slower"
    how = f"{why}. On Debian and Ubuntu: apt install gcc; or set CC"
    return _need("c compiler", bool(found), found or "none", how, optional=kind == "cpu")


def _headers() -> HostNeed:
    header = Path(sysconfig.get_path("include"), "Python.h")
    how = "Triton compiles against it. On Debian and Ubuntu: apt install python3-dev, for this version of Python"
    return _need("Python.h", header.is_file(), str(header) if header.is_file() else f"not in {header.parent}", how)


def _memory(kind: Kind) -> HostNeed:
    total = min(psutil.virtual_memory().total, process_control.memory_limit() or 1 << 62)
    how = f"at least {MEMORY[kind] / GIB:.0f} GiB, or a higher limit for the container"
    return _need("host memory", total >= MEMORY[kind], f"{total / GIB:.1f} GiB", how)


def _disk(kind: Kind) -> HostNeed:
    try:
        folder = Path(os.environ.get("HF_HOME") or cache_folder("")).expanduser()
    except RuntimeError:
        return _need("disk", False, "no home folder", "set HOME, or HF_HOME for downloaded weights", optional=True)
    free = shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free
    how = f"{DISK[kind] / GIB:.0f} GiB for downloaded weights; set HF_HOME to use another disk"
    return _need("disk", free >= DISK[kind], f"{free / GIB:.1f} GiB free at {folder}", how, optional=True)


def _data_dir(folder: Path) -> HostNeed:
    """Where the server can write, and take uploads. One without room for uploads starts, and answers requests."""
    name, folder = "data directory", folder.absolute()
    place = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not _is_writable(place):
        how = "look as the server's user, mount the disk writable, or name another folder: --data-dir"
        return _need(name, False, f"{folder} cannot be written", how)
    reserve = DiskReserve(place)
    free, size = reserve.measure()
    how = f"uploads are refused below {size / GIB:.1f} GiB (--disk-reserve): remove adapters, files and old backups"
    return _need(name, not reserve.is_short, f"{free / GIB:.1f} GiB free at {folder}", how, optional=True)


def _is_writable(folder: Path) -> bool:
    """Whether a file can be made. os.access does not know of a disk that an error has made read-only."""
    try:
        TemporaryFile(dir=folder).close()
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return True


def _files() -> HostNeed:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    how = f"at least {FILES} for many streams: ulimit -Hn, LimitNOFILE= of a systemd unit"
    return _need("open files", most >= FILES, f"{soft}, at most {most}", how, optional=True)


def _port(port: int) -> HostNeed:
    how = "another program listens there: stop it, or use roundhouse serve --port"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return _need(f"port {port}", False, error.strerror or str(error), how)
    return _need(f"port {port}", True, "free", how)


def _installed(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
