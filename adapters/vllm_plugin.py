"""Everything that Roundhouse changes in vLLM, in one place. vLLM calls `register` in each of its processes.

| patch            | fault without it                                                   | file             |
|------------------|--------------------------------------------------------------------|------------------|
| CPU LoRA kernels | a base request in a mixed batch gets the last place's adapter; slow | cpu/punica.py    |
| LoRA bookkeeping | loads from paths inside a step; 3-5 ms a step at 500 cached adapters | vllm_manager.py |
| reading adapters | a file that is cut short while it is read ends the engine           | vllm_file.py     |
| ranks of modules | a regular expression for each two modules: 0.2 s for 224 of them    | vllm_read.py     |
| EngineCore       | a request for an adapter that is not there ends the engine          | vllm_core.py     |
| typical sampling | vLLM has no `typical_p`, which TGI's clients send                    | vllm_typical.py  |
| no torch.compile | CPU: the first request with logprobs stalls the engine for 8 to 15 s | here             |
| compute threads  | CPU: two threads on busy cores wait for each other at every layer   | here             |
| parent watch     | EngineCore lives on after its slot was killed                       | here             |

The patches touch private parts of vLLM: on a version that was not checked, LoRA is refused rather than risked.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing import connection
from typing import TYPE_CHECKING

from packaging.version import Version

if TYPE_CHECKING:
    import torch

CHECKED = {(0, 26), (0, 32)}
"""Releases on which the tests of these patches passed: 0.32 on CPU, 0.26 by reading."""

ACTIVE = "ROUNDHOUSE_VLLM"
"""Environment variable that the chat engine sets: a plain vLLM in the same environment stays as it was made."""

THREADS = "ROUNDHOUSE_VLLM_THREADS"
"""Environment variable with the number of compute threads of EngineCore on the CPU."""


def register() -> None:
    """Apply the patches, if this process belongs to a chat engine. Safe to call often.

    Raises RuntimeError on a vLLM that was not checked, which stops the load with that message.
    """
    if os.environ.get(ACTIVE) != "1":
        return
    import vllm

    if Version(vllm.__version__).release[:2] not in CHECKED:
        checked = ", ".join(f"{major}.{minor}" for major, minor in sorted(CHECKED))
        raise RuntimeError(f"vLLM {vllm.__version__} was not checked with Roundhouse's adapters; install {checked}")
    _patch_all()
    enter_process()


def enter_process() -> None:
    """What EngineCore's own process needs. Called again when EngineCore begins: a fork has its plug-ins loaded."""
    if multiprocessing.current_process().name.startswith("EngineCore"):
        _watch_parent()
        _bound_threads()


def _patch_all() -> None:
    import vllm.lora.lora_model as lora_model
    import vllm.lora.model_manager as model_manager
    from vllm.lora.peft_helper import PEFTHelper
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
    from vllm.platforms import current_platform
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.sample import logits_processor

    from adapters import vllm_core, vllm_file, vllm_manager, vllm_read, vllm_typical
    from adapters.cpu import punica

    vllm_manager.patch(LRUCacheWorkerLoRAManager, model_manager)
    vllm_file.patch(lora_model)
    vllm_read.patch(PEFTHelper)
    vllm_core.patch(EngineCore, enter_process)
    vllm_typical.patch(logits_processor)
    if current_platform.is_cpu():
        punica.patch(type(current_platform))
        _compile_nothing()


def _compile_nothing() -> None:
    """Count ranks without torch.compile: the first request with logprobs stalled every stream for 8 to 15 s."""
    from vllm.v1.sample import sampler
    from vllm.v1.sample.ops import logprobs

    logprobs.batched_count_greater_than = sampler.batched_count_greater_than = count_at_least


def count_at_least(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Per row how many elements are as great as its value: shapes (rows, n) and (rows, 1) to (rows,).

    vLLM's own function, less its checks of shapes, which import SymPy: 0.4 s at the first request with logprobs.
    """
    return (x >= values).sum(-1)


def _bound_threads() -> None:
    """Set the compute threads of this process; vLLM's CPU worker makes later calls to set them do nothing."""
    if threads := os.environ.get(THREADS):
        import torch

        torch.set_num_threads(int(threads))


_watching = False


def _watch_parent() -> None:
    """In a child process: die at once when the process that started it is gone, whatever this one is doing."""
    global _watching
    parent = multiprocessing.parent_process()
    if parent is None or _watching:
        return
    _watching = True

    slot = os.getppid()

    def watch() -> None:
        # the sentinel tells at once, but a sibling forked at the wrong moment can hold its other end open
        while os.getppid() == slot and not connection.wait([parent.sentinel], timeout=1.0):
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
