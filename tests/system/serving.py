"""Starts the real server as a user does, on real engines, and looks at its processes."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
from typer.testing import CliRunner

from benchmarks.peers.servers import free_port as free_port
from models.process_control import die_with_parent, has_ended
from tests.eventually import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
STARTER = ROOT / "recipes" / "starter"
PACK = ROOT / "models" / "starter" / "pack"
PATIENT = {"Prefer": f"wait={PATIENCE:.0f}"}
"""Lets a request wait for a load longer than recipes do, which is two minutes: a busy machine is no fault."""
WITH_US = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""Starts Python so that the kernel ends it with the test run, however that ends (1: PR_SET_PDEATHSIG)."""


def is_free(number: int) -> bool:
    with socket.socket() as port:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            port.bind(("127.0.0.1", number))
        except OSError:
            return False
    return True


class Server:
    """One `roundhouse serve`. `http` talks to it; `stop` sends SIGTERM and returns the exit code.

    It is killed when the thread that made it ends, so also when the test run is killed. `prewarm`: as by default; else
    empty slots import nothing, which spares each start the CPU time of a second import. `python` and `env`: of another
    build than this one (tests/rehearsal). `cwd`: where a user starts it. `fixed`: figures
    that have no option.
    """

    def __init__(
        self,
        data: Path,
        recipes: Sequence[Path] = (STARTER,),
        *options: str,
        device: str = "cpu",
        prewarm: bool = False,
        python: str = sys.executable,
        env: dict[str, str] | None = None,
        cwd: Path = ROOT,
        fixed: Mapping[str, float] | None = None,
    ) -> None:
        self.port, self.data = free_port(), data
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE, headers=PATIENT)
        self.log = data / "server.log"
        data.mkdir(parents=True, exist_ok=True)
        command = [
            python,
            "-c",
            WITH_US,
            *(["-P"] if cwd != ROOT else []),
            "-m",
            # As the installed command does: `main` imports all commands, restarts itself, and imports them again.
            # Another tree's may be of a version whose `entry` cannot be run as a module.
            "runtime.cli.entry" if cwd == ROOT else "runtime.cli.main",
            "serve",
            "--port",
            str(self.port),
        ]
        command += ["--device", device, "--data-dir", str(data), "--prewarm" if prewarm else "--no-prewarm"]
        command += ["--hung-after", f"{PATIENCE:.0f}"]  # of two the last one counts: tests of what hangs have their own
        for root in (ROOT, data.parent.parent):  # what tests make, beside what the starter pack has
            command += ["--adapter-roots", str(root)]
        command += [part for recipe in recipes for part in ("--recipes", str(recipe))] + list(options)
        self._command, self._env, self._cwd = command, env, cwd
        if fixed:
            self._env = {**(env or os.environ), "ROUNDHOUSE_FIXED": json.dumps(fixed)}
        self.start()

    def start(self) -> None:
        """Also once more, on the same port and data, after a `stop`."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=self._cwd,
                env=self._env,
                stdout=log,
                stderr=log,
                process_group=0,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_ready(self, seconds: float = PATIENCE) -> Self:
        """Closed where it does not come up: who called may have nothing that could close it yet."""
        try:
            eventually(self._is_ready, self.tail, seconds)
        except BaseException:
            self.close()
            raise
        return self

    def wait_closed(self) -> Self:
        """Until it has seen its first key: before, it lets in anybody, with that key as well, as another team."""
        eventually(lambda: httpx.get(f"{self.url}/v1/models", timeout=PATIENCE).status_code == 401, self.tail)
        return self

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, f"the server ended:\n{self.tail()}"
        try:
            return self.http.get("/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def family(self) -> list[psutil.Process]:
        """The server's processes: itself, the gateway, slots, engines."""
        try:
            main = psutil.Process(self.process.pid)
            return [main, *main.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def command(self, *words: str) -> Any:
        """What a command on this server's data prints as JSON.

        It runs in this process: Python would import for most of a second to start it. As people start commands:
        tests/system/upgrade/test_backup.py and tests/faults/batches/kills.py.
        """
        from runtime.cli.main import app  # not in all who start a server

        done = CliRunner().invoke(app, [*words, "--data-dir", str(self.data), "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def gateway(self) -> psutil.Process:
        """The process that answers HTTP; the one that was started is LitServe's main process."""
        return psutil.Process(self.http.get("/v1/status").json()["pid"])

    def model(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/v1/models/{name}").json()
        return found

    def wait_state(self, model: str, state: str, seconds: float = PATIENCE) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def reached() -> bool:
            found.update(self.model(model))
            return bool(found["state"] == state)

        eventually(reached, lambda: f"{model} is {found['state']}, not {state}:\n{self.tail()}", seconds)
        return found

    def slot_pid(self, model: str) -> int:
        return int(self.model(model)["pid"])

    def core_pid(self, model: str) -> int:
        """Of a chat model's EngineCore, which is not its slot's only child: grammars are tried out in another."""
        children = psutil.Process(self.slot_pid(model)).children()
        (found,) = (child for child in children if "EngineCore" in child.name())
        return int(found.pid)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a series over what matches the labels."""
        total = 0.0
        for line in self.http.get("/metrics").text.splitlines():
            series, _, value = line.rpartition(" ")
            head = series.partition("{")[0]
            if head == name and all(f'{k}="{v}"' in series for k, v in labels.items()):
                total += float(value)
        return total

    def stop(self, seconds: float = PATIENCE) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def close(self) -> None:
        """Whatever happens, nothing stays. Cheap when called again: its process's number may be another's by then."""
        if self.http.is_closed and self.process.poll() is not None:
            return
        family = self.family()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.http.close()


def alive(processes: Sequence[psutil.Process]) -> list[int]:
    """Those that still run or hold anything (zombies do not, once their last thread has ended)."""
    return [process.pid for process in processes if process.is_running() and not has_ended(process)]


def zombies(server: Server, seconds: float = PATIENCE) -> list[str]:
    """Processes of the server that have ended and that nobody asks for: those that are left after a while, since
    LitServe asks for an ended worker within a moment."""
    deadline = time.monotonic() + seconds
    while True:
        found = []
        for process in server.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() == psutil.STATUS_ZOMBIE:
                    found.append(f"{process.name()} {process.pid}, child of {process.ppid()}")
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def has_starter_pack() -> bool:
    return all((PACK / name).is_dir() for name in ("starter-chat", "starter-rerank", "starter-speech"))


os.environ.setdefault("NO_PROXY", "127.0.0.1")
