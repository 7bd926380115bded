"""Reading a stored adapter into vLLM's packed form, and every reason why it does not fit the model's layers."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from adapters.staged_file import StagedFile, instead_of_safetensors
from adapters.staged_memory import StagedMemory
from adapters.vllm_forms import Forms, tensors

FILES = ("adapter_config.json", "adapter_model.safetensors")


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
        pairs = tensors(weights)
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


def read_adapter(
    worker_manager: Any, adapter_id: int, path: str, memory: StagedMemory, forms: Forms | None = None
) -> Any:
    """Read a folder into vLLM's packed form, in memory of its own (on a CPU: a piece of `memory`, B turned round).

    `forms`: what is known of earlier ones, and is added to.

    Raises ValueError with every fault, one a line.
    """
    from vllm.lora.request import LoRARequest

    config, file_path = (Path(path) / name for name in FILES)
    manager = worker_manager._adapter_manager
    on_cpu = manager.device.type == "cpu"
    if on_cpu and forms is not None and (lora := forms.read(adapter_id, config, file_path, memory)) is not None:
        return lora
    for found in (config, file_path):
        if not found.is_file():
            raise ValueError(f"{found.name} is not there")
    request, known = LoRARequest(str(adapter_id), adapter_id, path), set[int]()
    file, text = None, config.read_bytes()
    if on_cpu:
        file = StagedFile(str(file_path), memory)
        with instead_of_safetensors(file):
            lora = worker_manager._load_adapter(request)
        known = file.finite
    else:
        lora = worker_manager._load_adapter(request)
    for name, weights in lora.loras.items():
        if weights.lora_a is None or weights.lora_b is None:
            raise ValueError(f"{name}: one half of the pair is missing")
        if not on_cpu:
            # safetensors hands out views of the mapped file: a file cut short later would end the engine with SIGBUS
            weights.lora_a, weights.lora_b = weights.lora_a.clone(), weights.lora_b.clone()
        elif weights.scaling != 1:
            known.discard(weights.lora_b.data_ptr())  # is multiplied in place when modules are merged
    if not lora.loras:
        raise ValueError("the adapter has no weights")
    unscaled = all(weights.scaling == 1 for weights in lora.loras.values())
    manager._create_merged_loras_inplace(lora)
    workers = max((getattr(module, "tp_size", 1) for module in manager.modules.values()), default=1)
    if faults := faults_of(lora.loras, manager.modules, manager.lora_config.max_lora_rank, workers, known):
        raise ValueError("\n".join(faults))
    if file is not None and forms is not None and unscaled and config.read_bytes() == text:
        forms.learn(text, file, lora)
    return lora


def patch(peft_helper: Any) -> None:
    """`peft_helper`: vllm.lora.peft_helper.PEFTHelper. Stored adapters name modules in full where a rank is not the
    adapter's own (`normalise`). vLLM tries each such name as a regular expression on each module: for the 224 modules
    of an 8B model 0.2 s of Python, for whose lock a step waits meanwhile."""
    peft_helper._match_pattern = staticmethod(by_name)


def by_name(pattern: dict[str, Any], name: str) -> Any:
    """What the pattern says of a module; None: nothing."""
    return pattern.get(name)
