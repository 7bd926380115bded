"""Stamps on a request's way through a server, whose processes import a copy of this file as `sitecustomize`.

`ROUNDHOUSE_STAMPS` names a folder. While the first byte of its file `on` is 1, each stamp is a line in `stamps.PID`
with its name and `time.perf_counter()`, a clock that all processes of a machine share. While off, a stamp costs 0.1 µs.
"""

import functools
import mmap
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

VARIABLE = "ROUNDHOUSE_STAMPS"
HOOKS = {
    "uvicorn.protocols.http.httptools_impl": (("asgi", "RequestResponseCycle", "run_asgi"),),
    "uvicorn.protocols.http.h11_impl": (("asgi", "RequestResponseCycle", "run_asgi"),),
    "models.chat.engine": (("slot", "VllmEngine", "call"),),
    "models.chat.asgi": (("app", "Exchange", "_run"), ("answer", "Exchange", "_send")),
    "vllm.v1.engine.async_llm": (("generate", "AsyncLLM", "add_request"), ("sent", "AsyncLLM", "_add_request")),
    "vllm.v1.engine.core": (
        ("core", "EngineCore", "add_request"), ("step", "EngineCore", "step"),
        ("step", "EngineCore", "step_with_batch_queue"),
    ),
    "vllm.v1.engine.output_processor": (("out", "RequestOutputCollector", "put"),),
}  # fmt: skip
"""Stamps by module: name, class and method. `step` is taken when a call with output returns, the others on the call."""
ORDER = ("asgi", "slot", "app", "generate", "sent", "core", "step", "out", "answer")


class Stamper:
    """Writes the stamps of this process."""

    def __init__(self, folder: str) -> None:
        self._folder, self._file, self._process = folder, -1, 0
        with open(f"{folder}/on", "rb") as switch:
            self._switch = mmap.mmap(switch.fileno(), 1, prot=mmap.PROT_READ)

    def stamp(self, name: str) -> None:
        if self._switch[0] != ord("1"):
            return
        if self._process != os.getpid():  # the first stamp, or the first after a fork
            self._process = os.getpid()
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._file = os.open(f"{self._folder}/stamps.{self._process}", flags, 0o600)
        os.write(self._file, f"{name} {time.perf_counter():.6f}\n".encode())

    def wrap(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method with its stamp. Coroutine functions work too, because callers await what it returns."""

        @functools.wraps(method)
        def stamped(*arguments: Any, **named: Any) -> Any:
            if name != "step":
                self.stamp(name)
                return method(*arguments, **named)
            result = method(*arguments, **named)
            if result and result[0]:
                self.stamp(name)
            return result

        return stamped


class Finder(MetaPathFinder):
    """Adds the stamps to the modules of `HOOKS` when they are imported."""

    def __init__(self, stamper: Stamper) -> None:
        self._stamper = stamper

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in HOOKS else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for stamp, owner, method in HOOKS[name]:
                kind = getattr(module, owner)
                setattr(kind, method, self._stamper.wrap(stamp, getattr(kind, method)))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if __name__ == "sitecustomize" and os.path.exists(f"{os.environ.get(VARIABLE)}/on"):
    sys.meta_path.insert(0, Finder(Stamper(os.environ[VARIABLE])))
