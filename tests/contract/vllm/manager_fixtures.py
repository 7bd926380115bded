"""vLLM's own loading and merging of adapters, with a few layers and no model."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file

from models.chat.vllm.adapters.read import FILES
from models.chat.vllm.cpu.products import turned
from models.chat.vllm.cpu.punica import CpuLora

WIDTHS = {"q_proj": 24, "k_proj": 8, "v_proj": 8, "o_proj": 16, "gate_proj": 40, "up_proj": 40, "down_proj": 16}
INPUTS = {"down_proj": 40, "o_proj": 24}
PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
INPUT, LAYERS, PLACES, HOST = 16, 2, 3, 4


def names() -> list[str]:
    """Return the modules' names in adapters."""
    return [f"model.layers.{layer}.{short}" for layer in range(LAYERS) for short in WIDTHS]


def shapes(name: str, rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the shapes of A and B."""
    short = name.rpartition(".")[2]
    return (rank, INPUTS.get(short, INPUT)), (WIDTHS[short], rank)


def worker_manager(max_rank: int, dtype: torch.dtype = torch.bfloat16) -> Any:
    """Return vLLM's LRUCacheWorkerLoRAManager with its LoRAModelManager, without what a model would make."""
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.model_manager import AdapterLRUCache, LRUCacheLoRAModelManager
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

    manager: Any = LRUCacheLoRAModelManager.__new__(LRUCacheLoRAModelManager)
    manager.punica_wrapper_mapping = {"language_model": CpuLora(64, 64, "cpu")}
    groups = [[short] for short in ("o_proj", "down_proj")] + list(PACKED.values())
    packed = {tuple(parts): name for name, parts in PACKED.items()}
    manager.modules, manager.packed_modules = {}, {}
    for layer in range(LAYERS):
        for parts in groups:
            short = packed.get(tuple(parts), parts[0])
            name = f"model.layers.{layer}.{short}"
            manager.modules[name] = _layer(parts, max_rank, dtype, manager.punica_wrapper_mapping["language_model"])
            if len(parts) > 1:
                manager.packed_modules[name] = [f"model.layers.{layer}.{part}" for part in parts]
    manager.supported_lora_modules, manager.packed_modules_mapping = ["o_proj", "down_proj", *PACKED], PACKED
    manager.lora_config = SimpleNamespace(
        max_lora_rank=max_rank, lora_dtype=dtype, fully_sharded_loras=False, max_loras=PLACES, max_cpu_loras=HOST
    )
    manager._registered_adapters = AdapterLRUCache(HOST, manager.deactivate_adapter)
    manager._active_adapters = AdapterLRUCache(PLACES, manager._deactivate_adapter)
    manager.lora_index_to_id = [None] * PLACES
    manager.is_pooling_model = manager._is_non_gated_moe = manager._enable_moe_shared_loras = False
    manager._enable_mixed_moe_lora_format = False
    manager._classification_head = manager._pooling_task = None
    manager.model = SimpleNamespace(hf_to_vllm_mapper=None)
    manager.device = torch.device("cpu")
    manager.moe_ep_load_spec = None
    worker: Any = LRUCacheWorkerLoRAManager.__new__(LRUCacheWorkerLoRAManager)
    worker._adapter_manager, worker._lora_model_cls, worker.lora_config = manager, LoRAModel, manager.lora_config
    worker.vocab_size, worker.max_position_embeddings = 100, 64
    return worker


class Layer(SimpleNamespace):
    """The part of vLLM's LoRA layers that holds adapters. `set_lora` and `reset_lora` are vLLM's."""

    def reset_lora(self, index: int) -> None:
        from vllm.lora.layers import MergedColumnParallelLinearWithLoRA

        MergedColumnParallelLinearWithLoRA.reset_lora(self, index)

    def set_lora(self, index: int, a: Any, b: Any) -> None:
        from vllm.lora.layers import MergedColumnParallelLinearWithLoRA

        halves = [half if isinstance(half, list) else [half] for half in (a, b)]
        MergedColumnParallelLinearWithLoRA.set_lora(self, index, *halves)


def _layer(parts: list[str], max_rank: int, dtype: torch.dtype, punica: Any) -> Layer:
    pairs = [shapes(part, max_rank) for part in parts]
    a = tuple(torch.zeros(PLACES, 1, *shape, dtype=dtype) for shape, _ in pairs)
    b = tuple(turned(torch.zeros(PLACES, 1, *shape, dtype=dtype)) for _, shape in pairs)
    slices = tuple(shape[0] for _, shape in pairs)
    return Layer(
        lora_a_stacked=a, lora_b_stacked=b, output_slices=slices, n_slices=len(parts), tp_size=1, punica_wrapper=punica
    )


def write_adapter(folder: Path, ranks: dict[str, int], seed: int, dtype: torch.dtype, **config: Any) -> Path:
    """Write a random adapter in peft's layout. `ranks`: of each of its modules."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        f"{name}.lora_{half}": torch.randn(shape, generator=generator).to(dtype)
        for name, rank in ranks.items()
        for half, shape in zip("AB", shapes(name, rank), strict=True)
    }
    settings = {"r": 8, "lora_alpha": 8, "rank_pattern": ranks, "alpha_pattern": ranks} | config
    return write_tensors(folder, tensors, **settings)


def write_tensors(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    """Write an adapter of these tensors in peft's layout."""
    folder.mkdir(exist_ok=True)
    save_file({f"base_model.model.{name}.weight": t for name, t in tensors.items()}, folder / FILES[1])
    targets = sorted({name.split(".")[-2] for name in tensors})
    settings = {"peft_type": "LORA", "bias": "none", "target_modules": targets} | config
    (folder / FILES[0]).write_text(json.dumps(settings))
    return folder
