"""Resolve `dtype: auto` for the machine at hand.

| engine | device | weights        | processor            | auto becomes                                   |
|--------|--------|----------------|----------------------|------------------------------------------------|
| vllm   | CPU    | up to 64 MiB   | no bfloat16 products | float32: twice as fast, and the size is small  |
| vllm   | CPU    | larger         | any                  | 16 bits, as vLLM chooses: half the memory      |
| others |        |                |                      | left to the engine                             |
"""

from pathlib import Path
from typing import Literal

from registry.base.processor import features
from registry.recipes.definition import Recipe

SMALL_WEIGHTS = 64 * 2**20
"""Bytes in the files up to which memory matters less than speed."""
BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Names in /proc/cpuinfo (x86's flags, Arm's features) of native bfloat16 products."""


def settle(recipe: Recipe, path: Path, kind: Literal["cpu", "cuda"]) -> Recipe:
    """Return `recipe` with the dtype that the engine gets; see the table."""
    return settle_by_size(recipe, bytes_of_files(path), kind)


def settle_by_size(recipe: Recipe, size: int, kind: Literal["cpu", "cuda"]) -> Recipe:
    """The same for weights that are not here yet. `size`: bytes of their files."""
    is_open = recipe.dtype == "auto" and recipe.engine.name == "vllm" and kind == "cpu"
    if is_open and size <= SMALL_WEIGHTS and not native_bfloat16():
        return recipe.model_copy(update={"dtype": "float32"})
    return recipe


def bytes_of_files(folder: Path) -> int:
    """Bytes of the weights in a model's folder, headers included."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def native_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 natively. True where that is unknown."""
    return not features() or not BFLOAT16.isdisjoint(features())
