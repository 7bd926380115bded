"""Settings in a GGUF file that change a model's answers, and that transformers' reader leaves out.

positions      how they are stretched: `rope.scaling.*`, or a tensor of factors (Llama 3.1 and later, Phi-3)
sizes          some that differ from the defaults of transformers' config
ends           all tokens that end a turn, where the reader knows one: a Gemma would go on after <end_of_turn>
first token    whether texts begin with one
words          how a text is split before tokens are formed, for kinds of tokenizers that the reader does not know
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from registry.base.lazy import LazyModule
from registry.errors import Unfit

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

NAMES: Mapping[str, Mapping[str, str]] = {
    "gemma2": {
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    "phi3": {"attention.sliding_window": "sliding_window"},
    "qwen2moe": {
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    },
    "qwen3": {"attention.key_length": "head_dim"},
    "qwen3moe": {"expert_feed_forward_length": "moe_intermediate_size"},
    "stablelm": {"rope.freq_base": "rope_theta"},
    "starcoder2": {"rope.freq_base": "rope_theta"},
}
"""Architectures to llama.cpp's names of settings, and transformers' names for them."""
PARTLY_ROTATED = frozenset({"phi3", "stablelm"})
"""Architectures whose heads may rotate only some of their values."""
LARGEST_GEMMAS = {"gemma2": 46, "gemma3": 62}
"""Layers of the largest Gemmas, which scale attention by the width of a head before it was widened."""
LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Settings of the positions of all Llamas from 3.1 on, besides the factor."""
ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>", "<|endoftext|>")
"""Tokens that end a turn wherever they exist, as in llama.cpp."""
WHOLE_WORDS = frozenset(
    {
        "falcon-h1", "falcon3", "jina-v5-nano", "lfm2", "llama-bpe", "llama-v3", "llama3", "midm-2.0", "pixtral",
        "tekken",
    }
)  # fmt: skip
"""Kinds of tokenizers that take a word's own token, if there is one, even where merges lead to others. By llama.cpp's
defaults, their texts begin with the first token."""
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+"
_BLANKS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[[\p{Lu}\p{Ll}\p{Lt}]&&[^\x{560}-\x{588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C88}\x{2D00}-\x{2D2D}\x{A790}-\x{A7FA}"
    r"\x{AB30}-\x{AB68}\x{10570}-\x{105BC}\x{16E40}-\x{1DF1E}]]"
)
"""Letters with a case, except those that DeepSeek LLM's tokenizer does not count among them."""
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
SPLITS: Mapping[str, Sequence[str]] = {
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?{_CASED}+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        "[一-龥ࠀ-一가-퟿]+",
        r"\p{N}+",
    ),
    "falcon": (r"[\p{P}$+<=>^~|`]+", _GPT_2, "[0-9]{3}"),
    "seed-coder": (_WORDS + _BLANKS,),
    "stablelm2": (_WORDS + r"[\r\n]*" + _BLANKS,),
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "viking": (_BLOOM, r"\p{N}"),
    **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), (_BLOOM,)),
    **dict.fromkeys(
        ("codeshell", "command-r", "exaone", "minerva-7b", "refact", "smollm", "starcoder"), (r"\p{N}", _GPT_2)
    ),
}
"""Kinds of tokenizers to the expressions by which a text is split, one after another, as in their makers' files.
transformers' reader splits them as GPT-2 does, with other tokens for blanks before digits, for example."""
YARN = {
    "original_context_length": "original_max_position_embeddings", "attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow",
}  # fmt: skip


def left_out_settings(reader: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for transformers' config. Raises Unfit for positions that it cannot describe.

    Args:
        reader: gguf's reader of the file.
        config: what transformers' reader has found.
    """
    architecture = str(value_of(reader, "general.architecture"))
    settings = {
        theirs: value
        for name, theirs in NAMES.get(architecture, {}).items()
        if (value := value_of(reader, f"{architecture}.{name}")) is not None
    }
    hidden, heads = config.get("hidden_size", 0), config.get("num_attention_heads") or 1
    rotated = value_of(reader, f"{architecture}.rope.dimension_count")
    if architecture in PARTLY_ROTATED and rotated:
        settings["partial_rotary_factor"] = rotated / (hidden // heads)
    if config.get("num_hidden_layers") == LARGEST_GEMMAS.get(architecture):
        settings["query_pre_attn_scalar"] = hidden // heads
    if architecture != "gpt-oss":  # transformers reads its positions, and vLLM knows its ends
        settings |= _positions(reader, architecture, config, settings)
        settings["eos_token_id"] = _ends(reader, config.get("eos_token_id"))
    return settings


def begins_with_token(reader: Any) -> bool:
    """Return whether texts begin with the first token, by llama.cpp's defaults if the file does not say."""
    if value_of(reader, "tokenizer.ggml.bos_token_id") is None:
        return False
    stated = value_of(reader, "tokenizer.ggml.add_bos_token")
    sentencepiece = value_of(reader, "tokenizer.ggml.model") == "llama"
    return bool(sentencepiece or value_of(reader, "tokenizer.ggml.pre") in WHOLE_WORDS if stated is None else stated)


def split_as_trained(reader: Any, tokenizer: Any) -> None:
    """Change the backend of transformers' tokenizer so that it splits texts as the one that was trained."""
    from tokenizers import Regex, decoders, pre_tokenizers

    kind = value_of(reader, "tokenizer.ggml.pre")
    if value_of(reader, "tokenizer.ggml.model") == "gpt2":
        if kind in WHOLE_WORDS:
            tokenizer.model.ignore_merges = True
        if kind in SPLITS:
            splits = [pre_tokenizers.Split(Regex(one), "isolated") for one in SPLITS[kind]]
            bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytewise])
    elif value_of(reader, "tokenizer.ggml.add_space_prefix") is False and isinstance(
        tokenizer.pre_tokenizer, pre_tokenizers.Metaspace
    ):
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
        whole = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence(whole)  # without the step that removes a blank at the beginning


def value_of(reader: Any, key: str) -> Any:
    """Return the value of a key of the file; None if there is none."""
    field = reader.fields.get(key)
    return None if field is None else field.contents()


def _ends(reader: Any, known: int | list[int] | None) -> int | list[int] | None:
    """Return the tokens that end an answer. known: those that transformers' reader has found."""
    ends = [*known] if isinstance(known, list) else [known]
    ends += [value_of(reader, f"tokenizer.ggml.{name}_token_id") for name in ("eot", "eom")]
    ends += [number for number, word in enumerate(value_of(reader, "tokenizer.ggml.tokens") or ()) if word in ENDS]
    different = list(dict.fromkeys(token for token in ends if token is not None))
    return different if len(different) > 1 else known


def _positions(
    reader: Any, architecture: str, config: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return how positions are stretched; empty if they are not."""
    factors = {
        tensor.name: np.asarray(tensor.data, np.float64).reshape(-1)
        for tensor in reader.tensors
        if tensor.name.startswith(("rope_freqs.", "rope_factors_"))
    }
    prefix = f"{architecture}.rope.scaling."
    original = value_of(reader, f"{prefix}original_context_length")
    if architecture == "llama" and "rope_freqs.weight" in factors:
        theta = settings.get("rope_theta", config.get("rope_theta", 10_000.0))
        return _llama_3(factors["rope_freqs.weight"], float(theta))
    if "rope_factors_long.weight" in factors:
        scaling = {
            "rope_type": "longrope",
            "short_factor": factors["rope_factors_short.weight"].tolist(),
            "long_factor": factors["rope_factors_long.weight"].tolist(),
        }
        return {"rope_scaling": scaling, "original_max_position_embeddings": original}
    kind, factor = value_of(reader, f"{prefix}type"), value_of(reader, f"{prefix}factor")
    if kind in (None, "none") or (kind == "linear" and factor in (None, 0.0, 1.0)):
        return {}
    if kind == "linear":
        return {"rope_scaling": {"rope_type": "linear", "factor": factor}}
    if kind == "yarn" and factor:
        more = {theirs: value_of(reader, f"{prefix}{name}") for name, theirs in YARN.items()}
        known = {name: value for name, value in more.items() if value is not None}
        return {"rope_scaling": {"rope_type": "yarn", "factor": factor, **known}}
    raise _unknown_positions(f"as '{kind}'")


def _llama_3(table: Any, theta: float) -> dict[str, Any]:
    """Return the settings that give this table of factors, by which frequencies are divided."""
    factor = float(table.max())
    if factor in (0.0, 1.0):  # 0: only the header is here
        return {}
    low, high, original = LLAMA_3.values()
    lengths = 2 * math.pi * theta ** (np.arange(len(table)) / len(table))
    smooth = np.clip((original / lengths - low) / (high - low), 0.0, 1.0)
    if not np.allclose(table, 1 / ((1 - smooth) / factor + smooth), rtol=1e-3):
        raise _unknown_positions("by factors other than a Llama's")
    return {"rope_scaling": {"rope_type": "llama3", "factor": factor, **LLAMA_3}}


def _unknown_positions(how: str) -> Unfit:
    return Unfit(f"it stretches positions {how}, which cannot be converted.", code="gguf_not_served", param="source")
