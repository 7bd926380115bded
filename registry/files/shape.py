"""Sizes of a network, from its config.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.base.json import read_object
from registry.errors import Unfit

QUANTIZATION = "hf_quant_config.json"
"""File in which ModelOpt before 0.31 describes how weights are quantized; newer ones do so in config.json."""
DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "dim", "d_model"), "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "intermediate_size": ("n_inner", "hidden_dim", "d_ff", "ffn_hidden_size"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "multi_query_group_num", "num_attention_groups"),
    "head_dim": ("kv_channels", "attention_head_dim", "d_kv"), "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": ("n_positions", "model_max_length", "max_seq_len", "seq_length"),
}  # fmt: skip
"""Keys of config.json and their synonyms in GPT-2, DistilBERT, T5, Falcon, ChatGLM, DBRX and others."""
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Keys for the number of experts."""
LISTS = ("layers_block_type", "layer_types", "hybrid_override_pattern")
"""Keys that list the kind of each layer. Nemotron-H gives its number of layers only by their length."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a transformer, from its config.json."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    """Longest input, in tokens, that the model was trained for."""
    latent: int = 0
    """Values per token and layer if keys and values are cached as one latent vector (DeepSeek's MLA); else 0."""
    state: int = 0
    """Values per request and layer if each layer has a state in addition to attention (Falcon-H1); else 0."""
    experts: int = 0
    """Experts in each layer of a mixture; 0 for dense models."""

    @property
    def kv_values_per_token(self) -> int:
        """Values that the KV cache keeps per token: layers x 2 x kv heads x head size.

        An upper bound: sliding windows and layers without attention are not subtracted.
        """
        return self.layers * (self.latent or 2 * self.kv_heads * self.head_size)

    @property
    def linear(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of all linear layers of a Llama-like model: q, k, v, o, gate, up, down per layer."""
        query, key = self.heads * self.head_size, self.kv_heads * self.head_size
        layer = [(self.hidden, query), (self.hidden, key), (self.hidden, key), (query, self.hidden)]
        layer += [(self.hidden, self.feed_forward)] * 2 + [(self.feed_forward, self.hidden)]
        return tuple(layer * self.layers)


def read_shape(folder: Path) -> Shape:
    """Read `folder`/config.json. Raises Unfit if it is missing or lacks a size."""
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Unfit(f"{file} cannot be read: {error.strerror}", code="bad_config") from None
    except (ValueError, RecursionError) as error:
        raise Unfit(f"{file} is not a model's config: {error}", code="bad_config") from None
    return shape_of(config, str(file))


def shape_of(config: Mapping[str, Any], file: str = "config.json") -> Shape:
    """Return the sizes in a config. Raises Unfit if one is missing."""
    try:
        config = _with_standard_names(text_config(config))
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        return Shape(
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            feed_forward=_widest(config.get("intermediate_size")) or 4 * hidden,
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_size=int(config.get("head_dim") or hidden // heads),
            vocabulary=int(config["vocab_size"]),
            context=int(config.get("max_position_embeddings") or 4096),
            latent=int(config.get("kv_lora_rank") or 0) + int(config.get("qk_rope_head_dim") or 0)
            if config.get("kv_lora_rank")
            else 0,
            state=int(config["mamba_n_heads"]) * int(config["mamba_d_head"]) * int(config["mamba_d_state"])
            if config.get("model_type") == "falcon_h1"
            else 0,
            experts=max(int(config.get(name) or 0) for name in EXPERTS),
        )
    except KeyError as error:
        raise Unfit(f"{file} does not give {error.args[0]}", code="bad_config") from None
    except (ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise Unfit(f"{file} is not a model's config: {error}", code="bad_config") from None


def _with_standard_names(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config with standard keys, and with values as vLLM reads them."""
    sizes = dict(config)
    for name, others in SYNONYMS.items():
        if sizes.get(name) is None and (values := [config[other] for other in others if config.get(other) is not None]):
            sizes[name] = values[0]
    if "num_hidden_layers" not in sizes and (kinds := [config[name] for name in LISTS if config.get(name)]):
        sizes["num_hidden_layers"] = len(kinds[0])
    match config.get("model_type"):
        case "falcon" if config.get("multi_query", True) and not config.get("new_decoder_architecture"):
            sizes["num_key_value_heads"] = 1
        case "dbrx":
            sizes["num_key_value_heads"] = config["attn_config"]["kv_n_heads"]
        case "longcat_flash":  # two attentions in each layer
            sizes["num_hidden_layers"] = 2 * sizes["num_hidden_layers"]
        case "minicpm3":  # vLLM caches its keys and values themselves, not their latent vector
            sizes["head_dim"] = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
            sizes["kv_lora_rank"] = None
    return sizes


def _widest(value: object) -> int:
    """Return the size, or the largest of a list: Gemma 3n gives one for each layer."""
    return max(map(int, value), default=0) if isinstance(value, list) else int(value or 0)  # type: ignore[call-overload]


# Checked against transformers' own models in tests/unit/adapters/test_base_shapes.py.
LLAMA_LIKE = {
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "smollm3", "granite",
    "stablelm", "cohere", "cohere2", "olmo", "olmo2", "starcoder2", "phi", "phi3", "glm", "glm4", "exaone4",
    "seed_oss",
}  # fmt: skip
_OWN_HEADS = frozenset({"qwen3", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "seed_oss"})
"""Families with a fixed default for head_dim."""


def linear_layers(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Map module names to (out, in) in all layers. Returns empty and raises as `one_layer` does."""
    layer = one_layer(config)
    layers = range(int(config["num_hidden_layers"])) if layer else ()
    return {f"model.layers.{number}.{name}": shape for number in layers for name, shape in layer.items()}


def is_explicit(config: Mapping[str, Any]) -> bool:
    """Return whether `one_layer` needs none of the family's defaults."""
    kind = config.get("model_type")
    return ("head_dim" in config or kind not in _OWN_HEADS) and ("num_key_value_heads" in config or kind == "llama")


def one_layer(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Map module names within a layer to (out, in); empty for unknown layouts.

    Known: those of Llama, Phi-3 (fused) and Phi-2. Raises KeyError, TypeError, ValueError, ... for invalid values.
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


FIELDS = (
    "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "max_position_embeddings",
)  # fmt: skip
DEFAULTS: Mapping[str, tuple[int | None, ...]] = {
    "llama": (4096, 32, 11008, 32, None, None, 32000, 2048),
    "mistral": (4096, 32, 14336, 32, 8, None, 32000, 131072),
    "qwen2": (4096, 32, 22016, 32, 32, None, 151936, 32768),
    "qwen3": (4096, 32, 22016, 32, 32, 128, 151936, 32768),
    "qwen3_moe": (2048, 24, 6144, 32, 4, None, 151936, 32768),
    "gemma": (3072, 28, 24576, 16, 16, 256, 256000, 8192),
    "gemma2": (2304, 26, 9216, 8, 4, 256, 256000, 8192),
    "gemma3_text": (2304, 26, 9216, 8, 4, 256, 262208, 131072),
    "gemma3n_text": (2048, 35, 16384, 8, 2, 256, 262400, 32768),
    "cohere2": (8192, 40, 22528, 64, None, None, 256000, 8192),
    "granite": (4096, 32, 11008, 32, None, None, 32000, 2048),
    "phi3": (3072, 32, 8192, 32, None, None, 32064, 4096),
    "exaone4": (4096, 32, 16384, 32, 32, None, 102400, 2048),
    "llama4_text": (5120, 48, 8192, 40, 8, 128, 202048, 131072),
    "mllama_text_model": (4096, 40, 14336, 32, 8, None, 128256, 131072),
    "qwen2_vl_text": (8192, 80, 29568, 64, 8, None, 152064, 32768),
    "qwen2_5_vl_text": (8192, 80, 29568, 64, 8, None, 152064, 32768),
    "qwen3_vl_text": (4096, 32, 22016, 32, 32, 128, 151936, 128000),
    "qwen3_vl_moe_text": (2048, 24, 5632, 16, 16, None, 151936, 128000),
    "qwen3_5_text": (4096, 32, 12288, 16, 4, 256, 248320, 32768),
    "qwen3_5_moe_text": (2048, 40, None, 16, 2, 256, 248320, 32768),
    "glm4v_text": (4096, 40, 13696, 32, 2, None, 151552, 32768),
    "glm4v_moe_text": (4096, 46, 10944, 96, 8, None, 151424, 65536),
    "aria_text": (4096, 32, 4096, 32, None, None, 32000, 2048),
}
"""Defaults of transformers 5 by `model_type`, in the order of FIELDS, checked by a test; None: computed or absent."""


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json, with the quantization from a file of its own; empty if unreadable."""
    return with_quantization(read_object(folder / "config.json"), read_object(folder / QUANTIZATION))


def with_quantization(config: dict[str, Any], separate: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json with the quantization that ModelOpt stores in a file of its own, as vLLM reads it."""
    quantization = separate.get("quantization")
    if "quantization_config" in config or not isinstance(quantization, dict):
        return config
    form = str(quantization.get("quant_algo") or "")
    method = "modelopt_fp4" if "FP4" in form else "modelopt"
    return {**config, "quantization_config": {**quantization, "quant_method": method, "format": form}}


def nested_configs(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the parts of config.json that may describe the language model, outermost first.

    In Qwen-Omni it is the thinker's. InternVL and DeepSeek-VL2 have their own keys for it.
    """
    nested = [config]
    for name in ("thinker_config", "llm_config", "language_config", "text_config"):
        if (inner := nested[-1].get(name)) and isinstance(inner, dict):
            nested.append(inner)
    return nested


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of config.json about the language model, or all of it."""
    nested = nested_configs(config)[-1]
    if nested is config:
        return config
    defaults = zip(FIELDS, DEFAULTS.get(str(nested.get("model_type")), ()), strict=False)
    return {**{name: value for name, value in defaults if value is not None}, **nested}
