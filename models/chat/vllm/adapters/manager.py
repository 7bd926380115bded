"""Make vLLM's LoRA bookkeeping cheap per step and unable to load anything by itself.

In stock vLLM, `add_adapter` runs for every adapter of every step, builds a set of all cached adapters each time, and
reads unknown adapters from their paths on the engine's loop, where a missing file kills the engine. Here only
`StagedAdapters` puts adapters into places.
"""

from __future__ import annotations

from typing import Any

from models.chat.vllm.cpu import punica

FOLDED = {"kv_b_proj"}
"""Layers of DeepSeek's attention (MLA) whose weights vLLM folds into others at the load. The adapter would apply only
to the prompt's tokens, not to generated ones."""


class NotPlaced(RuntimeError):
    """Raised if a step names an adapter that is in no device place. `core` refuses such requests before that."""


def _add_adapter(self: Any, lora_request: Any) -> bool:
    manager = self._adapter_manager
    adapter_id = lora_request.lora_int_id
    if adapter_id in manager.lora_index_to_id:
        return True
    if None in manager.lora_index_to_id and manager.get_adapter(adapter_id) is not None:
        return bool(manager.activate_adapter(adapter_id))  # vLLM's dummy adapters, in memory profiling only
    raise NotPlaced(f"adapter {adapter_id} is in no device place")


def patch(worker_manager: Any, model_manager_module: Any) -> None:
    """worker_manager: LRUCacheWorkerLoRAManager. model_manager_module: vllm.lora.model_manager."""
    stock_supported = model_manager_module.get_supported_lora_modules

    def supported_lora_modules(model: Any) -> list[str]:
        """Return the linear layers by all of their names, without the embedding, the head, experts and `FOLDED`.

        vLLM knows each only by its first name. Qwen2-MoE's `shared_expert_gate` is called as `expert_gate`, and under
        that name the base's weights would be used.
        """
        from vllm.model_executor.layers.linear import LinearBase

        modules = list(model.named_modules(remove_duplicate=False))
        linear = {name.rpartition(".")[2] for name, module in modules if isinstance(module, LinearBase)}
        embedding = {name for _, module in modules for name in getattr(module, "embedding_modules", None) or ()}
        return sorted(linear.union(stock_supported(model)) - embedding - punica.expert_layers(model) - FOLDED)

    model_manager_module.get_supported_lora_modules = supported_lora_modules
    worker_manager.add_adapter = _add_adapter
