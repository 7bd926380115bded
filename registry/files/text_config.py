"""The language half of a model that also sees or hears.

transformers writes a config inside another one without what is the default of its kind: the 4B of Gemma 3 tells two
sizes of eight. Here they are; what a kind works out from its other sizes is left to `registry.files.shape`.
"""

from collections.abc import Mapping
from typing import Any

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
"""By `model_type`, in the order of FIELDS; None: worked out, or not there. As in transformers 5 (a test compares)."""


def nested_configs(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Where config.json may tell of the language model, from the outside in.

    That of Qwen-Omni is its thinker's. InternVL and DeepSeek-VL2 have words of their own for it.
    """
    nested = [config]
    for name in ("thinker_config", "llm_config", "language_config", "text_config"):
        if (inner := nested[-1].get(name)) and isinstance(inner, dict):
            nested.append(inner)
    return nested


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What config.json tells of the language model; of a model that is nothing else, all of it."""
    nested = nested_configs(config)[-1]
    if nested is config:
        return config
    defaults = zip(FIELDS, DEFAULTS.get(str(nested.get("model_type")), ()), strict=False)
    return {**{name: value for name, value in defaults if value is not None}, **nested}
