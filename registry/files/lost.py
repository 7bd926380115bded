"""Weights that a chat model's files have lost, by the names of those that are there.

vLLM looks after the load whether each of its layers got something. A head, one of the layers that it packs into one
(q, k and v; gate and up) or one expert of many may still be missing: whatever was in that memory would answer.
"""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from registry.errors import Unfit

_PACKED = re.compile(
    r"(?P<module>.+\.(?:self_attn|attn|attention|mlp|feed_forward|shared_experts?|experts\.\d+))"
    r"\.(?P<part>[qkv]_proj|gate_proj|up_proj)\.(?:weight|qweight|weight_packed)"
)
_EXPERT = re.compile(r"(?P<experts>.+\.experts)\.(?P<number>\d+)\.(?P<part>\w+)\.(?:weight|qweight|weight_packed)")


def refuse_lost(folder: Path, names: Collection[str]) -> None:
    """Raises Unfit and names a weight that is missing. `names`: of all tensors in the weight files of `folder`."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        config = {}
    if not isinstance(config, dict):
        config = {}
    if _headless(config, names):
        raise Unfit(
            f"{folder} has no lm_head.weight, and its config.json says that it needs one (tie_word_embeddings is "
            "false): it would answer by chance. Save the whole model, or set that to true if its head is its embedding",
            code="bad_weights",
        )
    if lost := next(chain(_halves(config, names), _experts(names)), None):
        raise Unfit(
            f"{folder} has no {lost}, and has what is used together with it: it would answer by chance. Fetch or save "
            "the whole model again",
            code="bad_weights",
        )


def _headless(config: dict[str, Any], names: Collection[str]) -> bool:
    """A chat model that was saved without the head that its config says it has."""
    try:
        needed = config["tie_word_embeddings"] is False and config["architectures"][0].endswith("ForCausalLM")
    except (KeyError, IndexError, TypeError, AttributeError):
        return False
    return needed and "model.embed_tokens.weight" in names and all(name.startswith("model.") for name in names)


def _halves(config: dict[str, Any], names: Collection[str]) -> Iterator[str]:
    """Layers that are missing beside their others. Networks without gates have no gate_proj at all; a layer that uses
    another's keys and values has its q alone, and where values are the keys (Gemma 4) there is no v."""
    parts: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        if found := _PACKED.fullmatch(name):
            parts[found["module"]].add(found["part"])
    gated = {_kind(module) for module, there in parts.items() if "gate_proj" in there}
    values_are_keys = "attention_k_eq_v" in json.dumps(config)
    for module, there in sorted(parts.items()):
        if module.endswith(("attn", "attention")):  # some have a gate of their own, without a pair
            needed = {"q_proj", "k_proj", "v_proj"} - ({"v_proj"} if values_are_keys else set())
            if there.isdisjoint({"k_proj", "v_proj"}):
                continue
        elif _kind(module) in gated:
            needed = {"gate_proj", "up_proj"}
        else:
            continue
        yield from (f"{module}.{part}" for part in sorted(needed - there))


def _kind(module: str) -> str:
    """The same for all layers."""
    return re.sub(r"\d+", "N", module)


def _experts(names: Collection[str]) -> Iterator[str]:
    """Experts are numbered from 0, and each has all layers that another has."""
    layers: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
    for name in names:
        if found := _EXPERT.fullmatch(name):
            layers[found["experts"]].add((int(found["number"]), found["part"]))
    for experts, there in sorted(layers.items()):
        parts = {part for _, part in there}
        last = max(number for number, _ in there)
        if len(there) < (last + 1) * len(parts):
            yield from (
                f"{experts}.{number}.{part}"
                for number in range(last + 1)
                for part in sorted(parts)
                if (number, part) not in there
            )
