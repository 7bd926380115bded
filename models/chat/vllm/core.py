"""Patches of `EngineCore`: adapter calls between steps, and no request for an unplaced adapter.

The calls are in `CALLS`, behind one utility method added to EngineCore (`METHOD`; the slot's side is `launch.ask`).
Utilities share one ordered queue with requests and aborts, so only here it is certain whether a request uses an
adapter. All results are plain types, because anything else kills vLLM's output thread.

Only staging does not wait in that queue (`_stage_at_once`), because reading a file does not involve the engine's loop.
So an adapter on disk waits for a running step only once, for its place, like one in host memory.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from models import nvml
from models.chat.vllm import variables
from models.chat.vllm.cpu.shared_memory import missing_hint
from models.chat.vllm.cuda.sleep_memory import kept_blocks, prepare_sleep
from models.chat.vllm.steps import budget
from models.process_control import is_out_of_memory

FULL = "Free memory on device"
"""The text of vLLM's error if too little memory is free at its start."""

LONGEST_CAUSE = 1000
"""Maximum characters of a cause, because errors of CUDA and compilers fill pages."""

MAIN = "run_engine_core"
"""The function of vLLM's that is EngineCore's process, and logs the error that ends it."""

METHOD = "roundhouse"
"""The utility method's name in EngineCore."""

BESIDE_TORCH = 1 << 30
"""Estimated bytes on a GPU that torch's allocator does not count: context, modules, CUDA graphs. Not measured."""

Outcome = list[str]
"""[state, fault...]; state is 'running', 'read', 'done', 'busy' (a request uses it), 'full' or 'failed'."""


class UnknownAdapter(ValueError):
    """Raised for a request with an adapter that was never placed; the request fails, and the engine continues."""


def faults(fault: BaseException) -> Outcome:
    """Return the faults of an adapter, one per line."""
    return ["failed", *(str(fault) or type(fault).__name__).split("\n")]


WORST_FIRST = ("failed", "full", "running", "done")


def _worst(outcomes: list[Outcome]) -> Outcome:
    """Combine the outcomes of all workers: any fault counts, as a worker reports it only once; 'done' needs all."""
    return min(outcomes, key=lambda outcome: WORST_FIRST.index(outcome[0]))


def _in_use(core: Any, adapter_id: int) -> bool:
    requests = core.scheduler.requests.values()
    return any(r.lora_request is not None and r.lora_request.lora_int_id == adapter_id for r in requests)


def _placed(core: Any) -> set[int]:
    placed: set[int] = core.__dict__.setdefault("roundhouse_placed", set())
    return placed


def _leaving(core: Any) -> set[int]:
    """Return the adapters whose drop is queued, so that their room in host memory counts as free."""
    leaving: set[int] = core.__dict__.setdefault("roundhouse_leaving", set())
    return leaving


def _stage_at_once(core: Any) -> None:
    """Start staging in vLLM's thread that receives calls, while a step is running; pass other calls on as usual."""
    from vllm.v1.engine import EngineCoreRequestType

    wait_in_line = core.input_queue.put_nowait

    def take(item: tuple[Any, Any]) -> None:
        kind, request = item
        if kind == EngineCoreRequestType.UTILITY and request[2] == METHOD:
            call, arguments = request[3]
            if call == stage_adapter.__name__:
                core._handle_client_request(kind, request)
                return
            if call == drop_adapter.__name__:
                _leaving(core).add(arguments[0])
        wait_in_line(item)

    core.input_queue.put_nowait = take


def stage_adapter(self: Any, adapter_id: int, path: str) -> Outcome | Future[Outcome]:
    """Start reading an adapter into host memory. May be called in other threads than the engine's loop.

    If the worker is in this process, the answer ('read' or 'failed') is sent once it was read, without polls that would
    each wait for a running step; `place_adapter` lets it take effect. Otherwise the answer is 'running', and
    `poll_adapter` reports the end.
    """
    budget.on_adapter_call(self)
    outcome = _worst(self.collective_rpc("stage_adapter", args=(adapter_id, path, len(_leaving(self)))))
    if outcome[0] != "running" or not _answers_later(self):
        return outcome
    answer: Future[Outcome] = Future()
    self.collective_rpc("reading_adapter", args=(adapter_id,))[0].add_done_callback(
        lambda reading: answer.set_result(_read(reading))
    )
    return answer


def _answers_later(core: Any) -> bool:
    """Return whether calls may return Futures: vLLM must await them, and the worker must be in this process."""
    executor = type(getattr(core, "model_executor", None)).__name__
    return executor == "UniProcExecutor" and hasattr(core, "input_queue")


def _read(reading: Future[Any]) -> Outcome:
    if reading.cancelled():
        return ["failed", "it was dropped while it was read"]
    fault = reading.exception()
    return faults(fault) if fault else ["read"]


def place_adapter(self: Any, adapter_id: int, evict: int) -> Outcome:
    """Start copying a staged adapter into a free place, after removing adapter `evict` (0: none) from its place."""
    budget.on_adapter_call(self)
    if evict and _in_use(self, evict):
        return ["busy"]
    if evict:
        _placed(self).discard(evict)
    outcome = _worst(self.collective_rpc("place_adapter", args=(adapter_id, evict)))
    if outcome[0] == "done":
        _placed(self).add(adapter_id)
    return outcome


def poll_adapter(self: Any, adapter_id: int) -> Outcome:
    """Return the progress of an adapter's staging or placing. A finished one takes effect in this call."""
    outcome = _worst(self.collective_rpc("poll_adapter", args=(adapter_id,)))
    if outcome == ["done", "placed"]:
        _placed(self).add(adapter_id)
    return outcome


def drop_adapter(self: Any, adapter_id: int) -> Outcome:
    """Forget an adapter on device and host; 'busy' while a request uses it."""
    _leaving(self).discard(adapter_id)
    if _in_use(self, adapter_id):
        return ["busy"]
    _placed(self).discard(adapter_id)
    return _worst(self.collective_rpc("drop_adapter", args=(adapter_id,)))


def held_adapters(self: Any) -> list[list[int]]:
    """Return [ids of adapters in host memory, ids of adapters in places] that every worker has."""
    workers: list[list[list[int]]] = self.collective_rpc("held_adapters")
    return [sorted(set(kind[0]).intersection(*kind)) for kind in zip(*workers, strict=True)]


def a_layer(self: Any) -> list[str | int]:
    """Return [name, inputs, outputs] of a layer that adapters may change."""
    layer: list[str | int] = self.collective_rpc("a_layer")[0]
    return layer


def process_facts(self: Any) -> list[int]:
    """Return [compute threads of a worker, Python threads of this process, bytes on CUDA devices].

    Each of several workers counts like the largest one. An answer proves that the plug-in is active there.
    """
    workers: list[list[int]] = self.collective_rpc(worker_facts)
    return [workers[0][0], threading.active_count(), len(workers) * max(on_device for _, on_device in workers)]


def card_name(self: Any) -> str:
    """Return CUDA's name of the first worker's device, by which vLLM finds tuned kernel configurations."""
    name: str = self.collective_rpc(worker_card_name)[0]
    return name


def worker_card_name(_worker: Any) -> str:
    """Return CUDA's name of a worker's device; '' without CUDA."""
    import torch

    return str(torch.cuda.get_device_name()) if torch.cuda.is_initialized() else ""  # type: ignore[no-untyped-call]


def worker_facts(_worker: Any) -> list[int]:
    """Return [compute threads, bytes on a CUDA device] of a worker's process."""
    import torch

    return [torch.get_num_threads(), _on_device()]


def _on_device() -> int:
    """Return the bytes on the device by the driver, or torch's bytes plus an estimate of the rest."""
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    used = nvml.used_by(f"cuda:{torch.cuda.current_device()}", [os.getpid()])
    return used if used is not None else int(torch.cuda.memory_reserved()) + BESIDE_TORCH


def forget_adapters(self: Any) -> Outcome:
    """Remove all adapters from places and host memory; 'busy' while any request is in the engine."""
    if self.scheduler.requests:
        return ["busy"]
    _placed(self).clear()
    return _worst(self.collective_rpc("forget_adapters"))


def sleep_facts(self: Any) -> list[int]:
    """Return bytes: [in the sleeping allocator, of these kept during sleep, free on the device, pinned on the host].

    Torch pins blocks of powers of two. Zeros without CUDA.
    """
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return [0, 0, 0, 0]
    from vllm.device_allocator.cumem import CuMemAllocator

    allocator = CuMemAllocator.instance
    pool = list(allocator.pointer_to_data.values()) if allocator is not None else []
    pinned = int(torch.cuda.host_memory_stats().get("allocated_bytes.current", 0))
    return [sum(data.handle[1] for data in pool), sum(kept_blocks()), int(torch.cuda.mem_get_info()[0]), pinned]


def _tell_cause(error: Exception) -> None:
    """Record [out of memory (0 or 1), cause] for the slot, because vLLM only reports that the engine failed or died."""
    if path := os.environ.get(variables.CAUSE):
        what = f"{type(error).__name__}: {error}"[:LONGEST_CAUSE] + missing_hint(error)
        with contextlib.suppress(OSError):  # the slot is gone
            Path(path).write_text(json.dumps([int(_is_out_of_memory(error)), what]))


class _FatalErrorHandler(logging.Handler):
    """Records the error that ends EngineCore's loop, which vLLM only logs, as it does errors of single requests."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.funcName != MAIN or not record.exc_info:
            return
        if isinstance(error := record.exc_info[1], Exception):
            _tell_cause(error)


def _is_out_of_memory(error: Exception) -> bool:
    return is_out_of_memory(error) or FULL in str(error)


CALLS: dict[str, Callable[..., Any]] = {
    call.__name__: call
    for call in (
        stage_adapter,
        place_adapter,
        poll_adapter,
        drop_adapter,
        held_adapters,
        a_layer,
        forget_adapters,
        process_facts,
        card_name,
        sleep_facts,
        prepare_sleep,
    )
}


def _dispatch(self: Any, call: str, arguments: list[Any]) -> Any:
    return CALLS[call](self, *arguments)


def patch(core: Any, begin: Callable[[], None]) -> None:
    """Add the utility to `EngineCore`, guard its intake, and call `begin` when one is created."""
    stock_init, stock_preprocess = core.__init__, core.preprocess_add_request

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        begin()
        try:
            stock_init(self, *args, **kwargs)
            if self.vllm_config.lora_config is not None:
                self.collective_rpc("prepare_places")
                if _answers_later(self):
                    _stage_at_once(self)
        except Exception as error:
            _tell_cause(error)
            raise
        logging.getLogger(core.__module__).addHandler(_FatalErrorHandler(logging.ERROR))

    def preprocess_add_request(self: Any, request: Any) -> Any:
        lora = request.lora_request
        if lora is not None and lora.lora_int_id not in _placed(self):
            raise UnknownAdapter(f"adapter {lora.lora_name} is in no place")
        taken = stock_preprocess(self, request)
        budget.on_request(self, taken[0])
        return taken

    core.__init__ = init
    core.preprocess_add_request = preprocess_add_request
    setattr(core, METHOD, _dispatch)
