"""Refuse a model whose files lack weights.

vLLM 0.32 does not miss the weights of a linear layer, an embedding or an expert: it exempts them all from its own check
(`track_weights_loading`), and they answer with what was in memory. So each row of those begins as NaN before the files
are read, and none may be left afterwards. That takes one value a row, whatever names the model's own mapping knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

NAMES = ("weight", "w13_weight", "w2_weight", "bias")
"""Weights that begin as uninitialised memory in layers that are not quantized."""
FEW = 5


def patch(loader: Any) -> None:
    """Args: loader: vLLM's DefaultModelLoader."""
    own = loader.load_weights

    def load_weights(self: Any, model: Any, model_config: Any) -> None:
        marked = dict(_fillable(model))
        for rows in marked.values():
            rows.fill_(float("nan"))
        own(self, model, model_config)
        refuse_unfilled({name for name, rows in marked.items() if rows.isnan().any()}, type(model).__name__)

    loader.load_weights = load_weights


def _fillable(model: Any) -> Iterator[tuple[str, Any]]:
    """The first column of each matrix that the files must fill, or a bias, by its name; tied ones once."""
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    plain = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod, UnquantizedFusedMoEMethod)
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        if not isinstance(getattr(module, "quant_method", None), plain):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if name not in NAMES or id(parameter) in seen or parameter.is_meta or not parameter.is_floating_point():
                continue
            if parameter.element_size() < 2 or not parameter.numel():
                continue
            seen.add(id(parameter))
            yield f"{prefix}.{name}", parameter.data.select(-1, 0) if parameter.dim() > 1 else parameter.data


def refuse_unfilled(names: set[str], network: str) -> None:
    """Raises ValueError, which ends the load with these words."""
    if names:
        few = ", ".join(sorted(names)[:FEW]) + (", ..." if len(names) > FEW else "")
        hint = ""
        if any("lm_head" in name for name in names):
            hint = ' If its output is tied to its embeddings, config.json must say "tie_word_embeddings": true.'
        raise ValueError(
            f"the files lack {len(names)} of the weights of a {network}, or hold NaN there: {few}. They would be made "
            f"by chance: the weights were saved under other names, or config.json is another model's.{hint}"
        )
