"""The chat recipe that ships for a card, with random weights: what it costs there, in the words of its `expected:`.

    expected: {load_seconds: 41.0, resident: 61440MiB, tokens_per_second: 160.2, note: "NVIDIA H100 80GB HBM3, ..."}

The part `shipped` of the acceptance run prints this line, to be put into the recipe.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gpu.shapes import Shape, write_base
from benchmarks.models import Chat, written
from benchmarks.report.environment import ROOT

RECIPES = ROOT / "recipes"
LARGE = 100 << 30
"""Bytes of a card from which on the recipes for an H200 are meant."""
OF_TOKENIZER = ("enable_auto_tool_choice", "tool_call_parser")
"""Flags that need tokens of the checkpoint's own tokenizer, which is not here."""
NOTE = re.compile(r".+, \d{4}-\d\d-\d\d, commit [0-9a-f]{8,40}\b.*")
"""The note of figures from a card: which card, day and commit."""


def recipe_folder(card_bytes: int) -> Path:
    """The recipes for a card of that size."""
    return RECIPES / ("h200" if card_bytes >= LARGE else "single-gpu-80gb")


def recipe_file(card_bytes: int) -> Path:
    """The chat recipe for a card of that size."""
    return recipe_folder(card_bytes) / "llama-8b.yaml"


def model(file: Path, shape: Shape, folder: Path) -> Chat:
    """The recipe as it is but for its weights, which are random, and their tokenizer.

    A tiny shape gets memory and steps of its own.
    """
    data: dict[str, Any] = yaml.safe_load(file.read_text())
    data["adapters"] = []
    flags = data["engine"].setdefault("flags", {})
    data["engine"]["flags"] = {name: flags[name] for name in flags if name not in OF_TOKENIZER}
    data["engine"]["flags"]["load_format"] = "dummy"
    if shape.name == "tiny":
        data["context_length"] = shape.context
        data["memory"] = {"kv_cache": shape.kv_cache, "adapters": {"device": 2, "host": 4, "max_rank": 16}}
        data["batching"] |= {"max_requests": 8, "max_tokens": shape.step, "tokens_while_swapping": shape.chunk}
    base = write_base(folder / "base", replace(shape, context=data["context_length"]), values=False)
    return written(data, base, folder)


def expected(
    view: Mapping[str, Any], tokens_per_second: float, environment: Mapping[str, Any], shape: Shape
) -> dict[str, object]:
    """`expected:` of the recipe.

    Args:
        view: the model's, as the server reports it.
        tokens_per_second: of one stream.
        environment: of the results file.
    """
    seconds = sum(view["last_load_seconds"].values())
    where = environment.get("gpu", environment["cpu"])
    return {
        "load_seconds": round(seconds, 1),
        "resident": f"{-(-int(view['bytes']) // (1 << 20))}MiB",
        "tokens_per_second": round(tokens_per_second, 1),
        "note": f"{where}, {environment['time'][:10]}, commit {environment['commit'][:8]}; {shape.name} shape with "
        "random weights, so no file was read",
    }
