"""Names of tensors in an adapter file, and why one that does not fit does not."""

import re

from adapters.content.base_shapes import BaseShapes, layer_of
from adapters.content.faults import shown

LORA_TENSOR = re.compile(
    r"^(?:base_model\.model\.)?(?P<module>[A-Za-z0-9_.]+)\.lora_(?P<half>[AB])(?:\.(?P<adapter>[A-Za-z0-9_-]+))?\.weight$"
)
"""peft's `base_model.model.<module>.lora_A.weight`, also with the adapter's name (a raw state dict) or no prefix."""

_ORDER = ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj")


def canonical_order(module: str) -> tuple[int, int, str]:
    """Sort key: by layer, within it in the order in which a decoder layer uses its weights."""
    last = module.rpartition(".")[2]
    return layer_of(module) or 0, _ORDER.index(last) if last in _ORDER else len(_ORDER), module


def why_no_lora(name: str) -> str:
    """What a tensor that is no half of a LoRA pair probably is."""
    tensor = f"Tensor {shown(name)}"
    if "lora_embedding_" in name or (".lora_" in name and "embed" in name):
        return f"{tensor} is LoRA on the token embedding, which all adapters of a base share: not supported."
    if "lora_magnitude_vector" in name:
        return f"{tensor} belongs to DoRA: train with use_dora=false."
    if name.endswith(".bias"):
        return f"{tensor} is a bias: the engine adds none to LoRA layers. Train with bias='none', lora_bias=false."
    if "modules_to_save" in name:
        return f"{tensor} is a whole trained layer (modules_to_save): not supported beside LoRA."
    if "embed_tokens" in name or "lm_head" in name or "wte" in name:
        return (
            f"{tensor} is a copy of the embedding or head: save with save_embedding_layers=False if it was not "
            "trained. A changed vocabulary cannot be served as an adapter."
        )
    return f"{tensor} is no half of a LoRA pair (<module>.lora_A.weight, <module>.lora_B.weight)."


def layer_fault(module: str, base: BaseShapes) -> str | None:
    """Why the base has no such layer to adapt; None when it has."""
    last = module.rpartition(".")[2]
    if last == "kv_b_proj":
        return (
            f"{module}: LoRA on kv_b_proj is not supported: the engine folds its weights into the attention at the "
            "load, and an adapter would be left out. Leave it untrained."
        )
    if last in base.turned:
        return (
            f"{module}: LoRA on {last} is not supported for this base: the engine puts its rows into another order at "
            "the load, and would leave the adapter's as they are. Leave q_proj and k_proj untrained."
        )
    if module in base.linear:
        return None
    if last in ("lm_head", "embed_out"):
        return f"{module}: LoRA on the head is not supported: all adapters of a base share it. Leave it untrained."
    if "embed" in last or last == "wte":
        return f"{module}: LoRA on the token embedding is not supported: all adapters of a base share it."
    if ".experts." in module or module.endswith((".experts", ".gate", ".router")):
        return f"{module}: LoRA on experts and their router is not supported; target the other linear layers."
    layer = layer_of(module)
    if layer is None:
        known = ", ".join(base.in_layer(0)[:3])
        return f"{shown(module)}: the base has no such linear layer. Its layers are named like {known}."
    if layer >= base.layers:
        return f"Layer {layer} ({_tail(module)} and others): the base has {base.layers} layers, 0 to {base.layers - 1}."
    known = ", ".join(_tail(name) for name in base.in_layer(layer))
    return f"{shown(module)}: the base has no such linear layer; layer {layer} has {known}."


def _tail(module: str) -> str:
    """'self_attn.q_proj' of 'model.layers.3.self_attn.q_proj'."""
    match = re.search(r"\.\d+\.(.+)$", module)
    return match.group(1) if match else module
