"""`dtype: auto` on a GPU: float16 if known inputs get the same answers as in float32.

| files    | known inputs in float16 | dtype                                             |
|----------|-------------------------|---------------------------------------------------|
| 16 bits  |                         | as in the files                                   |
| float32  | same answers            | float16, which is many times as fast              |
| float32  | other answers or errors | float32, products in TF32 (10 bits of each value) |

Networks such as T5 overflow in float16. A checkpoint in bfloat16 may be one of those, so it is not converted.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models.process_control import is_out_of_memory
from models.text.loading import open_model, release
from registry.recipes.definition import Recipe

_log = logging.getLogger("roundhouse.text")


def open_settled(
    recipe: Recipe,
    path: Path,
    device: str,
    make: Callable[..., Any],
    answer: Callable[[Any], Any],
    is_like: Callable[[Any, Any], bool],
) -> Any:
    """Open a model, with `dtype: auto` settled by the table above. See `loading.open_model`.

    Args:
        answer: returns a model's answer to known inputs, by the library.
        is_like: whether an answer in 16 bits (first) is as good as one in float32.
    """
    model = open_model(recipe, path, device, make)
    if device == "cpu" or recipe.dtype != "auto" or next(iter(model.parameters())).element_size() < 4:
        return model
    exact = answer(model)
    del model
    release(device)
    half, why = None, "its answers differ"
    try:
        half = open_model(recipe.model_copy(update={"dtype": "float16"}), path, device, make)
        if is_like(answer(half), exact):
            return half
    except RuntimeError as error:  # torch: a part of the model keeps its own dtype
        if is_out_of_memory(error):
            raise
        why = str(error)
    del half
    release(device)
    _log.warning("%s stays in float32, as float16 is not suitable: %s", recipe.id, why)
    use_tf32()
    return open_model(recipe, path, device, make)


def use_tf32() -> None:
    """Compute float32 products in TF32 from now on, in this process."""
    import torch

    torch.set_float32_matmul_precision("high")


def is_exact(model: Any) -> bool:
    """Return whether the model computes in full float32."""
    import torch

    wide = next(iter(model.parameters())).element_size() >= 4
    return bool(wide and torch.get_float32_matmul_precision() == "highest")
