"""Tensor names in adapter files, and reasons to refuse them."""

import re

from adapters.content.base_shapes import BaseShapes, front_of, layer_of

LORA_TENSOR = re.compile(
    r"^(?:base_model\.model\.)?(?P<module>[A-Za-z0-9_.]+)\.lora_(?P<half>[AB])(?:\.(?P<adapter>[A-Za-z0-9_-]+))?\.weight$"
)
"""peft's `base_model.model.<module>.lora_A.weight`, also with the adapter's name (a raw state dict) or no prefix."""

_ORDER = ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj")


def canonical_order(module: str) -> tuple[int, int, str]:
    """Return a sort key: by layer, then in the order in which a layer uses its weights."""
    last = module.rpartition(".")[2]
    return layer_of(module) or 0, _ORDER.index(last) if last in _ORDER else len(_ORDER), module


def why_no_lora(name: str) -> str:
    """Explain a tensor that belongs to no pair, as a continuation of its name in a message."""
    if "lora_embedding_" in name or (".lora_" in name and "embed" in name):
        return "LoRA on the token embedding, which all adapters of a base share: not supported."
    if "lora_magnitude_vector" in name:
        return "this belongs to DoRA: train with use_dora=false."
    if "trainable_tokens_" in name:
        return "trained rows of the token embedding, which all adapters of a base share: not supported."
    if name.endswith(".bias"):
        return "this is a bias: the engine adds none to LoRA layers. Train with bias='none', lora_bias=false."
    if "modules_to_save" in name:
        return "this is a whole trained layer (modules_to_save): not supported besides LoRA."
    if "embed_tokens" in name or "lm_head" in name or "wte" in name:
        return (
            "this is a copy of the embedding or head: save with save_embedding_layers=False if it was not trained. "
            "A changed vocabulary cannot be served as an adapter."
        )
    return "this is not half of a LoRA pair (<module>.lora_A.weight, <module>.lora_B.weight)."


def layer_fault(module: str, base: BaseShapes) -> str | None:
    """Explain why a layer cannot be adapted, as a continuation of its name; None if it can."""
    last = module.rpartition(".")[2]
    if last == "kv_b_proj":
        return (
            "LoRA on kv_b_proj is not supported: the engine folds its weights into the attention at the load, and "
            "would ignore an adapter. Leave it untrained."
        )
    if last in base.turned:
        return (
            f"LoRA on {last} is not supported for this base: the engine reorders its rows at the load, but not the "
            "adapter's. Leave q_proj and k_proj untrained."
        )
    if module in base.linear and not module.endswith(".router.layer"):
        return None
    if last in ("lm_head", "embed_out"):
        return "LoRA on the head is not supported: all adapters of a base share it. Leave it untrained."
    if "embed" in last or last == "wte":
        return "LoRA on the token embedding is not supported: all adapters of a base share it."
    if ".experts." in module or module.endswith((".experts", ".gate", ".router", ".router.layer")):
        return "LoRA on experts and their router is not supported; target the other linear layers."
    layer, front, own = layer_of(module), front_of(module), base.front
    if front != own and base.senses and not front.endswith(own):
        return (
            "LoRA outside the text part is not supported: the engine has no places for adapters in vision or audio "
            f"layers. Train only layers below {own.rstrip('.')} (target_modules as a regular expression), or serve it "
            "merged."
        )
    if layer is None:
        examples = ", ".join(base.in_layer(0)[:3])
        return f"the base has no such linear layer. Its layers are named like {examples}."
    if front != own:
        return (
            f"the base has no such linear layer: its layers are named {own}0, not {front}0. Another base? If not, "
            "rename the tensors."
        )
    count = len(set(map(layer_of, base.linear)))
    if layer >= count:
        return f"The base has no layer {layer}: it has {count} layers, 0 to {count - 1}."
    return f"the base has no such linear layer; layer {layer} has {', '.join(map(_tail, base.in_layer(layer)))}."


def _tail(module: str) -> str:
    """Return 'self_attn.q_proj' for 'model.layers.3.self_attn.q_proj'."""
    return module.removeprefix(front_of(module)).partition(".")[2]
