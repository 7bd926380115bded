"""Values that a recipe leaves to the model's files and the machine: context length, abilities, and `dtype: auto`.

What `dtype: auto` becomes:

| engine | device | weights      | processor          | auto becomes                                  |
|--------|--------|--------------|--------------------|-----------------------------------------------|
| vllm   | CPU    | up to 64 MiB | no native bfloat16 | float32: twice as fast, and the size is small |
| vllm   | CPU    | larger       | any                | 16 bits, as vLLM chooses: half the memory     |
| others |        |              |                    | left to the engine                            |
"""

import os
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Literal

from registry.base.json import read_object
from registry.base.processor import features
from registry.files.shape import text_config
from registry.recipes.definition import Recipe, Task

NO_LIMIT = 10**6
"""Tokenizers without a limit give 10^30."""
OFFSETS = {"roberta": 2, "xlm-roberta": 2, "xlm-roberta-xl": 2, "camembert": 2, "mpnet": 2, "longformer": 2}
"""Positions used by padding, by the model's type; `models.text.loading` finds them from the layers."""


def context_of(recipe: Recipe, folder: Path | None) -> int | None:
    """Return tokens of the longest input (chat: plus answer); None for speech, or if not known yet."""
    if recipe.context_length is not None:
        return recipe.context_length
    if folder is None or recipe.task is Task.TRANSCRIBE:
        return None
    try:
        return _read_context(folder, recipe.task, (folder / "config.json").stat().st_mtime_ns)
    except OSError:
        return None


@lru_cache(maxsize=1024)
def _read_context(folder: Path, task: Task, _changed: int) -> int | None:
    config = text_config(read_object(folder / "config.json"))
    if task is Task.CHAT and any("factor" in str(config.get(name)) for name in ("rope_scaling", "rope_parameters")):
        return None  # positions are scaled: vLLM computes the limit
    positions = config.get("max_position_embeddings")
    own = read_object(folder / "sentence_bert_config.json").get("max_seq_length")
    if own is None:
        own = read_object(folder / "tokenizer_config.json").get("model_max_length")
    limits = [own] if isinstance(own, int) and own < NO_LIMIT else []
    if isinstance(positions, int):
        limits.append(positions - (OFFSETS.get(str(config.get("model_type")), 0) if task is not Task.CHAT else 0))
    return min(limits, default=None)


class Ability(StrEnum):
    TOOLS = "tools"
    THINKING = "thinking"
    VISION = "vision"


PARSERS = {Ability.TOOLS: "tool_call_parser", Ability.THINKING: "reasoning_parser"}
"""Flags of a chat model's recipe that turn an ability on."""


def abilities_of(recipe: Recipe, folder: Path | None) -> frozenset[Ability]:
    """Return a model's abilities, loaded or not. folder: its files, if it has any."""
    if recipe.task is not Task.CHAT:
        return frozenset()
    flags = {name.replace("-", "_") for name, value in recipe.engine.flags.items() if value}
    abilities = {ability for ability, flag in PARSERS.items() if flag in flags}
    file = f"{folder}/config.json"  # runs for each request, and building a Path takes longer than stat
    try:
        if folder is not None and _sees(file, os.stat(file).st_mtime_ns):
            abilities.add(Ability.VISION)
    except OSError:
        pass  # a load reports faults of the files
    return frozenset(abilities)


@lru_cache(maxsize=1024)
def _sees(file: str, _changed: int) -> bool:
    return read_object(Path(file)).get("vision_config") is not None


SMALL_WEIGHTS = 64 * 2**20
"""Size of the files in bytes up to which speed matters more than memory."""
BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Names in /proc/cpuinfo (x86: flags, Arm: Features) for native bfloat16 multiplication."""


def settle(recipe: Recipe, path: Path, kind: Literal["cpu", "cuda"]) -> Recipe:
    """Return `recipe` with the dtype for the engine, by the table above."""
    return settle_by_size(recipe, bytes_of_files(path), kind)


def settle_by_size(recipe: Recipe, size: int, kind: Literal["cpu", "cuda"]) -> Recipe:
    """`settle` for weights that are not on this machine yet. size: bytes of their files."""
    is_open = recipe.dtype == "auto" and recipe.engine.name == "vllm" and kind == "cpu"
    if is_open and size <= SMALL_WEIGHTS and not native_bfloat16():
        return recipe.model_copy(update={"dtype": "float32"})
    return recipe


def bytes_of_files(folder: Path) -> int:
    """Return bytes of the weight files in a model's folder."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def native_bfloat16() -> bool:
    """Return whether the processor multiplies bfloat16 natively, or True if unknown."""
    return not features() or not BFLOAT16.isdisjoint(features())
