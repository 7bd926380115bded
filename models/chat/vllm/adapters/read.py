"""Reading a stored adapter into vLLM's packed form, and every reason why it does not fit the model's layers."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from models.chat.vllm.adapters import file

FILES = ("adapter_config.json", "adapter_model.safetensors")


def tensors(weights: Any) -> list[tuple[torch.Tensor | None, torch.Tensor | None]]:
    """A and B of each part of a layer, as vLLM packed them."""
    if isinstance(weights.lora_a, list):
        return list(zip(weights.lora_a, weights.lora_b, strict=True))
    return [(weights.lora_a, weights.lora_b)]


def size(lora: Any) -> tuple[int, int]:
    """Bytes of an adapter that `read_adapter` gave, and its highest rank."""
    pairs = [pair for weights in lora.loras.values() for pair in tensors(weights)]
    nbytes = sum(half.nbytes for pair in pairs for half in pair if half is not None)
    return nbytes, max(a.shape[0] for a, _ in pairs if a is not None)


def finite(values: torch.Tensor) -> bool:
    """Whether no value is infinite or NaN. By their sum, which no such value can leave again: an eighth of the time
    that looking at each takes, and 0.1 s for 45 MB. A sum that overflows is looked into."""
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def faults_of(loras: dict[str, Any], modules: dict[str, Any], max_rank: int, workers: int = 1) -> list[str]:
    """Every reason why packed weights do not fit the layers they name: [] when they fit.

    Args:
        loras: module name -> packed weights with `lora_a` (rank, in) and `lora_b` (out, rank), or lists of them.
        modules: module name -> LoRA layer with `lora_a_stacked` (places, 1, rank, in), `lora_b_stacked`.
        max_rank: rows of A that a place has.
        workers: tensor-parallel size; above 1 the layers hold a part of `out`, so that width is not compared.
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
                expected = (place_b.shape[-2], place_a.shape[-1])
                faults.append(f"{name}: made for {(b.shape[0], a.shape[1])} where the layer is {expected}")
            elif not (finite(a) and finite(b)):
                faults.append(f"{name}: values that are not finite")
    return faults


def part(loras: dict[str, Any], modules: dict[str, Any]) -> None:
    """Part what is one pair in the file and several parts in the layer (Mamba-2's `in_proj`), as vLLM's layer would
    when it is put in: all of A for each, and the rows of B that are its own. With one worker: else the layer has a part
    of the rows."""
    for name, weights in loras.items():
        layer = modules.get(name)
        if layer is None or isinstance(weights.lora_a, list) or getattr(layer, "tp_size", 1) > 1:
            continue
        rows = [place.shape[-2] for place in layer.lora_b_stacked]
        if len(rows) > 1 and weights.lora_b.shape[0] == sum(rows):
            weights.lora_a, weights.lora_b = [weights.lora_a] * len(rows), list(weights.lora_b.split(rows))


def whole_too(manager: Any) -> None:
    """Have vLLM read a layer of several parts also by its own name, for `part`: GLM-4's files, and so adapters, have
    `gate_up_proj` in one piece, of which vLLM knows the parts' names alone."""
    known = manager.packed_modules_mapping
    manager.packed_modules_mapping = {name: [*parts, name] for name, parts in known.items()}


def read_adapter(worker_manager: Any, adapter_id: int, path: str) -> Any:
    """Read a folder into vLLM's packed form, in memory of its own (see `file`).

    Raises ValueError with every fault, one a line.
    """
    from vllm.lora.request import LoRARequest

    for name in FILES:
        if not (Path(path) / name).is_file():
            raise ValueError(f"{name} is not there")
    manager = worker_manager._adapter_manager
    on_gpu = manager.device.type == "cuda"
    with file.for_gpu(manager.lora_config.lora_dtype) if on_gpu else nullcontext():
        lora = worker_manager._load_adapter(LoRARequest(str(adapter_id), adapter_id, path))
    for name, weights in lora.loras.items():
        if weights.lora_a is None or weights.lora_b is None:
            raise ValueError(f"{name}: one half of the pair is missing")
    if not lora.loras:
        raise ValueError("the adapter has no weights")
    manager._create_merged_loras_inplace(lora)
    part(lora.loras, manager.modules)
    workers = max((getattr(module, "tp_size", 1) for module in manager.modules.values()), default=1)
    if faults := faults_of(lora.loras, manager.modules, manager.lora_config.max_lora_rank, workers):
        raise ValueError("\n".join(faults))
    return lora
