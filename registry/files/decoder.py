"""The linear layers that a decoder has by its config.json, where its family is one of the plain ones."""

from collections.abc import Mapping
from typing import Any

# Checked against transformers' own models in tests/unit/adapters/test_base_shapes.py.
LLAMA_LIKE = {
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "smollm3", "granite",
    "stablelm", "cohere", "cohere2", "olmo", "olmo2", "starcoder2", "phi", "phi3", "glm", "glm4", "exaone4",
    "seed_oss",
}  # fmt: skip
_OWN_HEADS = frozenset({"qwen3", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "seed_oss"})
"""Where config.json is without it, head_dim is a number of the family's own."""


def linear_layers(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Module name to (out, in), of all layers. Empty and raises: as `one_layer`."""
    layer = one_layer(config)
    layers = range(int(config["num_hidden_layers"])) if layer else ()
    return {f"model.layers.{number}.{name}": shape for number in layers for name, shape in layer.items()}


def is_explicit(config: Mapping[str, Any]) -> bool:
    """Whether nothing that `one_layer` needs is left to the family's defaults."""
    kind = config.get("model_type")
    return ("head_dim" in config or kind not in _OWN_HEADS) and ("num_key_value_heads" in config or kind == "llama")


def one_layer(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Module name within a layer to (out, in), of the families whose layers are laid out like Llama's, Phi-3's (fused)
    or Phi-2's. Empty: of another family. Raises what reading odd values raises (KeyError, TypeError, ValueError, ...).
    """
    kind = config["model_type"]
    if kind not in LLAMA_LIKE:
        return {}
    hidden, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    heads = int(config["num_attention_heads"])
    size = int(config.get("head_dim") or hidden // heads)
    queries, keys = heads * size, int(config.get("num_key_value_heads") or heads) * size
    fused = {"self_attn.qkv_proj": (queries + 2 * keys, hidden), "mlp.gate_up_proj": (2 * inner, hidden)}
    split = {"self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden),
             "self_attn.v_proj": (keys, hidden)}  # fmt: skip
    output, down = {"self_attn.o_proj": (hidden, queries)}, {"mlp.down_proj": (hidden, inner)}
    gate_up = {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden)}
    if kind == "phi3":
        return {**fused, **output, **down}
    if kind == "phi":
        return {**split, "self_attn.dense": (hidden, queries), "mlp.fc1": (inner, hidden), "mlp.fc2": (hidden, inner)}
    if kind == "starcoder2":
        return {**split, **output, "mlp.c_fc": (inner, hidden), "mlp.c_proj": (hidden, inner)}
    if kind in ("glm", "glm4"):
        return {**split, **output, "mlp.gate_up_proj": (2 * inner, hidden), **down}
    return {**split, **output, **gate_up, **down}
