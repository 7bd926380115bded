"""Worker side of adapter swaps: read and pack in a thread, put into a free place, take effect between two steps.

vLLM mixes `StagedAdapters` into its worker class (`worker_extension_cls`). Every method is called by `vllm_core` on
the engine's loop and returns at once; long work runs in one thread. A small adapter that is like an earlier one and in
the page cache is no long work: a thread that reads it waits for Python's lock longer than that takes, and lets the step
beside it wait. A place that is being written belongs to no adapter, so no step reads it; it is published in
`poll_adapter`, after the copy has ended (on CUDA: after its event). On a CPU nothing needs to be copied: the place
refers to the staged weights, and `place_adapter` is done at once.

| method        | unknown adapter | staging | in host memory | placing | in a place |
|---------------|-----------------|---------|----------------|---------|------------|
| stage_adapter | starts, or done | running | done           | running | done       |
| place_adapter | failed          | failed; starts once it was read | starts | running | done |
| poll_adapter  | failed          | running, then done | done | running, then done | done |
| drop_adapter  | done            | result is thrown away | removed | removed after the copy | removed |
| forget_adapters |               | result is thrown away | removed | removed after the copy | removed |
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from adapters.staged_memory import StagedMemory
from adapters.vllm_core import Outcome, faults
from adapters.vllm_forms import Forms, size
from adapters.vllm_places import Places, refers
from adapters.vllm_read import FILES, read_adapter

SET_THREADS = torch.set_num_threads
"""Taken before vLLM's CPU worker replaces it by a function that does nothing."""

REST = 9
"""Times as long as a reading on the engine's loop, the next goes to the thread."""


class _State:
    def __init__(self) -> None:
        # one compute thread: OpenMP would else start a pool for this thread, and take the cores from the running step
        self.threads = ThreadPoolExecutor(1, "adapter", lambda: SET_THREADS(1))
        self.staging: dict[int, Future[Any]] = {}
        self.placing: dict[int, tuple[int, Future[None]]] = {}
        self.bytes: dict[int, int] = {}
        self.memory = StagedMemory()
        self.forms = Forms()
        self.reading = threading.Lock()
        """For `forms`. `memory` is the thread's, but for small adapters, which it hands out anew."""
        self._rest = 0.0
        self.stream: Any = None
        self._places: Places | None = None
        self._refers: bool | None = None
        self.closed = False
        self.asked = 0
        """How often the thread was given work."""

    def places(self, manager: Any) -> Places | None:
        """None where weights must be written into places, by the thread."""
        if self._refers is None:
            self._refers = refers(manager)
            self._places = Places(manager.modules) if self._refers else None
        return self._places

    def forget_places(self) -> None:
        self._refers = self._places = None

    def run(self, work: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
        """In the thread, where nothing else goes on for long: what prepares memory ends when there is other work."""
        self.asked += 1
        return self.threads.submit(work, *args, **options)

    def read(self, worker_manager: Any, adapter_id: int, path: str) -> Any:
        """In the thread."""
        with self.reading:
            return read_adapter(worker_manager, adapter_id, path, self.memory, self.forms)

    def read_at_once(self, adapter_id: int, path: str) -> Any:
        """vLLM's LoRAModel, without the thread and without the disk; None: this one is for the thread. A tenth of the
        engine's time is the most that goes into it."""
        began = time.monotonic()
        if began < self._rest or not self.reading.acquire(blocking=False):
            return None
        try:
            config, file = (Path(path) / name for name in FILES)
            lora = self.forms.read(adapter_id, config, file, self.memory, wait=False)
        finally:
            self.reading.release()
        ended = time.monotonic()
        self._rest = ended + REST * (ended - began)
        return lora

    def prepare(self, most: int) -> None:
        """Once the thread has nothing else to do: memory for the next adapters, if they are large."""
        asked = self.asked
        if self.memory.steady and not self.closed:
            self.threads.submit(self.memory.prepare, most, lambda: self.asked != asked)

    def close(self) -> None:
        """End the thread; a reading that was called off may go on still."""
        self.asked += 1
        self.closed = True
        self.threads.shutdown()


def write_place(manager: Any, lora: Any, index: int) -> None:
    """Copy packed weights into place `index` of every layer; layers that the adapter leaves alone are zeroed."""
    for name, module in manager.modules.items():
        weights = lora.loras.get(name)
        if weights is None:
            module.reset_lora(index)
        else:
            module.set_lora(index, weights.lora_a, weights.lora_b)


class StagedAdapters:
    """Mixed into vLLM's worker. State lives in one attribute, made at first use: vLLM calls no `__init__` here."""

    def _swaps(self) -> _State:
        state: _State = self.__dict__.setdefault("_roundhouse_swaps", _State())
        return state

    def _lora_managers(self) -> tuple[Any, Any]:
        worker_manager = self.model_runner.lora_manager  # type: ignore[attr-defined]
        return worker_manager, worker_manager._adapter_manager

    def stage_adapter(self, adapter_id: int, path: str) -> Outcome:
        state, (worker_manager, manager) = self._swaps(), self._lora_managers()
        if adapter_id in manager._registered_adapters:
            return ["done"]
        if adapter_id not in state.staging:
            if len(manager._registered_adapters) + len(state.staging) >= manager.capacity:
                return ["full"]
            if (lora := state.read_at_once(adapter_id, path)) is not None:
                return self._hold(adapter_id, lora)
            reading = state.run(state.read, worker_manager, adapter_id, path)
            state.staging[adapter_id] = reading
            reading.add_done_callback(lambda _: state.prepare(manager.capacity))
        return ["running"]

    def reading_adapter(self, adapter_id: int) -> Future[Any] | None:
        """What ends when a staging adapter was read; it takes effect in the next call that names the adapter. Only
        for an executor of this process."""
        return self._swaps().staging.get(adapter_id)

    def place_adapter(self, adapter_id: int, evict: int) -> Outcome:
        state, (_, manager) = self._swaps(), self._lora_managers()
        if evict:
            self._leave(evict)
            manager.deactivate_adapter(evict)
        if adapter_id in state.staging and (outcome := self._staged(adapter_id))[0] == "failed":
            return outcome
        if adapter_id in manager._active_adapters:
            return ["done"]
        if adapter_id in state.placing:
            return ["running"]
        if adapter_id not in manager._registered_adapters:
            return ["failed", "the adapter was never staged"]
        taken = {index for index, _ in state.placing.values()}
        free = [i for i, held in enumerate(manager.lora_index_to_id) if held is None and i not in taken]
        if not free:
            return ["full"]
        lora = manager._registered_adapters[adapter_id]
        if (places := state.places(manager)) is not None:
            places.put(free[0], lora, state.bytes[adapter_id])
            self._publish(lora, free[0])
            return ["done"]
        state.placing[adapter_id] = (free[0], state.run(self._copy, lora, free[0]))
        return ["running"]

    def _copy(self, lora: Any, index: int) -> None:
        _, manager = self._lora_managers()
        device = self.device  # type: ignore[attr-defined]
        if device.type != "cuda":
            write_place(manager, lora, index)
            return
        state = self._swaps()
        with torch.inference_mode(), torch.cuda.device(device):
            if state.stream is None:
                state.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            with torch.cuda.stream(state.stream):
                write_place(manager, lora, index)
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record()
            event.synchronize()

    def _leave(self, adapter_id: int) -> None:
        """The adapter's place, if it has one, refers to its weights no more."""
        _, manager = self._lora_managers()
        if adapter_id in manager.lora_index_to_id and (places := self._swaps().places(manager)) is not None:
            places.clear(manager.lora_index_to_id.index(adapter_id))

    def _publish(self, lora: Any, index: int) -> None:
        _, manager = self._lora_managers()
        manager.lora_index_to_id[index] = lora.id
        manager._active_adapters[lora.id] = None
        _, rank = size(lora)
        for wrapper in manager.punica_wrapper_mapping.values():
            wrapper.__dict__.setdefault("roundhouse_ranks", {})[index] = rank
        manager._last_mapping = None  # the same mapping of ids may now mean other places

    def _staged(self, adapter_id: int) -> Outcome:
        """Let an adapter that was read take effect."""
        state = self._swaps()
        reading = state.staging[adapter_id]
        if not reading.done():
            return ["running"]
        del state.staging[adapter_id]
        if fault := reading.exception():
            return faults(fault)
        return self._hold(adapter_id, reading.result())

    def _hold(self, adapter_id: int, lora: Any) -> Outcome:
        state, (_, manager) = self._swaps(), self._lora_managers()
        state.bytes[adapter_id], _ = size(lora)
        manager._registered_adapters[adapter_id] = lora
        return ["done", "staged"]

    def poll_adapter(self, adapter_id: int) -> Outcome:
        state, (_, manager) = self._swaps(), self._lora_managers()
        if adapter_id in state.staging:
            return self._staged(adapter_id)
        if adapter_id in state.placing:
            index, copying = state.placing[adapter_id]
            if not copying.done():
                return ["running"]
            del state.placing[adapter_id]
            if fault := copying.exception():
                return ["failed", str(fault) or type(fault).__name__]
            self._publish(manager._registered_adapters[adapter_id], index)
            return ["done", "placed"]
        if adapter_id in manager._active_adapters:
            return ["done", "placed"]
        return ["done", "staged"] if adapter_id in manager._registered_adapters else ["failed", "never staged"]

    def drop_adapter(self, adapter_id: int) -> Outcome:
        state, (_, manager) = self._swaps(), self._lora_managers()
        if reading := state.staging.pop(adapter_id, None):
            reading.cancel()
        if adapter_id in state.placing:
            _, copying = state.placing[adapter_id]
            if not copying.cancel():
                copying.result()  # a copy of some milliseconds; its place must not be given away while it runs
            del state.placing[adapter_id]
        state.bytes.pop(adapter_id, None)
        self._leave(adapter_id)
        manager.remove_adapter(adapter_id)
        if state.memory.held:
            state.run(state.memory.trim)
            state.prepare(manager.capacity)
        return ["done"]

    def forget_adapters(self) -> Outcome:
        """Before a sleep. Afterwards nothing refers to what the places hold, which a sleep may lose: the next adapter
        overwrites the whole of its place."""
        state, (_, manager) = self._swaps(), self._lora_managers()
        held = {*state.staging, *state.placing, *manager._registered_adapters.cache, *manager._active_adapters.cache}
        for adapter_id in held:
            self.drop_adapter(adapter_id)
        manager.remove_all_adapters()
        state.run(state.memory.trim, keep=0)
        state.forget_places()
        manager._last_mapping = None  # the next step computes and writes its mapping anew
        return ["done"]

    def held_adapters(self) -> list[list[int]]:
        state, (_, manager) = self._swaps(), self._lora_managers()
        for adapter_id in [i for i, reading in state.staging.items() if reading.done() and not reading.exception()]:
            self._staged(adapter_id)
        return [sorted(manager._registered_adapters.cache), sorted(manager._active_adapters.cache)]
