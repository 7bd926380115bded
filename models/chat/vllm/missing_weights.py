"""Refuse a model whose files lack weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

WEIGHTS = ("weight", "w13_weight", "w2_weight", "bias")
"""Weights that are uninitialised memory at first, in layers that are not quantized."""
FEW = 5


def patch(loader: Any) -> None:
    """Refuse a model whose files lack weights. loader: vLLM's DefaultModelLoader.

    vLLM 0.32 does not notice missing weights of linear layers, embeddings and experts: it exempts them from its own
    check (`track_weights_loading`), and they compute with what was in memory. So one value of each row is set to NaN
    before the files are read, and none may be left afterwards. That works whatever names vLLM's mappers know.
    """
    own = loader.load_weights

    def load_weights(self: Any, model: Any, model_config: Any) -> None:
        marked = dict(_fillable(model))
        for rows in marked.values():
            rows.fill_(float("nan"))
        own(self, model, model_config)
        _refuse_unfilled({name for name, rows in marked.items() if rows.isnan().any()}, type(model).__name__)

    loader.load_weights = load_weights


def _fillable(model: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over the first column of each matrix that the files must fill, or a bias, by name; tied ones once."""
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    plain = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod, UnquantizedFusedMoEMethod)
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        if not isinstance(getattr(module, "quant_method", None), plain):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if name not in WEIGHTS or id(parameter) in seen or parameter.is_meta or not parameter.is_floating_point():
                continue
            if parameter.element_size() < 2 or not parameter.numel():
                continue
            seen.add(id(parameter))
            yield f"{prefix}.{name}", parameter.data.select(-1, 0) if parameter.dim() > 1 else parameter.data


def _refuse_unfilled(names: set[str], network: str) -> None:
    """Raise ValueError for missing weights, which ends the load with its message."""
    if names:
        few = ", ".join(sorted(names)[:FEW]) + (", ..." if len(names) > FEW else "")
        hint = ""
        if any("lm_head" in name for name in names):
            hint = ' If its output is tied to its embeddings, config.json must say "tie_word_embeddings": true.'
        raise ValueError(
            f"the files lack {len(names)} of the weights of a {network}, or hold NaN there: {few}. Without them the "
            "model would answer at random. The weights were saved under other names, or config.json belongs to another "
            f"model.{hint}"
        )
