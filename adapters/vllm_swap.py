"""EngineCore takes another checkpoint of the same architecture: its model runner is taken apart and made anew.

Nothing is copied into the model that is there. vLLM's own start builds a new runner, with model, adapter places and KV
cache, from the other folder, by the same calls as in a new process; what stays are process, imports, configuration and
scheduler, in which no request is. That nothing of the model before can be used any more is shown, not believed:

1. No request is in the engine and no adapter in the worker, else 'busy'; the prefix cache is empty.
2. The old tensors are filled with NaN, then everything that held them is taken apart, LoRA places and KV cache too.
3. None of them may be alive then, nor any of the functions in which vLLM's CPU layers keep weights that they packed:
   what nobody refers to, nobody can compute with.
4. Every parameter of the new model is NaN before vLLM's loader runs, and none holds one afterwards, before vLLM packs
   them. (The loader itself refuses a checkpoint that leaves a parameter out.)
5. The KV cache that the new model asks for must be the one that the scheduler counts with.

After anything but 'done' and 'busy' the engine is good for nothing, and its process is to be ended.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from models.chat.vllm.core import Outcome, _placed


def swap_model(self: Any, path: str, name: str) -> Outcome:
    """EngineCore's own call: between two steps, never within one."""
    if self.scheduler.requests or self.batch_queue:
        return ["busy"]
    if why := _unfit(self):
        return ["failed", why]
    if not self.scheduler.reset_prefix_cache():
        return ["busy"]
    _placed(self).clear()
    try:
        outcome: Outcome = self.collective_rpc(_swap, args=(path, name))[0]
    except Exception as error:  # whatever vLLM raises, this engine has no model any more
        return ["failed", f"{type(error).__name__}: {error}"]
    return outcome


def _unfit(core: Any) -> str:
    """Why this engine must not be swapped; empty: it may."""
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    config = core.vllm_config
    model = config.model_config
    reasons = {
        "its executor": type(core.model_executor) is not UniProcExecutor,
        "its device": config.device_config.device_type != "cpu",
        "speculative decoding": config.speculative_config is not None,
        "quantization": model.quantization is not None,
        "media": model.is_multimodal_model,
        "a KV connector": config.kv_transfer_config is not None,
        "compiled code": bool(config.compilation_config.mode),
    }
    return ", ".join(reason for reason, so in reasons.items() if so)


def _swap(wrapper: Any, path: str, name: str) -> Outcome:
    from vllm.config import set_current_vllm_config
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    worker = wrapper.worker
    if type(worker.model_runner) is not CPUModelRunner:
        return ["failed", f"a {type(worker.model_runner).__name__} is not known"]
    if any(_adapters_of(worker)):
        return ["failed", "adapters are in the engine still"]
    if (state := worker.__dict__.pop("_roundhouse_swaps", None)) is not None:
        state.close()
    config, cache, specs = worker.vllm_config, worker.model_runner.kv_cache_config, worker.get_kv_cache_spec()
    traces = _take_apart(worker)
    if left := _alive(traces):
        return ["failed", f"{len(left)} pieces of the model before are in use still, such as {left[0]}"]
    config.model_config.model = config.model_config.tokenizer = path
    config.model_config.served_model_name = name
    with set_current_vllm_config(config):
        worker.model_runner = CPUModelRunner(config, worker.device)
    with _every_parameter_set() as loaded:
        worker.load_model()
    if not loaded:
        return ["failed", "vLLM loaded the weights in a way that is not known"]
    if worker.get_kv_cache_spec() != specs:
        return ["failed", "the new model wants another KV cache"]
    worker.initialize_from_config(cache)
    worker.compile_or_warm_up_model()
    return ["done"]


@contextmanager
def _every_parameter_set() -> Iterator[list[str]]:
    """What vLLM loads meanwhile is proved to be set; yields the models so proved. ValueError for others."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    stock = DefaultModelLoader.load_weights
    proved: list[str] = []

    def load_weights(self: Any, model: Any, model_config: Any) -> None:
        for _, parameter in model.named_parameters():
            _poison(parameter)
        stock(self, model, model_config)
        bad = [name for name, parameter in model.named_parameters() if not _sound(parameter)]
        if bad:
            raise ValueError(f"{len(bad)} parameters were not set or are not finite, such as {bad[0]}")
        proved.append(type(model).__name__)

    DefaultModelLoader.load_weights = load_weights
    try:
        yield proved
    finally:
        DefaultModelLoader.load_weights = stock


def _adapters_of(worker: Any) -> Iterator[Any]:
    """Everything that the worker keeps of adapters outside of its runner, and what the runner has of them."""
    state = worker.__dict__.get("_roundhouse_swaps")
    if state is not None:
        yield from (state.staging, state.placing)
    if worker.vllm_config.lora_config is not None:
        manager = worker.model_runner.lora_manager._adapter_manager
        yield from (len(manager._registered_adapters), len(manager._active_adapters))
        yield any(held is not None for held in manager.lora_index_to_id)


def _take_apart(worker: Any) -> dict[str, weakref.ref[Any]]:
    """Leave nothing of the worker's model runner. Returns a weak reference to each piece that computes, by its name.

    Emptied by hand: a search for cycles in all that vLLM has made takes longer than the load of a small model.
    """
    from vllm.model_executor.layers import rotary_embedding

    runner = worker.model_runner
    traces: dict[str, weakref.ref[Any]] = {"its runner": weakref.ref(runner), "the model": weakref.ref(runner.model)}
    for name, tensor in (*_weights(runner.model), *_places(runner.model)):
        traces[name] = weakref.ref(tensor)
        _poison(tensor)
    for number, tensor in enumerate(runner.kv_caches):
        traces[f"KV cache {number}"] = weakref.ref(tensor)
    for name, module in runner.model.named_modules():
        for attribute, value in vars(module).items():
            if callable(value) and getattr(value, "__closure__", None):  # packed weights live in closures on the CPU
                traces[f"{name}.{attribute}"] = weakref.ref(value)
    worker.vllm_config.compilation_config.static_forward_context.clear()
    rotary_embedding._ROPE_DICT.clear()  # shared by all models of a process: made anew with the next one
    for module in list(runner.model.modules()):
        vars(module).clear()
    if worker.vllm_config.lora_config is not None:
        manager = runner.lora_manager._adapter_manager
        for part in (*manager.punica_wrapper_mapping.values(), manager, runner.lora_manager):
            vars(part).clear()
    vars(runner).clear()
    worker.model_runner = None
    return traces


def _weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _places(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for name, module in model.named_modules():
        for halves in ("lora_a_stacked", "lora_b_stacked"):
            for number, tensor in enumerate(getattr(module, halves, None) or ()):
                yield f"{name}.{halves}.{number}", tensor


def _alive(traces: dict[str, weakref.ref[Any]]) -> list[str]:
    if any(trace() is not None for trace in traces.values()):
        gc.collect()
    return [name for name, trace in traces.items() if trace() is not None]


def _poison(tensor: torch.Tensor) -> None:
    if tensor.is_floating_point():
        tensor.data.fill_(float("nan"))


def _sound(tensor: torch.Tensor) -> bool:
    """No value is infinite or NaN. By their sum, which no such value can leave again; one that overflows is looked
    into."""
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor.sum()) or torch.isfinite(tensor).all())


def patch(core: Any) -> None:
    """Add the call to `EngineCore`."""
    core.swap_model = swap_model
