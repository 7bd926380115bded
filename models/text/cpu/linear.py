"""Compute BERT's products in 16-bit integers on a CPU, if they agree with float32."""

import asyncio
import logging
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from models.text.bert import Bert, BertLayer, Linear, LinearRows
from models.text.cpu import kernels
from registry.errors import EngineFailed
from registry.recipes.definition import Recipe

if TYPE_CHECKING:
    import ctypes

    from models.text.tokens import Ids

COMPUTE_TYPES = ("auto", "float32", "int16")
LEAST = 0.9999
"""Least cosine between each row of states and the one in float32, for random token ids; below it, float32 is used.
bfloat16, with 8 bits, is near 0.9999; these models are at 0.99999 (docs/design/notebook.md)."""
LENGTHS = (1, 2, 7, 24, 30)
_log = logging.getLogger(__name__)


async def choose(recipe: Recipe, bert: Bert | None) -> int:
    """Let `bert` compute as the recipe says. Returns the bytes of rounded weights.

    Raises EngineFailed for an unknown compute type, and for `int16` if it is not available.
    """
    compute_type = str(recipe.engine.flags.get("compute_type", "auto"))
    if compute_type not in COMPUTE_TYPES:
        raise EngineFailed(f"compute_type is one of {', '.join(COMPUTE_TYPES)}, not {compute_type!r}")
    if compute_type == "float32" or (compute_type == "auto" and recipe.dtype != "auto"):
        return 0
    rounded = await asyncio.to_thread(to_int16, bert) if bert is not None else 0
    if compute_type == "int16" and not rounded:
        raise EngineFailed(
            "compute_type int16 needs a processor with AVX-512 VNNI, a C compiler, and a BERT in float32 that runs "
            "without padding and whose results stay the same: write auto"
        )
    return rounded


def to_int16(bert: Bert) -> int:
    """Round all linear weights if results stay the same. Returns their bytes, else 0.

    The library's linear layers then lose their weights, so that nothing is stored twice.
    """
    import torch

    library = kernels.load_int16()
    if library is None:
        return 0
    inputs = probes(bert.vocabulary, bert.positions)
    with torch.inference_mode():
        exact, before = bert.states(inputs), bert.layers
        bert.layers = [_rounded(library, layer) for layer in before]
        states = bert.states(inputs)
        least = float(torch.nn.functional.cosine_similarity(states.double(), exact.double(), dim=1).min())
        if not least >= LEAST:
            bert.layers = before
            _log.warning("products stay in float32: rounded ones have a cosine of %.6f to them", least)
            return 0
    bert.release_weights()
    linears: list[Any] = [one for n in bert.layers for one in (n.query, n.qkv, n.out, n.up, n.down) if one is not None]
    return sum(linear.nbytes for linear in linears)


def probes(vocabulary: int, positions: int) -> "list[Ids]":
    """Return inputs of random token ids, the same at each call."""
    from models.text.tokens import Ids

    rng = random.Random(7)
    return [Ids([rng.randrange(vocabulary) for _ in range(min(length, positions))]) for length in LENGTHS]


def _rounded(library: "ctypes.CDLL", layer: BertLayer) -> BertLayer:
    def rounded(linear: LinearRows) -> LinearRows:
        assert isinstance(linear, Linear)
        return kernels.Int16Linear(library, linear.weight, linear.bias)

    return replace(
        layer,
        query=rounded(layer.query) if layer.query is not None else None,
        qkv=rounded(layer.qkv),
        out=rounded(layer.out),
        up=rounded(layer.up),
        down=rounded(layer.down),
    )
