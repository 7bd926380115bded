"""Worker side of adapter swaps: read and pack in a thread, write into a free place, take effect between two steps.

vLLM mixes `StagedAdapters` into its worker class (`worker_extension_cls`). Every method is called by `vllm_core` on
the engine's loop and returns at once; long work runs in one thread. A place that is being written belongs to no
adapter, so no step reads it; it is published in `poll_adapter`, after the copy has ended (on CUDA: after its event).

| method        | unknown adapter | staging | in host memory | placing | in a place |
|---------------|-----------------|---------|----------------|---------|------------|
| stage_adapter | starts          | running | done           | running | done       |
| place_adapter | failed          | failed  | starts         | running | done       |
| poll_adapter  | failed          | running, then done | done | running, then done | done |
| drop_adapter  | done            | result is thrown away | removed | removed after the copy | removed |
| forget_adapters |               | result is thrown away | removed | removed after the copy | removed |
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from adapters.staged_file import StagedFile, instead_of_safetensors
from adapters.staged_memory import StagedMemory
from adapters.vllm_core import Outcome

SET_THREADS = torch.set_num_threads
"""Taken before vLLM's CPU worker replaces it by a function that does nothing."""
FILES = ("adapter_config.json", "adapter_model.safetensors")
SMALL = 1 << 20
"""Bytes up to which an adapter is copied into its place at once: the copy takes less time than a second call."""


class _State:
    def __init__(self) -> None:
        # one compute thread: OpenMP would else start a pool for this thread, and take the cores from the running step
        self.threads = ThreadPoolExecutor(1, "adapter", lambda: SET_THREADS(1))
        self.staging: dict[int, Future[Any]] = {}
        self.placing: dict[int, tuple[int, Future[None]]] = {}
        self.bytes: dict[int, int] = {}
        self.memory = StagedMemory()
        """Touched in the thread only."""
        self.stream: Any = None


def _tensors(weights: Any) -> list[tuple[torch.Tensor | None, torch.Tensor | None]]:
    if isinstance(weights.lora_a, list):
        return list(zip(weights.lora_a, weights.lora_b, strict=True))
    return [(weights.lora_a, weights.lora_b)]


def finite(values: torch.Tensor) -> bool:
    """Whether no value is infinite or NaN. By their sum, which no such value can leave again: an eighth of the time
    that looking at each takes, and 0.1 s for 45 MB. A sum that overflows is looked into."""
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def faults_of(
    loras: dict[str, Any],
    modules: dict[str, Any],
    max_rank: int,
    workers: int = 1,
    known: Collection[int] = (),
) -> list[str]:
    """Every reason why packed weights do not fit the layers they name: [] when they fit.

    Args:
        loras: module name -> packed weights with `lora_a` (rank, in) and `lora_b` (out, rank), or lists of them.
        modules: module name -> LoRA layer with `lora_a_stacked` (places, 1, rank, in), `lora_b_stacked`.
        max_rank: rows of A that a place has.
        workers: tensor-parallel size; above 1 the layers hold a part of `out`, so that width is not compared.
        known: addresses of tensors that were found finite already.
    """
    faults = [f"{name}: the model has no such layer for adapters" for name in loras if name not in modules]
    if not loras:
        faults.append("the adapter has no weights")
    for name, weights in loras.items():
        if name not in modules:
            continue
        layer = modules[name]
        pairs = _tensors(weights)
        if len(pairs) != len(layer.lora_a_stacked):
            faults.append(f"{name}: {len(pairs)} parts where the layer has {len(layer.lora_a_stacked)}")
            continue
        for (a, b), place_a, place_b in zip(pairs, layer.lora_a_stacked, layer.lora_b_stacked, strict=True):
            if a is None and b is None:
                continue
            if a is None or b is None:
                faults.append(f"{name}: one half of the pair is missing")
            elif a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1] or a.shape[0] > max_rank:
                faults.append(f"{name}: shapes {tuple(a.shape)}, {tuple(b.shape)} do not make a rank up to {max_rank}")
            elif a.shape[1] != place_a.shape[-1] or (workers == 1 and b.shape[0] != place_b.shape[-2]):
                wanted = (place_b.shape[-2], place_a.shape[-1])
                faults.append(f"{name}: made for {(b.shape[0], a.shape[1])} where the layer is {wanted}")
            elif not all(half.data_ptr() in known or finite(half) for half in (a, b)):
                faults.append(f"{name}: values that are not finite")
    return faults


def read_adapter(worker_manager: Any, adapter_id: int, path: str, memory: StagedMemory) -> Any:
    """Read a folder into vLLM's packed form, in memory of its own (on a CPU: a piece of `memory`, B turned round).

    Raises ValueError with every fault, one a line.
    """
    from vllm.lora.request import LoRARequest

    for name in FILES:
        if not (Path(path) / name).is_file():
            raise ValueError(f"{name} is not there")
    request, manager = LoRARequest(str(adapter_id), adapter_id, path), worker_manager._adapter_manager
    known: set[int] = set()
    if manager.device.type == "cpu":
        file = StagedFile(str(Path(path) / FILES[1]), memory)
        with instead_of_safetensors(file):
            lora = worker_manager._load_adapter(request)
        known = file.finite
    else:
        lora = worker_manager._load_adapter(request)
    for name, weights in lora.loras.items():
        if weights.lora_a is None or weights.lora_b is None:
            raise ValueError(f"{name}: one half of the pair is missing")
        if manager.device.type != "cpu":
            # safetensors hands out views of the mapped file: a file cut short later would end the engine with SIGBUS
            weights.lora_a, weights.lora_b = weights.lora_a.clone(), weights.lora_b.clone()
        elif weights.scaling != 1:
            known.discard(weights.lora_b.data_ptr())  # is multiplied in place when modules are merged
    if not lora.loras:
        raise ValueError("the adapter has no weights")
    manager._create_merged_loras_inplace(lora)
    workers = max((getattr(module, "tp_size", 1) for module in manager.modules.values()), default=1)
    if faults := faults_of(lora.loras, manager.modules, manager.lora_config.max_lora_rank, workers, known):
        raise ValueError("\n".join(faults))
    return lora


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
            state.staging[adapter_id] = state.threads.submit(
                read_adapter, worker_manager, adapter_id, path, state.memory
            )
        return ["running"]

    def place_adapter(self, adapter_id: int, evict: int) -> Outcome:
        state, (_, manager) = self._swaps(), self._lora_managers()
        if evict:
            manager.deactivate_adapter(evict)
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
        if state.bytes.get(adapter_id, SMALL) < SMALL and self.device.type == "cpu":  # type: ignore[attr-defined]
            write_place(manager, lora, free[0])
            self._publish(lora, free[0])
            return ["done"]
        state.placing[adapter_id] = (free[0], state.threads.submit(self._copy, lora, free[0]))
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

    def _publish(self, lora: Any, index: int) -> None:
        _, manager = self._lora_managers()
        manager.lora_index_to_id[index] = lora.id
        manager._active_adapters[lora.id] = None
        rank = max(a.shape[0] for weights in lora.loras.values() for a, _ in _tensors(weights) if a is not None)
        for wrapper in manager.punica_wrapper_mapping.values():
            wrapper.__dict__.setdefault("roundhouse_ranks", {})[index] = rank
        manager._last_mapping = None  # the same mapping of ids may now mean other places

    def poll_adapter(self, adapter_id: int) -> Outcome:
        state, (_, manager) = self._swaps(), self._lora_managers()
        if adapter_id in state.staging:
            reading = state.staging[adapter_id]
            if not reading.done():
                return ["running"]
            del state.staging[adapter_id]
            if fault := reading.exception():
                return ["failed", *(str(fault) or type(fault).__name__).split("\n")]
            lora = reading.result()
            pairs = [pair for weights in lora.loras.values() for pair in _tensors(weights)]
            state.bytes[adapter_id] = sum(t.nbytes for pair in pairs for t in pair if t is not None)
            manager._registered_adapters[adapter_id] = lora
            return ["done", "staged"]
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
        manager.remove_adapter(adapter_id)
        state.threads.submit(state.memory.trim)
        return ["done"]

    def forget_adapters(self) -> Outcome:
        """Before a sleep. Afterwards nothing refers to what the places hold, which a sleep may lose: the next adapter
        overwrites the whole of its place."""
        state, (_, manager) = self._swaps(), self._lora_managers()
        held = {*state.staging, *state.placing, *manager._registered_adapters.cache, *manager._active_adapters.cache}
        for adapter_id in held:
            self.drop_adapter(adapter_id)
        manager.remove_all_adapters()
        state.threads.submit(state.memory.trim, keep=0)
        manager._last_mapping = None  # the next step computes and writes its mapping anew
        return ["done"]

    def held_adapters(self) -> list[list[int]]:
        _, manager = self._lora_managers()
        return [sorted(manager._registered_adapters.cache), sorted(manager._active_adapters.cache)]
