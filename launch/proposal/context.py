"""How long a chat model's context can be, by its config; the rules are vLLM's (`_get_and_verify_max_len`), but for one:
of "dynamic" it has positions only up to max_position_embeddings, and reads what lies behind them for all others.

| kind of stretching                               | longest context                  |
|--------------------------------------------------|----------------------------------|
| none, longrope, su, llama3, mrope, yarn, dynamic | max_position_embeddings          |
| any, of a Gemma 3                                | the same                         |
| others (linear)                                  | max_position_embeddings x factor |
"""

from collections.abc import Mapping
from typing import Any

from registry.errors import Unfit
from registry.files.shape import text_config
from registry.recipes.fields import Flag

AS_IT_IS = frozenset(
    ("default", "longrope", "su", "llama3", "mrope", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "dynamic", "")
)
"""Where the positions of the config are those after the stretching, or there is none."""
KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len", "n_ctx",
)  # fmt: skip
"""The smallest one counts."""
WHOLE = "model_max_length"
"""Counts in place of them all: Command R's, whose positions are fewer."""


def longest_context(config: Mapping[str, Any]) -> int | None:
    """Tokens; None: the config does not tell."""
    inner = text_config(config)
    keys = (WHOLE,) if inner.get(WHOLE) else KEYS
    lengths = [int(inner[key]) for key in keys if isinstance(inner.get(key), int)]
    if not lengths:
        return None
    longest = min(lengths)
    rope = inner.get("rope_parameters") or inner.get("rope_scaling")
    if not isinstance(rope, dict):
        return longest
    if all(isinstance(value, dict) for value in rope.values()):  # one for each kind of layer
        return longest
    kind = str(rope.get("rope_type") or rope.get("type") or "")
    factor = rope.get("factor")
    if kind in AS_IT_IS or "gemma3" in str(inner.get("model_type")) or not isinstance(factor, int | float):
        return longest
    return int(longest * factor)


def unstretched(config: Mapping[str, Any]) -> int | None:
    """Tokens up to which a model that switches between two kinds of positions (longrope: Phi-3, Phi-4-mini) has those
    of short texts. vLLM chooses one kind for all texts, by the context that it is given; None: there is one kind."""
    inner = text_config(config)
    rope = inner.get("rope_parameters") or inner.get("rope_scaling")
    if not isinstance(rope, dict) or str(rope.get("rope_type") or rope.get("type")) not in ("longrope", "su"):
        return None
    original = inner.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
    return original if isinstance(original, int) and original > 0 else None


def check_context(requested: object, longest: int | None, flags: Mapping[str, Flag]) -> None:
    """Raises Unfit for more tokens than the model was made for. Where `flags` stretch it vLLM tells, at the load."""
    if {"hf_overrides", "hf-overrides"} & flags.keys():
        return
    if isinstance(requested, int) and longest is not None and requested > longest:
        raise Unfit(
            f"context_length is {requested:,}, but the model was made for {longest:,} tokens. "
            "Ask for less, or for a model "
            "with a longer context; its card may tell how to stretch it (engine.flags.hf_overrides).",
            code="context_too_long",
            param="context_length",
        )
