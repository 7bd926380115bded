"""Worker side of adapter swaps: pack in a thread, write into a free place, commit between steps.

vLLM mixes `StagedAdapters` into its worker class (`worker_extension_cls`). `core` calls all methods on the engine's
loop (`stage_adapter` and `reading_adapter` also in the thread that receives calls), and they return at once; long work
runs in one thread. A place that is being written belongs to no adapter, so no step reads it. It is published in
`poll_adapter`, after the copy has ended.

On a GPU `place_adapter` does everything: the copies from pinned memory are enqueued on the engine's own stream
(`gpu_copy`), after the steps that may read the place's old contents and before those that will read the new ones. So
the place is published at once, and nothing waits. The same is done on a CPU for a small adapter, which takes less time
than handing it to the thread.

| method        | unknown adapter | staging | in host memory | placing | in a place |
|---------------|-----------------|---------|----------------|---------|------------|
| stage_adapter | starts          | running | done           | running | done       |
| place_adapter | failed          | failed; starts once it was read | starts | running | done |
| poll_adapter  | failed          | running, then done | done | running, then done | done |
| drop_adapter  | done            | result is discarded | removed | removed after the copy | removed |
| forget_adapters |               | result is discarded | removed | removed after the copy | removed |
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch

from models.chat.vllm import variables
from models.chat.vllm.adapters.arena import Arena, cuda_arena
from models.chat.vllm.adapters.gpu_copy import GpuCopier, blocks_of, gpu_copier
from models.chat.vllm.adapters.read import read_adapter, size, whole_too, widths
from models.chat.vllm.core import Outcome, faults
from models.chat.vllm.cpu.punica import CpuLora, turn_places
from registry.base.processor import cores

SET_THREADS = torch.set_num_threads
"""Saved before vLLM's CPU worker replaces it by a function that does nothing."""

SMALL = 1 << 20
"""Largest adapter in bytes that a CPU writes into its place on the engine's loop."""


BEING_READ = 2
"""Extra blocks of the arena for a file being read. Two, because the first file of a layout is read twice."""

MOST_THREADS = 4
"""Torch's threads for scaling and checking an adapter read on a GPU's host."""


class _State:
    def __init__(self, manager: Any) -> None:
        on_gpu = manager.device.type == "cuda"
        # on a CPU one compute thread, or OpenMP would start a pool for it and take cores from the running step
        count = max(1, min(MOST_THREADS, cores() // 4)) if on_gpu else 1
        self.threads = ThreadPoolExecutor(1, "adapter", lambda: SET_THREADS(count))
        self.staging: dict[int, Future[Any]] = {}
        self.placing: dict[int, tuple[int, Future[None]]] = {}
        self.gpu_copier: GpuCopier | None = gpu_copier(manager) if on_gpu else None
        self.arena: Arena | None = None
        if self.gpu_copier is not None and os.environ.get(variables.ARENA) == "1":
            self.use_arena(cuda_arena(manager.capacity + BEING_READ, self.gpu_copier.place_bytes))

    def use_arena(self, arena: Arena) -> None:
        """Stage in this arena, and report copies to it."""
        assert self.gpu_copier is not None
        self.arena = self.gpu_copier.arena = arena

    def make_spare(self) -> None:
        """Pin memory for the next adapter, in the reading thread."""
        if self.arena is not None:
            with suppress(RuntimeError):  # the engine is being closed
                self.threads.submit(self.arena.make_spare)

    def close(self) -> None:
        """End the thread. A cancelled read may still be running."""
        self.threads.shutdown()


def write_place(manager: Any, lora: Any, index: int) -> None:
    """Copy packed weights into place `index` of every layer; layers without weights in the adapter are zeroed."""
    with torch.inference_mode():
        for name, module in manager.modules.items():
            weights = lora.loras.get(name)
            if weights is None:
                module.reset_lora(index)
            else:
                module.set_lora(index, weights.lora_a, weights.lora_b)


def _placed(manager: Any) -> list[int]:
    return [adapter_id for adapter_id in manager.lora_index_to_id if adapter_id is not None]


def _holds(manager: Any, adapter_id: int) -> bool:
    """Return whether an adapter is in host memory. Safe in any thread; `get_adapter` would change the LRU order."""
    return adapter_id in manager.list_adapters()


def _vacate(manager: Any, adapter_id: int) -> None:
    """Remove an adapter from its place, if it has one."""
    manager.lora_index_to_id[:] = [
        None if occupant == adapter_id else occupant for occupant in manager.lora_index_to_id
    ]


def _read(state: _State, worker_manager: Any, adapter_id: int, path: str) -> Any:
    lora = read_adapter(worker_manager, adapter_id, path, state.arena)
    state.make_spare()
    lora.roundhouse_sources = state.gpu_copier.sources_of(lora) if state.gpu_copier else None
    return lora


class StagedAdapters:
    """Mixed into vLLM's worker. Its state is in one attribute, created at first use: vLLM calls no `__init__`."""

    def _swaps(self) -> _State:
        state: _State | None = self.__dict__.get("_roundhouse_swaps")
        if state is None:
            state = self.__dict__["_roundhouse_swaps"] = _State(self._lora_managers()[1])
        return state

    def _lora_managers(self) -> tuple[Any, Any]:
        worker_manager = self.model_runner.lora_manager  # type: ignore[attr-defined]
        return worker_manager, worker_manager._adapter_manager

    def prepare_places(self) -> None:
        """Prepare the places, once, before the first adapter."""
        self._swaps()
        _, manager = self._lora_managers()
        if manager.device.type == "cpu":
            turn_places(manager.modules)
        whole_too(manager)

    def stage_adapter(self, adapter_id: int, path: str, leaving: int = 0) -> Outcome:
        """Start reading an adapter. leaving: how many will have been dropped when this one takes effect."""
        state, (worker_manager, manager) = self._swaps(), self._lora_managers()
        if _holds(manager, adapter_id):
            return ["done"]
        if adapter_id not in state.staging:
            if len(manager) + len(state.staging) - leaving >= manager.capacity:
                return ["full"]
            state.staging[adapter_id] = state.threads.submit(_read, state, worker_manager, adapter_id, path)
        return ["running"]

    def reading_adapter(self, adapter_id: int) -> Future[Any] | None:
        """Return the Future of an adapter being read, for use in this process only.

        The adapter takes effect in the next call that names it.
        """
        return self._swaps().staging.get(adapter_id)

    def place_adapter(self, adapter_id: int, evict: int) -> Outcome:
        state, (_, manager) = self._swaps(), self._lora_managers()
        _vacate(manager, evict)
        if adapter_id in state.staging and (outcome := self._staged(adapter_id))[0] in ("failed", "full"):
            return outcome
        if adapter_id in manager.lora_index_to_id:
            return ["done"]
        if adapter_id in state.placing:
            return ["running"]
        lora = manager.get_adapter(adapter_id)
        if lora is None:
            return ["failed", "the adapter was never staged"]
        taken = {index for index, _ in state.placing.values()}
        free = [i for i, occupant in enumerate(manager.lora_index_to_id) if occupant is None and i not in taken]
        if not free:
            return ["full"]
        if manager.device.type == "cpu" and size(lora)[0] >= SMALL:
            state.placing[adapter_id] = (free[0], state.threads.submit(write_place, manager, lora, free[0]))
            return ["running"]
        if state.gpu_copier and lora.roundhouse_sources:
            state.gpu_copier.write(lora.roundhouse_sources, free[0])
        else:
            write_place(manager, lora, free[0])
            if state.arena is not None:  # vLLM's layers copy without waiting, too
                for block in blocks_of(lora):
                    state.arena.copied(block)
        self._publish(lora, free[0])
        return ["done"]

    def _publish(self, lora: Any, index: int) -> None:
        _, manager = self._lora_managers()
        manager.lora_index_to_id[index] = lora.id
        _, CpuLora.ranks[lora.id] = size(lora)

    def _staged(self, adapter_id: int) -> Outcome:
        """Let an adapter that was read take effect.

        The outcome is 'full' while an adapter that must leave is still used, because vLLM's table would evict another.
        """
        state, (_, manager) = self._swaps(), self._lora_managers()
        reading = state.staging[adapter_id]
        if not reading.done():
            return ["running"]
        if fault := reading.exception():
            del state.staging[adapter_id]
            return faults(fault)
        if len(manager) >= manager.capacity:
            return ["full"]
        del state.staging[adapter_id]
        manager.add_adapter(reading.result())  # does no work, because it is already packed
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
            self._publish(manager.get_adapter(adapter_id), index)
            return ["done", "placed"]
        if adapter_id in manager.lora_index_to_id:
            return ["done", "placed"]
        return ["done", "staged"] if _holds(manager, adapter_id) else ["failed", "never staged"]

    def drop_adapter(self, adapter_id: int) -> Outcome:
        state, (_, manager) = self._swaps(), self._lora_managers()
        if reading := state.staging.pop(adapter_id, None):
            reading.cancel()
        if adapter_id in state.placing:
            _, copying = state.placing[adapter_id]
            if not copying.cancel():
                copying.result()  # takes some milliseconds, during which its place must not be reused
            del state.placing[adapter_id]
        _vacate(manager, adapter_id)
        manager.remove_adapter(adapter_id)
        CpuLora.ranks.pop(adapter_id, None)
        return ["done"]

    def forget_adapters(self) -> Outcome:
        """Remove all adapters from their places before a sleep, which may lose the contents of the places.

        The next adapter overwrites its whole place.
        """
        state, (_, manager) = self._swaps(), self._lora_managers()
        adapter_ids = {*state.staging, *state.placing, *manager.list_adapters(), *_placed(manager)}
        for adapter_id in adapter_ids:
            self.drop_adapter(adapter_id)
        manager.remove_all_adapters()  # the next step recomputes its mapping
        return ["done"]

    def a_layer(self) -> list[str | int]:
        """Return name, inputs and outputs of a layer that adapters may change."""
        _, manager = self._lora_managers()
        name, module = next(iter(manager.modules.items()))
        sizes = [widths(module, number) for number in range(len(module.lora_b_stacked))]
        return [name, sizes[0][0], sum(outputs for _, outputs in sizes)]

    def held_adapters(self) -> list[list[int]]:
        state, (_, manager) = self._swaps(), self._lora_managers()
        staging = list(state.staging.items())
        for adapter_id in [i for i, reading in staging if reading.done() and not reading.exception()]:
            self._staged(adapter_id)
        return [sorted(manager.list_adapters()), sorted(_placed(manager))]
