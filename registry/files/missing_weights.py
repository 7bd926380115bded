"""Find missing or misshapen weights of a chat model from the headers of its files.

After a load vLLM only checks that its norms got weights. If a head, an embedding, a linear layer, a part of a packed
layer or an expert is missing, the model answers from uninitialised memory. Of a layer with more rows or columns than
config.json gives, vLLM uses the first ones. It computes with whatever was in memory as a missing scale, too.
"""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from registry.errors import Unfit
from registry.files.shape import is_explicit, one_layer, read_config

_PART = re.compile(
    r"(?P<module>.+)\.(?P<part>[qkvo]_proj|(?:gate|up|down)_proj|w[123]|in_proj_(?:qkv|[abz]))"
    r"(?:(?P<bias>\.bias)|\.weight|\.qweight|\.weight_packed)"
)
_QKV, _GATED = frozenset({"q_proj", "k_proj", "v_proj"}), frozenset({"gate_proj", "up_proj"})
_TOGETHER = (
    _QKV, _GATED, frozenset({"q_proj", "o_proj"}), frozenset({"up_proj", "down_proj"}), frozenset({"w1", "w2", "w3"}),
    frozenset({"in_proj_qkv", "in_proj_z"}), frozenset({"in_proj_a", "in_proj_b"}),
    *(frozenset({part, f"{part}.bias"}) for part in (*_QKV, *_GATED, "o_proj", "down_proj")),
)  # fmt: skip
_ATTENTION = re.compile(r".+\.(?:self_attn|attn|attention)")
_MLP = re.compile(r".+\.(?:mlp|feed_forward|shared_experts?|experts\.\d+)")
_OWN_HEAD = re.compile(r"lm_head\.(?:weight|bias)")
_UNREAD = {
    "CohereForCausalLM": _OWN_HEAD, "Cohere2ForCausalLM": _OWN_HEAD, "Cohere2MoeForCausalLM": _OWN_HEAD,
    "Lfm2ForCausalLM": _OWN_HEAD, "Lfm2MoeForCausalLM": _OWN_HEAD, "Zamba2ForCausalLM": _OWN_HEAD,
    "Gemma3nForCausalLM": re.compile(r".+\.embed_tokens_per_layer\.weight"),
    "Qwen3ForCausalLM": re.compile(r".+\.o_proj\.bias"), "Ernie4_5ForCausalLM": re.compile(r".+_proj\.bias"),
}  # fmt: skip
"""Weights that transformers uses and vLLM 0.32 silently skips, by architecture. A head only if it is not tied."""
_LAYER = re.compile(r"model\.layers\.(?P<number>\d+)\.(?P<module>[\w.]+)\.weight")
_EXPERT = re.compile(r"(?P<experts>.+\.experts)\.(?P<number>\d+)\.(?P<part>\w+)\.(?:weight|qweight|weight_packed)")
_PACKED = {"qweight": "scales", "weight_packed": "weight_scale"}
"""Packed weights, and the names of their scales."""


def refuse_missing_weights(folder: Path, names: Mapping[str, Sequence[int]], narrow: Collection[str] = ()) -> None:
    """Raise Unfit if a weight is missing or misshapen.

    `names`: all tensors in the weight files of `folder`, with their shapes. `narrow`: those of 8 bits.
    """
    config = read_config(folder)
    if _headless(config, names):
        raise Unfit(
            f"{folder} has no lm_head.weight, and its config.json says that it needs one (tie_word_embeddings is "
            "false): without it the model would answer at random. Save the whole model, or set that to true if its "
            "head is its embedding",
            code="bad_weights",
        )
    lacking = (
        _halves(config, names), _experts(names), _whole_layers(config, names), _scales(config, names, narrow),
    )  # fmt: skip
    if missing := next(chain(*lacking), None):
        raise Unfit(
            f"{folder} has no {missing}, but has weights that belong with it: the model would answer at random. Fetch "
            "or save the whole model again",
            code="bad_weights",
        )
    if unread := next(_unread(config, names), None):
        raise Unfit(
            f"{folder} has {unread}, which transformers uses in models of this kind and vLLM ignores: its answers "
            "would differ. Serve a model without it",
            code="bad_weights",
        )
    if wrong := next(_misshapen(config, names), None):
        raise Unfit(f"{folder} has {wrong}: its config.json is of another model, or was changed", code="bad_weights")


def _headless(config: dict[str, Any], names: Collection[str]) -> bool:
    """Return whether a chat model was saved without the head that its config promises."""
    try:
        needed = config["tie_word_embeddings"] is False and config["architectures"][0].endswith("ForCausalLM")
    except (KeyError, IndexError, TypeError, AttributeError):
        return False
    return needed and "model.embed_tokens.weight" in names and all(name.startswith("model.") for name in names)


def _unread(config: dict[str, Any], names: Collection[str]) -> Iterator[str]:
    named = config.get("architectures")
    passed_over = _UNREAD.get(str(named[0])) if isinstance(named, list) and named else None
    if passed_over and (passed_over is not _OWN_HEAD or config.get("tie_word_embeddings") is False):
        yield from filter(passed_over.fullmatch, sorted(names))


def _misshapen(config: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yield layers whose sizes differ from config.json. Quantized ones may be packed, so they are skipped."""
    if "quantization_config" in config:
        return
    plain = _plain(config)
    table = (config.get("vocab_size"), config.get("hidden_size"))
    embedding = table if plain and all(isinstance(size, int) for size in table) else None
    for name, shape in shapes.items():
        layer = _LAYER.fullmatch(name)
        expected = plain.get(layer["module"]) if layer else embedding if name == "model.embed_tokens.weight" else None
        if expected is not None and tuple(shape) != expected:
            yield f"{name} of shape {list(shape)}, where config.json gives {list(expected)}"


def _plain(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return one layer's modules and shapes for families with a known layout; else nothing."""
    try:
        return one_layer(config) if is_explicit(config) else {}
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError, OverflowError):
        return {}


def _whole_layers(config: dict[str, Any], names: Collection[str]) -> Iterator[str]:
    """Yield missing weights of families with a known layout, including the embedding."""
    layers = {match["number"] for name in names if (match := _LAYER.match(name))}
    if layers and (plain := _plain(config)):
        present = {name.rpartition(".")[0] for name in names}
        needed = ["model.embed_tokens", *(f"model.layers.{number}.{module}" for number in layers for module in plain)]
        yield from sorted(module for module in needed if module not in present)


def _halves(config: dict[str, Any], names: Collection[str]) -> Iterator[str]:
    """Yield layers that are missing while others of their group are present.

    Networks without gates have no gate_proj at all; a layer that uses another's keys and values has neither; and if
    the values are the keys (Gemma 4) there is no v_proj. Otherwise a module has what others of its kind have.
    """
    parts: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        if match := _PART.fullmatch(name):
            parts[match["module"]].add(match["part"] + (match["bias"] or ""))
    alike: defaultdict[str, set[str]] = defaultdict(set)
    for module, present in parts.items():
        alike[_kind(module)] |= present
    values_are_keys = "attention_k_eq_v" in json.dumps(config)
    for module, present in sorted(parts.items()):
        of_its_kind = alike[_kind(module)]
        for together in _TOGETHER:
            attends = together is _QKV and _ATTENTION.fullmatch(module)
            if present.isdisjoint(together - {"q_proj"} if attends else together):
                continue
            gated = together is _GATED and _MLP.fullmatch(module) and "gate_proj" in of_its_kind
            needed = together if attends or gated else together & of_its_kind
            yield from (
                f"{module}.{part}" for part in sorted(needed - present) if part != "v_proj" or not values_are_keys
            )


def _scales(config: dict[str, Any], names: Collection[str], narrow: Collection[str]) -> Iterator[str]:
    """Yield missing scales of quantized weights, whatever their method calls them."""
    if "quantization_config" not in config:
        return
    scaled: set[str] = set()
    for name in names:
        module, _, last = name.rpartition(".")
        if ("scale" in last or last == "SCB") and not last.startswith(("input_", "act_")):
            scaled |= {module, module.removesuffix(".weight_quantizer")}
    for name in sorted(names):
        module, _, last = name.rpartition(".")
        if (last in _PACKED or (last == "weight" and name in narrow)) and module not in scaled:
            yield f"{module}.{_PACKED.get(last, 'weight_scale')}"


def _kind(module: str) -> str:
    """Return the module's name without layer numbers."""
    return re.sub(r"\d+", "N", module)


def _experts(names: Collection[str]) -> Iterator[str]:
    """Yield missing parts of experts, which are numbered from 0 and all have the same layers."""
    layers: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
    for name in names:
        if match := _EXPERT.fullmatch(name):
            layers[match["experts"]].add((int(match["number"]), match["part"]))
    for experts, present in sorted(layers.items()):
        parts = {part for _, part in present}
        last = max(number for number, _ in present)
        if len(present) < (last + 1) * len(parts):
            yield from (
                f"{experts}.{number}.{part}"
                for number in range(last + 1)
                for part in sorted(parts)
                if (number, part) not in present
            )
