"""Shapes of a base model's linear layers, from safetensors headers or else config.json.

The operator provides the base, so its files are trusted; they may be links (a hub cache).
"""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from adapters.content.tensor_file import BadFile, read_header
from registry.errors import Unfit
from registry.files.shape import linear_layers, read_shape, text_config

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_TEXT_HALVES = ("model.language_model.", "language_model.model.", "model.")
"""Prefixes of text layers in vision-language models: in transformers since 4.52 and so in peft's files; in older
versions and still in most models' files; in Qwen2-VL's files."""
_HALVES = (*_TEXT_HALVES, "model.text_model.", "llm.model.", "thinker.model.")
"""Prefixes of a model's text part, including those of Idefics, MiniCPM-V and Qwen-Omni."""
_TURNED = frozenset({"llama4", "llama4_text", "k2_horizon"})
"""Model types whose q and k, but not those of adapters, vLLM permutes (`permute_qk_weight_for_rotary`)."""
_RENAMED = (("backbone.", "model."),)
"""Prefixes in Nemotron-H's files, and those in current transformers and so in peft."""
_SOURCE_DTYPES = frozenset({"F32", "F16", "BF16", "F64", "F8_E4M3"})
_MAX_HEADER = 256 << 20


class UnknownBase(Exception):
    """The shapes of the base cannot be determined; the message says why."""


@dataclass(frozen=True, slots=True)
class BaseShapes:
    """Shapes of a base. `linear`: module name to (out, in), in layer order.

    `linear` has the numbered layers of the text part, while `layers` counts the layers of all parts.
    """

    linear: dict[str, tuple[int, int]]
    layers: int
    turned: frozenset[str] = frozenset()
    """Last parts of the names of layers whose rows the engine reorders at the load."""
    senses: bool = False
    """Whether there are vision or audio layers, where the engine has no places for adapters."""

    @property
    def front(self) -> str:
        """The part of the layers' names before their number."""
        return front_of(next(iter(self.linear), ""))

    def in_layer(self, layer: int) -> list[str]:
        return [name for name in self.linear if layer_of(name) == layer]


def layer_of(module: str) -> int | None:
    """Return the number of a module's decoder layer."""
    match = _LAYER.search(module)
    return int(match.group(1)) if match else None


def front_of(module: str) -> str:
    """Return the part of a module's name before its layer number."""
    match = _LAYER.search(module)
    return module[: match.start(1)] if match else ""


def as_spelled(base: BaseShapes, modules: Iterable[str]) -> tuple[BaseShapes, dict[str, str]]:
    """Return the base with its layers named as in an adapter, and a map back to its own names.

    Only for vision-language bases, whose adapters do not fit a text model of the same shapes, and for `_RENAMED`.
    """
    own, half = next((pair for pair in _RENAMED if any(name.startswith(pair[0]) for name in base.linear)), ("", ""))
    if half and any(name.startswith(half) for name in modules):
        return _renamed(base, own, half)
    half = next((half for half in _TEXT_HALVES[:2] if any(name.startswith(half) for name in modules)), "")
    seeing = base.senses or any(not name.startswith("model.layers.") for name in base.linear)
    named = [own for own in _TEXT_HALVES if seeing and any(name.startswith(own + "layers.") for name in base.linear)]
    if not half or not named or half in named:
        return base, {}
    return _renamed(base, named[0], half)


def _renamed(base: BaseShapes, own: str, half: str) -> tuple[BaseShapes, dict[str, str]]:
    names = {name: half + name.removeprefix(own) if name.startswith(own) else name for name in base.linear}
    linear = {names[name]: shape for name, shape in base.linear.items()}
    return replace(base, linear=linear), {spelled: name for name, spelled in names.items()}


def read_base(folder: Path) -> BaseShapes:
    """Read the shapes of a base. Raises UnknownBase."""
    files = [*sorted(folder.glob("*.safetensors")), *folder.glob("config.json")]
    stats = [(path.name, path.stat()) for path in files]
    return _read_base(folder, tuple((name, stat.st_size, stat.st_ino, stat.st_ctime_ns) for name, stat in stats))


@lru_cache(maxsize=8)  # `stamps` invalidates an entry if a file changes
def _read_base(folder: Path, stamps: tuple[tuple[str, int, int, int], ...]) -> BaseShapes:
    names = [name for name, *_ in stamps if name.endswith(".safetensors")]
    linear = _without_draft_layers(folder, _from_headers([folder / name for name in names])) or _from_config(folder)
    layers = {layer for layer in map(layer_of, linear) if layer is not None}
    half = next((half for half in _HALVES if any(name.startswith(f"{half}layers.") for name in linear)), None)
    text = [name for name in linear if half is None or name.startswith(f"{half}layers.")]
    ordered = {name: linear[name] for name in sorted(text, key=lambda name: layer_of(name) or 0)}
    turned = {"q_proj", "k_proj"} if _kind(folder) in _TURNED else set[str]()
    return BaseShapes(ordered, len(layers), frozenset(turned), senses=len(ordered) < len(linear))


def _kind(folder: Path) -> str:
    """Return `model_type` of the text part; '' if config.json does not give it."""
    try:
        return str(text_config(json.loads((folder / "config.json").read_text("utf-8"))).get("model_type"))
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""


def _from_headers(paths: list[Path]) -> dict[str, tuple[int, int]]:
    """Read shapes from headers; empty for quantised files, whose weights are packed."""
    linear = {}
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            tensors = read_header(fd, _MAX_HEADER, 10_000_000)
        except BadFile as error:
            raise UnknownBase(f"{path.name} of the base model is damaged: {error}") from None
        finally:
            os.close(fd)
        for name, tensor in tensors.items():
            if name.endswith((".qweight", ".weight_packed", ".weight.absmax")):
                return {}
            module = name.removesuffix(".weight")
            plain = len(tensor.shape) == 2 and tensor.dtype in _SOURCE_DTYPES and module != name
            if plain and layer_of(name + ".") is not None and ".experts." not in name:
                linear[module] = (tensor.shape[0], tensor.shape[1])
    return linear


def _without_draft_layers(folder: Path, linear: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Remove layers that draft tokens (MTP), which peft does not have.

    Qwen3.5 and Qwen3-Next have them, and GLM-4.5 as one more layer.
    """
    try:
        last = read_shape(folder).layers
    except Unfit:
        last = len(linear)
    behind = re.compile(rf"(?:{'|'.join(map(re.escape, _TEXT_HALVES))})layers\.(\d+)\.")
    return {
        name: shape
        for name, shape in linear.items()
        if "mtp" not in name.split(".") and not ((match := behind.match(name)) and int(match[1]) >= last)
    }


def _from_config(folder: Path) -> dict[str, tuple[int, int]]:
    try:
        config = text_config(json.loads((folder / "config.json").read_text("utf-8")))
        if layers := linear_layers(config):
            return layers
        raise UnknownBase(
            f"the base has no safetensors files, and config.json does not give the shapes of {config['model_type']!r}"
        )
    except FileNotFoundError:
        raise UnknownBase("the base model's folder has no config.json and no safetensors files") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnknownBase(f"config.json of the base model cannot be used: {error!r}") from None
