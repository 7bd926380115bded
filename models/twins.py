"""Which models may follow each other in one engine (`models.chat_swap`): those that differ in the values of their
weights and in nothing else that an engine reads.

What it takes is listed here, and what is not known is not a twin. Two models have the same key when these are equal:

| of the recipe | engine and flags, dtype as settled here, context, KV cache, adapter places, batching                 |
| of the files  | config.json but for `NO_MATTER`; name, type and shape of every tensor; every other file byte for     |
|               | byte but for `UNREAD`: tokenizer, chat template, generation defaults, what somebody put beside them  |
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open

from models.sources import engine_version
from registry.dtypes import SMALL_WEIGHTS, settle
from registry.errors import RoundhouseError
from registry.recipe import Recipe
from registry.weights import read_weights

ENGINES = ("0.32.",)
"""Releases of vLLM on which `tests/contract/test_chat_swap.py` passed."""
ARCHITECTURES = frozenset({"LlamaForCausalLM"})
FLAGS = frozenset(
    {
        "block_size", "chat_template_content_format", "enable_auto_tool_choice", "enable_prefix_caching",
        "override_generation_config", "reasoning_parser", "seed", "structured_outputs_config", "tool_call_parser",
    }
)  # fmt: skip
"""Those of vLLM that are known to bring no second set of weights, no other process and no code along."""
NO_MATTER = ("_name_or_path", "transformers_version")
"""Keys of config.json that say where it was written."""
UNREAD = (".md", ".png", ".jpg", ".svg", ".pdf", ".safetensors", ".safetensors.index.json")
"""Files that no engine reads, and the weights themselves, whose headers count."""
MOST = 64 << 20
"""Bytes of files up to which they are compared: a tokenizer has up to 30 MB."""


def key(recipe: Recipe, path: Path, device: str) -> str | None:
    """64 hex digits; None: this model takes no other one's place. Reads headers and small files only."""
    flags = {name.replace("-", "_") for name in recipe.engine.flags}
    fits = recipe.engine.name == "vllm" and device == "cpu" and recipe.residency.swap and flags <= FLAGS
    if not fits or not engine_version("vllm").startswith(ENGINES):
        return None
    try:
        return _key(recipe, path)
    except (OSError, ValueError, SafetensorError, RoundhouseError):  # a load will tell what is wrong with it
        return None


def _key(recipe: Recipe, path: Path) -> str | None:
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    if not isinstance(config, dict) or "quantization_config" in config:
        return None
    if len(config.get("architectures") or ()) != 1 or config["architectures"][0] not in ARCHITECTURES:
        return None
    for name in NO_MATTER:
        config.pop(name, None)
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and _is_read(file, path)]
    if sum(file.stat().st_size for file in files) > MOST:
        return None
    settled = settle(recipe, path, "cpu")
    said = settled.model_dump(mode="json", include={"engine", "dtype", "context_length", "memory", "batching"})
    weights = list(path.glob("*.safetensors"))
    small = sum(file.stat().st_size for file in weights) < SMALL_WEIGHTS  # decides on the number of compute threads
    tensors = dict(_tensors(path))
    if len(weights) != len(read_weights(path).files):  # others lie beside, and which of them are read is vLLM's to say
        return None
    total = hashlib.sha256(json.dumps([said, config, small, tensors], sort_keys=True).encode())
    for file in files:
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        total.update(f"\0{file.relative_to(path)}\0{content}".encode())
    return total.hexdigest()


def _is_read(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return not hidden and not file.name.endswith(UNREAD) and file != folder / "config.json"


def _tensors(path: Path) -> Iterator[tuple[str, tuple[str, list[int]]]]:
    """Name, and (type, shape), of each tensor."""
    for name in read_weights(path).files:
        with safe_open(path / name, framework="numpy") as opened:
            for tensor in opened.keys():  # noqa: SIM118  (no mapping: it cannot be iterated)
                view = opened.get_slice(tensor)
                yield tensor, (view.get_dtype(), list(view.get_shape()))
