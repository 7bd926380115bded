"""Experts of a model with adapter places on a CPU: computed as without places.

No adapter of experts is taken (`adapters.content.names`). vLLM would make room for them, and compute all experts by
Triton, which a CPU has not: no such model could be loaded.
"""

from __future__ import annotations

from typing import Any


def names(model: Any) -> set[str]:
    """Last parts of the names of `model`'s layers of experts, none on a GPU: vLLM's LoRA leaves them alone."""
    from vllm.model_executor.layers.fused_moe import MoERunner
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return set()
    return {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, MoERunner)}


def register() -> None:
    """By vLLM's own door for operations of others."""
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    @UnquantizedFusedMoEMethod.register_oot
    class WithoutAdapters(UnquantizedFusedMoEMethod):  # type: ignore[misc]
        def __init__(self, moe: Any) -> None:
            moe.is_lora_enabled = False
            super().__init__(moe)
