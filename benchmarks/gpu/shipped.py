"""Recipes that ship for a card: measures their `expected:` with random weights, and writes it into them.

    expected: {load_seconds: 41.0, resident: 61440MiB, tokens_per_second: 160.2, note: "NVIDIA H100 80GB HBM3, ..."}

The parts `shipped`, `encoders`, `speech` and `larger` of the acceptance run measure these figures. This command writes
them into the recipes for the card of the results:

    python -m benchmarks.gpu.shipped benchmarks/results/gpu/DATE-8b.json
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gpu.shapes import Shape, write_base
from benchmarks.models import Chat, written
from benchmarks.report.environment import ROOT
from registry.recipes.definition import Expected
from registry.recipes.loading import parse_recipe

RECIPES = ROOT / "recipes"
LARGE = 100 << 30
"""Cards with at least so many bytes use the recipes for an H200."""
OF_TOKENIZER = ("enable_auto_tool_choice", "tool_call_parser")
"""Flags that need tokens of the checkpoint's own tokenizer, which random weights lack."""
STEP = "expected: "
"""Prefix of the names of steps with figures for a recipe; the rest of the name is the recipe's file."""
SUMS, MEASURED = "Not measured yet, only calculated.", "`expected` was measured, the rest was calculated."
RANDOM, TINY = "its sizes with random weights", "tiny shape with random weights"
"""How a recipe's note names the weights. Figures of a tiny shape say nothing about the recipe."""
NOTE = re.compile(r".+, \d{4}-\d\d-\d\d, commit [0-9a-f]{8,40}\b.*")
"""The note of figures from a card, with the card's name, the day and the commit."""


def recipe_folder(card_bytes: int) -> Path:
    """Return the folder of the recipes for a card of that size."""
    return RECIPES / ("h200" if card_bytes >= LARGE else "single-gpu-80gb")


def recipe_file(card_bytes: int) -> Path:
    """Return the chat recipe for a card of that size."""
    return recipe_folder(card_bytes) / "llama-8b.yaml"


def large_recipe_file(card_bytes: int) -> Path | None:
    """Return the recipe of the larger chat model for a card of that size, or None if there is none."""
    file = recipe_folder(card_bytes) / "qwen-32b.yaml"
    return file if file.exists() else None


def model(file: Path, shape: Shape, folder: Path) -> Chat:
    """Write the recipe with random weights and the starter's tokenizer, and otherwise unchanged.

    A tiny shape also gets its own memory and steps.
    """
    data: dict[str, Any] = yaml.safe_load(file.read_text())
    data["adapters"] = []
    flags = data["engine"].setdefault("flags", {})
    data["engine"]["flags"] = {name: flags[name] for name in flags if name not in OF_TOKENIZER}
    data["engine"]["flags"]["load_format"] = "dummy"
    if shape.name == "tiny":
        data["context_length"] = shape.context
        places = {"adapters": {"device": 2, "host": 4, "max_rank": 16}} if "adapters" in data["memory"] else {}
        data["memory"] = {"kv_cache": shape.kv_cache, **places}
        data["batching"] |= {"max_requests": 8, "max_tokens": shape.step}
        if places:
            data["batching"]["tokens_while_swapping"] = shape.chunk
    base = write_base(folder / "base", replace(shape, context=data["context_length"]), values=False)
    return written(data, base, folder)


def expected(
    view: Mapping[str, Any], environment: Mapping[str, Any], weights: str, tokens_per_second: float | None = None
) -> dict[str, object]:
    """Return the recipe's `expected:`.

    Args:
        view: the model's `GET /v1/models/{id}`.
        environment: the results file's environment.
        weights: what was loaded, for the note.
        tokens_per_second: speed of one stream.
    """
    seconds = sum(view["last_load_seconds"].values())
    where = environment.get("gpu", environment["cpu"])
    return {
        "load_seconds": round(seconds, 1),
        "resident": f"{-(-int(view['bytes']) // (1 << 20))}MiB",
        **({} if tokens_per_second is None else {"tokens_per_second": round(tokens_per_second, 1)}),
        "note": f"{where}, {environment['time'][:10]}, commit {environment['commit'][:8]}; {weights}",
    }


class Unusable(ValueError):
    """A results file without figures for a recipe."""


def measured(results: Mapping[str, Any]) -> dict[Path, dict[str, object]]:
    """Return figures by the recipe's path below the recipes' folder. Raises Unusable."""
    card = results["environment"].get("gpu_bytes")
    if card is None:
        raise Unusable("these results were measured without a GPU")
    steps = {name: step for name, step in results["steps"].items() if name.startswith(STEP) and step["ok"]}
    if not steps:
        raise Unusable(
            "these results have no figures for a recipe: run the parts `shipped`, `encoders`, `speech` and `larger`"
        )
    if not all(NOTE.fullmatch(step["note"]) for step in steps.values()):
        raise Unusable("these results name no commit: measure in a checkout that has its .git")
    if any(TINY in step["note"] for step in steps.values()):
        raise Unusable("these results are of the tiny shape: measure without --shape tiny")
    return {
        Path(recipe_folder(card).name, name.removeprefix(STEP)): {
            key: value for key, value in step.items() if key in Expected.model_fields
        }
        for name, step in steps.items()
    }


def with_figures(text: str, figures: Mapping[str, object]) -> str:
    """Return the recipe's text with these figures under `expected`, in place of any older ones. Raises Unfit."""
    line = "expected: " + yaml.safe_dump(dict(figures), default_flow_style=True, sort_keys=False, width=1000)
    changed, count = re.subn(r"^expected:.*\n(?: .*\n)*", lambda _: line, text, flags=re.MULTILINE)
    if not count:
        changed, count = re.subn(r"^(?=aliases:)", lambda _: line, text, count=1, flags=re.MULTILINE)
    if not count:
        changed = text.rstrip("\n") + "\n" + line
    parse_recipe(changed, "the changed recipe")
    return changed.replace(SUMS, MEASURED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--recipes", type=Path, default=RECIPES, metavar="FOLDER", help="default: %(default)s")
    options = parser.parse_args()
    try:
        recipes = measured(json.loads(options.results.read_text()))
    except Unusable as fault:
        print(f"error: {options.results}: {fault}", file=sys.stderr)
        return 1
    for name, figures in recipes.items():
        file = options.recipes / name
        file.write_text(with_figures(file.read_text(), figures))
        print(f"{file}: {figures}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
