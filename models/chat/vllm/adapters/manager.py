"""vLLM's LoRA bookkeeping, made cheap per step and unable to load anything by itself.

Stock, `add_adapter` runs for every adapter of every step, builds a set of all cached adapters each time, and reads an
adapter it does not know from its path on the engine's loop, where a missing file kills the engine. Here an adapter is
in a place or it is not: `StagedAdapters` puts it there, and nothing else does.
"""

from __future__ import annotations

from typing import Any

from models.chat.vllm.cpu import punica

FOLDED = {"kv_b_proj"}
"""Layers of DeepSeek's attention (MLA) whose weights vLLM folds into others at the load: each token that is answered
would leave the adapter out, and only the prompt's would not."""


class NotPlaced(RuntimeError):
    """A step names an adapter that is in no device place: `core` refuses such requests before they get here."""


def _add_adapter(self: Any, lora_request: Any) -> bool:
    manager = self._adapter_manager
    adapter_id = lora_request.lora_int_id
    if adapter_id in manager.lora_index_to_id:
        return True
    if None in manager.lora_index_to_id and manager.get_adapter(adapter_id) is not None:
        return bool(manager.activate_adapter(adapter_id))  # vLLM's dummy adapters, in memory profiling only
    raise NotPlaced(f"adapter {adapter_id} is in no device place")


def patch(worker_manager: Any, model_manager_module: Any) -> None:
    """`worker_manager`: LRUCacheWorkerLoRAManager; `model_manager_module`: vllm.lora.model_manager."""
    stock_supported = model_manager_module.get_supported_lora_modules

    def supported_lora_modules(model: Any) -> list[str]:
        """Linear layers by all of their names, where vLLM knows each by its first: Qwen2-MoE's `shared_expert_gate` is
        asked as `expert_gate`, and under that name it would stay the base's. Without the embedding, the head, experts,
        and `FOLDED`.
        """
        from vllm.model_executor.layers.linear import LinearBase

        modules = list(model.named_modules(remove_duplicate=False))
        linear = {name.rpartition(".")[2] for name, module in modules if isinstance(module, LinearBase)}
        embedding = {name for _, module in modules for name in getattr(module, "embedding_modules", None) or ()}
        return sorted(linear.union(stock_supported(model)) - embedding - punica.expert_layers(model) - FOLDED)

    model_manager_module.get_supported_lora_modules = supported_lora_modules
    worker_manager.add_adapter = _add_adapter
