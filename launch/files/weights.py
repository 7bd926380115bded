"""How many bytes of weights a listing names, where their headers cannot be read yet: before a download."""

from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any

from launch.files.listing import Listing
from models.sources.resolve import EXCLUDED
from registry.files.text_config import nested_configs
from registry.files.weights import BITS, Weights

KINDS: Mapping[str, str] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
INDEX = "model.safetensors.index.json"


def weights_of(listing: Listing) -> Weights:
    """By the files' sizes and the dtype of config.json. Headers are left out: a file's header is a few KB."""
    config = listing.json("config.json")
    kind = KINDS.get(stored_dtype(config), "F32")
    if isinstance(config.get("quantization_config"), dict):
        kind = "I8"  # packed: they stay as they are in the files
    files = weight_files(listing)
    size = sum(listing.sizes[name] for name in files)
    hidden, layers = int(config.get("d_model") or 0), int(config.get("decoder_layers") or 0)
    return Weights({kind: size * 8 // BITS[kind]}, (), tuple(files), hidden, layers)


def stored_dtype(config: Mapping[str, Any]) -> str:
    """As config.json names it, of models that also see: perhaps of their language half alone. '': it does not tell."""
    return next(
        (
            str(dtype)
            for config_part in nested_configs(config)
            for key in ("dtype", "torch_dtype")
            if (dtype := config_part.get(key))
        ),
        "",
    )


def weight_files(listing: Listing) -> list[str]:
    """Those that an engine reads: as `registry.files.weights` picks them from a folder."""
    if "model.bin" in listing and not listing.names(".safetensors"):
        return ["model.bin"]
    map_ = listing.json(INDEX).get("weight_map")
    if isinstance(map_, dict):
        root = sorted({str(name) for name in map_.values()} & listing.sizes.keys())
    elif "model.safetensors" in listing:
        root = ["model.safetensors"]
    else:
        root = [name for name in listing.names(".safetensors") if not name.startswith(("consolidated", "adapter_"))]
    below = [name for name in listing.sizes if name.count("/") == 1 and name.endswith("/model.safetensors")]
    return root + sorted(name for name in below if not any(fnmatch(name, pattern) for pattern in EXCLUDED))
