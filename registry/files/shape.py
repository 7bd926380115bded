"""Sizes of a network, from its config.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.errors import Unfit
from registry.files.text_config import text_config

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "dim", "d_model"), "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "intermediate_size": ("n_inner", "hidden_dim", "d_ff", "ffn_hidden_size"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "multi_query_group_num", "num_attention_groups"),
    "head_dim": ("kv_channels", "attention_head_dim", "d_kv"), "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": ("n_positions", "model_max_length", "max_seq_len", "seq_length"),
}  # fmt: skip
"""Words of config.json and what others write in their place, such as GPT-2, DistilBERT, T5, Falcon, ChatGLM, DBRX."""
LISTS = ("layers_block_type", "layer_types", "hybrid_override_pattern")
"""Keys that list the kind of each layer; their length is the number of layers of a Nemotron-H."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a transformer, in the words of config.json."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    """Longest input in tokens that the model was made for."""
    latent: int = 0
    """Values per token and layer where keys and values are kept as one latent vector (DeepSeek's MLA); else 0."""
    state: int = 0
    """Values per request and layer where each layer has a state beside its attention (Falcon-H1); else 0."""

    @property
    def kv_values_per_token(self) -> int:
        """Values that the KV cache keeps per token: layers x 2 x kv heads x head size.

        Sliding windows and layers without attention are not taken off: it is the upper bound.
        """
        return self.layers * (self.latent or 2 * self.kv_heads * self.head_size)

    @property
    def linear(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of the linear layers of a Llama-like network: q, k, v, o, gate, up and down."""
        query, key = self.heads * self.head_size, self.kv_heads * self.head_size
        layer = [(self.hidden, query), (self.hidden, key), (self.hidden, key), (query, self.hidden)]
        layer += [(self.hidden, self.feed_forward)] * 2 + [(self.feed_forward, self.hidden)]
        return tuple(layer * self.layers)


def read_shape(folder: Path) -> Shape:
    """Read `folder`/config.json. Unfit when it is missing or lacks a size."""
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Unfit(f"{file} cannot be read: {error.strerror}", code="bad_config") from None
    except ValueError as error:
        raise Unfit(f"{file} is not a model's config: {error}", code="bad_config") from None
    return shape_of(config, str(file))


def shape_of(config: Mapping[str, Any], file: str = "config.json") -> Shape:
    """The sizes that a config tells. Unfit when one is missing."""
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
        )
    except KeyError as error:
        raise Unfit(f"{file} does not tell {error.args[0]}", code="bad_config") from None
    except (ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise Unfit(f"{file} is not a model's config: {error}", code="bad_config") from None


def _with_standard_names(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config with the sizes of its kind where they are usual, and with what vLLM reads otherwise than it stands."""
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
        case "minicpm3":  # vLLM keeps its keys and values as they are, not their latent vector
            sizes["head_dim"] = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
            sizes["kv_lora_rank"] = None
    return sizes


def _widest(value: object) -> int:
    """Gemma 3n tells a size for each layer."""
    return max(map(int, value), default=0) if isinstance(value, list) else int(value or 0)  # type: ignore[call-overload]
