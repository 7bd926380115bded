"""vLLM's own loading and merging of adapters around a handful of layers, without a model."""

from types import SimpleNamespace
from typing import Any

import torch

from adapters import cpu_kernel

WIDTHS = {"q_proj": 24, "k_proj": 8, "v_proj": 8, "o_proj": 16, "gate_proj": 40, "up_proj": 40, "down_proj": 16}
INPUTS = {"down_proj": 40, "o_proj": 24}
PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
INPUT, LAYERS, PLACES = 16, 2, 3


def names() -> list[str]:
    """Modules as adapters name them."""
    return [f"model.layers.{layer}.{short}" for layer in range(LAYERS) for short in WIDTHS]


def shapes(name: str, rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of A and B."""
    short = name.rpartition(".")[2]
    return (rank, INPUTS.get(short, INPUT)), (WIDTHS[short], rank)


def worker_manager(max_rank: int, dtype: torch.dtype = torch.bfloat16) -> Any:
    """vLLM's LRUCacheWorkerLoRAManager with its LoRAModelManager, both without what a model would have made."""
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.model_manager import LoRAModelManager
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

    manager: Any = LoRAModelManager.__new__(LoRAModelManager)
    groups = [[short] for short in ("o_proj", "down_proj")] + list(PACKED.values())
    packed = {tuple(parts): name for name, parts in PACKED.items()}
    manager.modules, manager.packed_modules = {}, {}
    for layer in range(LAYERS):
        for parts in groups:
            short = packed.get(tuple(parts), parts[0])
            name = f"model.layers.{layer}.{short}"
            manager.modules[name] = _layer(parts, max_rank, dtype)
            if len(parts) > 1:
                manager.packed_modules[name] = [f"model.layers.{layer}.{part}" for part in parts]
    manager.supported_lora_modules, manager.packed_modules_mapping = ["o_proj", "down_proj", *PACKED], PACKED
    manager.lora_config = SimpleNamespace(max_lora_rank=max_rank, lora_dtype=dtype, fully_sharded_loras=False)
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


def _layer(parts: list[str], max_rank: int, dtype: torch.dtype) -> Any:
    pairs = [shapes(part, max_rank) for part in parts]
    a = tuple(torch.zeros(PLACES, 1, *shape, dtype=dtype) for shape, _ in pairs)
    b = tuple(cpu_kernel.turned(torch.zeros(PLACES, 1, *shape, dtype=dtype)) for _, shape in pairs)
    slices = tuple(shape[0] for _, shape in pairs)
    return SimpleNamespace(lora_a_stacked=a, lora_b_stacked=b, output_slices=slices, tp_size=1)
