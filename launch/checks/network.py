"""Compare the names of a network's weights with those in its files.

transformers builds the network on the meta device, without memory, and loads it from the files' headers. So its name
mappings, tied weights and ignored names are taken into account.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launch.files.listing import INDEX
from models.chat.vllm import source as vllm_source
from registry.files.shape import read_config, text_config

FEW = 5
_LAYER = re.compile(r"(?:model\.layers|transformer\.h)\.(?P<number>\d+)\.")
ADAPTED = (".lora_A.", ".lora_B.", ".base_layer.")
"""Parts of names that peft gives to layers with an adapter."""
EMBEDDING = "model.embed_tokens."
FROM_PEFT = "base_model.model."
WITHOUT_PREFIX = frozenset({"BloomForCausalLM", "GPT2LMHeadModel", "NemotronHForCausalLM"})
"""Architectures that vLLM also reads without the prefix, as their makers published them."""


def network_faults(folder: Path, weights: Mapping[str, str]) -> Iterator[str]:
    """Yield faults of the weights' names. weights: tensor name to file."""
    config = read_config(folder)
    kind = _class_of(config)
    if kind is None or "auto_map" in config:
        return
    if isinstance(config.get("quantization_config"), dict):
        yield from _missing(kind.__name__, _missing_modules(kind, config, weights), set(), config)
        return
    if any(name.startswith(FROM_PEFT) for name in weights):
        yield (
            f"Its weights are named {FROM_PEFT}..., as inside a PeftModel: save the model that merge_and_unload() "
            "returns, or rename them without this prefix."
        )
        return
    if adapted := sorted(name for name in weights if any(part in name for part in ADAPTED)):
        yield (
            f"An adapter is among its weights ({adapted[0]}): merge it first (peft's merge_and_unload), and save "
            "the result."
        )
        return
    with tempfile.TemporaryDirectory() as plain:
        _link(folder, Path(plain), weights)
        network, info = kind.from_pretrained(
            plain, device_map="meta", output_loading_info=True, local_files_only=True, ignore_mismatched_sizes=True,
            use_safetensors=True,
        )  # fmt: skip
    yield from _missing(kind.__name__, set(info["missing_keys"]), set(info["unexpected_keys"]), config)
    if wrong := sorted(info["mismatched_keys"]):
        name, actual, expected = wrong[0]
        yield (
            f"{len(wrong)} of its weights have other sizes than config.json says, such as {name}: {list(actual)}, "
            f"not {list(expected)}. Use the config.json that the weights were saved with."
        )
    prefix = f"{network.base_model_prefix}."
    if (
        not info["missing_keys"]
        and kind.__name__.endswith("ForCausalLM")
        and kind.__name__ not in WITHOUT_PREFIX
        and any(name.startswith(prefix) for name in network.state_dict())
        and not any(name.startswith(prefix) for name in weights)
    ):
        yield (
            f"Its weights are named without '{prefix}', such as {min(weights)}, as in a network without its head, but "
            f"vLLM loads whole models: save it again, {kind.__name__}.from_pretrained(OLD).save_pretrained(NEW)."
        )


def _missing_modules(kind: Any, config: Mapping[str, Any], weights: Mapping[str, str]) -> set[str]:
    """Return the head and layers that quantized files lack. vLLM does not check for them.

    transformers cannot read such files without the quantizer's package, and each method has its own tensor names, so
    any tensor of a module counts.
    """
    if not kind.__name__.endswith("ForCausalLM"):
        return set()
    parsed, missing = kind.config_class.from_dict(dict(config)), set[str]()
    roots = {_root(name) for name in weights}
    has_head = "lm_head" in roots or "lm_head.weight" not in (kind._tied_weights_keys or ())
    if not has_head and not parsed.tie_word_embeddings and any(name.startswith(EMBEDDING) for name in weights):
        missing.add("lm_head.weight")
    numbers = {int(match["number"]) for name in weights if (match := _LAYER.match(name))}
    if numbers:
        missing |= {f"model.layers.{number}" for number in set(range(parsed.num_hidden_layers)) - numbers}
    return missing


def _link(folder: Path, plain: Path, weights: Mapping[str, str]) -> None:
    """Link the files that vLLM reads in a folder: no adapter, and weights with any file name."""
    (plain / "config.json").symlink_to((folder / "config.json").resolve())
    for file in set(weights.values()):
        (plain / file).symlink_to((folder / file).resolve())
    (plain / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict(weights)}), encoding="utf-8")


def _class_of(config: Mapping[str, Any]) -> Any:
    """Return transformers' class of the architecture, or None."""
    import transformers

    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        return None
    if str(config.get("model_type")) in vllm_source.config_kinds():  # vLLM's own network
        return None
    return getattr(transformers, str(names[0]), None)


def _missing(network: str, missing: set[str], surplus: set[str], config: Mapping[str, Any]) -> Iterator[str]:
    if missing == {"lm_head.weight"} and not config.get("tie_word_embeddings"):
        yield (
            f'lm_head.weight is not in the files, and config.json of a {network} without "tie_word_embeddings" means '
            "that it should be: without it the model would answer at random. If its output is tied to its embeddings, "
            'write "tie_word_embeddings": true into config.json; else save the whole model.'
        )
    elif prefix := _wrapper(missing, surplus):
        yield (
            f"Its weights' names begin with '{prefix}', because the model was wrapped when it was saved "
            "(torch.compile, DistributedDataParallel, a larger model): save the inner model, or rename the weights "
            "without it."
        )
    elif missing:
        also = f", and there is {_few(surplus)} instead" if surplus else ""
        yield (
            f"The files lack {len(missing)} of the weights of a {network}: {_few(missing)}{also}. Without them the "
            "model would answer at random: use the files that were saved together with this config.json."
        )
    elif further := _further_layers(surplus, config):
        yield (
            f"The files hold weights of layers that config.json does not have: {_few(further)}. Use the config.json "
            "that the weights were saved with."
        )
    elif surplus and not any(_root(name) in {"model", "lm_head", "transformer"} for name in surplus):
        yield (
            f"The files hold {len(surplus)} weights that a {network} does not have: {_few(surplus)}. Use the "
            "config.json that the weights were saved with."
        )


def _wrapper(missing: set[str], surplus: set[str]) -> str:
    """Return the common prefix, with its dot, of the missing weights in the files; else ''."""
    if not missing:
        return ""
    shortest = min(missing, key=lambda name: (len(name), name))
    prefixes = {name.removesuffix(shortest) for name in surplus if name.endswith(f".{shortest}")}
    return next((prefix for prefix in sorted(prefixes) if {f"{prefix}{name}" for name in missing} <= surplus), "")


def _further_layers(surplus: set[str], config: Mapping[str, Any]) -> set[str]:
    """Return weights after a text network's last layer, unless it has layers that draft tokens."""
    text = text_config(config)
    layers = text.get("num_hidden_layers")
    if not isinstance(layers, int) or any("nextn" in key or "mtp" in key for key in text):
        return set()
    return {name for name in surplus if (match := _LAYER.match(name)) and int(match["number"]) >= layers}


def _root(name: str) -> str:
    return name.partition(".")[0]


def _few(names: set[str]) -> str:
    return ", ".join(sorted(names)[:FEW]) + (", ..." if len(names) > FEW else "")


def tensor_names(folder: Path, files: tuple[str, ...]) -> dict[str, str]:
    """Map the name of each tensor of the network to its file."""
    from safetensors import safe_open

    names: dict[str, str] = {}
    for file in (file for file in files if "/" not in file):
        with safe_open(folder / file, framework="numpy") as tensors:
            names |= dict.fromkeys(tensors.keys(), file)
    return names
