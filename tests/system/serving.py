"""Starts the real server like a user, on real engines, and inspects its processes."""

import contextlib
import json
import os
import signal
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
"""Lets a request wait longer for a load than the two minutes of recipes, for busy machines."""
WITH_US = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""Starts Python so that the kernel kills it when the test run ends in any way (1: PR_SET_PDEATHSIG)."""


class Server:
    """A `roundhouse serve`. It is killed when the thread that made it ends, so also when the test run is killed.

    Args:
        prewarm: as by default. Without it empty slots import nothing, which saves each start a second import.
        python, env: those of another build (tests/rehearsal).
        cwd: the folder in which a user starts it.
        fixed: figures that have no option.
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
            # Like the installed command; `main` would import all commands, restart itself, and import them again.
            # Another checkout may have a version whose `entry` cannot be run as a module.
            "runtime.cli.entry" if cwd == ROOT else "runtime.cli.main",
            "serve",
            "--port",
            str(self.port),
        ]
        command += ["--device", device, "--data-dir", str(data), "--prewarm" if prewarm else "--no-prewarm"]
        command += ["--hung-after", f"{PATIENCE:.0f}"]  # tests of hanging engines override it with a second one
        for root in (ROOT, data.parent.parent):  # for the starter pack's adapters and those that tests make
            command += ["--adapter-roots", str(root)]
        command += [part for recipe in recipes for part in ("--recipes", str(recipe))] + list(options)
        self._command, self._env, self._cwd = command, env, cwd
        if fixed:
            self._env = {**(env or os.environ), "ROUNDHOUSE_FIXED": json.dumps(fixed)}
        self.start()

    def start(self) -> None:
        """Start the server, again on the same port and data after a `stop`."""
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
        """Wait until the server is ready. Closes it if it does not start, because a caller may not be able to."""
        try:
            eventually(self._is_ready, self.tail, seconds)
        except BaseException:
            self.close()
            raise
        return self

    def wait_closed(self) -> Self:
        """Wait until it has read its first key. Before that it accepts every request, as team `default`."""
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
        """Run a command on this server's data; returns its JSON.

        It runs in this process, because a new one would import for most of a second. Commands in their own process are
        tested in tests/system/upgrade/test_backup.py and tests/faults/batches/kills.py.
        """
        from runtime.cli.main import app  # only here, because most tests run no commands

        done = CliRunner().invoke(app, [*words, "--data-dir", str(self.data), "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def gateway(self) -> psutil.Process:
        """Return the process that answers HTTP, a child of LitServe's main process."""
        return psutil.Process(self.http.get("/v1/status").json()["pid"])

    def model(self, name: str) -> dict[str, Any]:
        view: dict[str, Any] = self.http.get(f"/v1/models/{name}").json()
        return view

    def wait_state(self, model: str, state: str) -> dict[str, Any]:
        view: dict[str, Any] = {}

        def reached() -> bool:
            view.update(self.model(model))
            return bool(view["state"] == state)

        eventually(reached, lambda: f"{model} is {view['state']}, not {state}:\n{self.tail()}")
        return view

    def slot_pid(self, model: str) -> int:
        return int(self.model(model)["pid"])

    def core_pid(self, model: str) -> int:
        """Return the id of a chat model's EngineCore. Its slot has another child, which tries out grammars."""
        children = psutil.Process(self.slot_pid(model)).children()
        (core,) = (child for child in children if "EngineCore" in child.name())
        return int(core.pid)

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a series over all that match the labels."""
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
        """End all of its processes. Does nothing when called again, since its process id may be reused by then."""
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
    """Return the ids of processes that still run. Zombies do not, once their last thread has ended."""
    return [process.pid for process in processes if process.is_running() and not has_ended(process)]


def zombies(server: Server) -> list[str]:
    """Return the server's zombies that remain after a while, since LitServe soon waits for an ended worker."""
    deadline = time.monotonic() + PATIENCE
    while True:
        zombies_now = []
        for process in server.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() == psutil.STATUS_ZOMBIE:
                    zombies_now.append(f"{process.name()} {process.pid}, child of {process.ppid()}")
        if not zombies_now or time.monotonic() > deadline:
            return zombies_now
        time.sleep(0.2)


os.environ.setdefault("NO_PROXY", "127.0.0.1")
