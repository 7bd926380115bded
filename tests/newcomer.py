"""Runs and times README's commands from a clone to one's own adapter, starting from nothing.

    python -m tests.newcomer [--repository URL]

In an empty folder with empty caches it clones, installs, starts a server on a free port, registers and chats, which
downloads some gigabytes. It prints the seconds of each command, and exits with 1 if there are more than MAX_STEPS
commands or the last answer is wrong. The time depends on machine and network, so AIM is printed but not enforced.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from tests.docs.blocks import ROOT, Fence, fences
from tests.eventually import eventually
from tests.system.serving import free_port

MAX_STEPS = 6
AIM = 300.0
HEAD = "## From a clone to your own adapter"
URL = "URL-OF-THIS-REPOSITORY"
ANSWER = "WHAT IS AN ADAPTER"
FIRST_START = 1800.0
"""Seconds for the installation, even on a busy machine."""


@dataclass(frozen=True, slots=True)
class Step:
    command: str
    seconds: float
    printed: str = ""


def commands() -> list[str]:
    """Return README's commands, without comments."""
    parts = list(fences((ROOT / "README.md").read_text().splitlines()))
    block = parts[parts.index(HEAD) + 1]
    assert isinstance(block, Fence)
    return [line.partition("  #")[0].strip() for line in block.text.splitlines()]


def walk(folder: Path, repository: str = f"file://{ROOT}") -> Iterator[Step]:
    """Run each command and yield it when it is done; `make serve` once it answers. Raises CalledProcessError."""
    clone, enter, serve, *rest = commands()
    port = free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL")},
        "PORT": str(port),
        "ROUNDHOUSE_URL": f"http://127.0.0.1:{port}",
        "ROUNDHOUSE_DATA_DIR": str(folder / "data"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "UV_CACHE_DIR": str(folder / "cache" / "uv"),
        "NO_PROXY": "127.0.0.1",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }

    def do(command: str, where: Path) -> Step:
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=where, env=environment, check=True, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        return Step(command, time.monotonic() - began, done.stdout)

    yield do(clone.replace(URL, repository), folder)
    checkout = folder / enter.removeprefix("cd ")
    yield Step(enter, 0.0)
    began = time.monotonic()
    with _serving(serve, checkout, environment):
        yield Step(serve, time.monotonic() - began)
        for command in rest:
            yield do(command, checkout)


@contextmanager
def _serving(command: str, checkout: Path, environment: dict[str, str]) -> Iterator[None]:
    """Run a server that answers inside the block, and end all of its processes after it."""
    process = subprocess.Popen(["bash", "-c", command], cwd=checkout, env=environment, start_new_session=True)

    def answers() -> bool:
        assert process.poll() is None, f"'{command}' ended with {process.returncode}"
        try:
            return httpx.get(f"{environment['ROUNDHOUSE_URL']}/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    try:
        eventually(answers, lambda: f"'{command}' does not answer", FIRST_START)
        yield
    finally:
        if process.poll() is None:
            main = psutil.Process(process.pid)
            family = [main, *main.children(recursive=True)]
            for member in family:
                member.terminate()
            for member in psutil.wait_procs(family, timeout=60)[1]:
                member.kill()
        process.wait(60)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", default=f"file://{ROOT}", help="repository to clone (default: this checkout)")
    options = parser.parse_args()
    steps = []
    with tempfile.TemporaryDirectory() as folder:
        for step in walk(Path(folder), options.repository):
            steps.append(step)
            print(f"{step.seconds:7.1f} s  {step.command}", flush=True)
    whole = sum(step.seconds for step in steps)
    aims = f"aims: {AIM:.0f} s, {MAX_STEPS} commands"
    print(f"{whole:7.1f} s  {len(steps)} commands ({aims}), {steps[-1].printed.strip()}")
    return int(len(steps) > MAX_STEPS or not steps[-1].printed.rstrip().endswith(ANSWER))


if __name__ == "__main__":
    sys.exit(main())
