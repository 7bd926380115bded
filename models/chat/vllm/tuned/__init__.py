"""Kernel configurations from `benchmarks.gpu.tune_lora`, one file per card.

A file has CUDA's name of its card: `NVIDIA_H100_80GB_HBM3_SHRINK.json`, `..._EXPAND_TRUE.json`, and
`..._EXPAND_FALSE.json` for VLLM_LORA_ENABLE_DUAL_STREAM. It is keyed by places including the base, slices, tokens,
inputs, outputs. vLLM uses the nearest number, except for slices: an engine with a layer of a missing number does not
start, so there are 1 to 8. Other cards use vLLM's defaults. VLLM_TUNED_CONFIG_FOLDER selects another folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
VARIABLE = "VLLM_TUNED_CONFIG_FOLDER"


def use() -> None:
    """Make vLLM read these files, if there are any and no other folder is set."""
    if any(FOLDER.glob("*.json")):
        os.environ.setdefault(VARIABLE, str(FOLDER))


def file_name(card: str, kind: str) -> str:
    """Return a file's name. kind: SHRINK, EXPAND_TRUE or EXPAND_FALSE."""
    return f"{card.replace(' ', '_').replace('-', '_')}_{kind}.json"


def sizes(card: str) -> Sequence[int]:
    """Return the numbers of tokens with their own configuration on a card; empty if it has no file.

    card: CUDA's name, in which vLLM looks. The driver's name of a part of a GPU (MIG) may be another.
    """
    file = Path(os.environ.get(VARIABLE) or FOLDER) / file_name(card, "SHRINK")
    if not file.is_file():
        return []
    table = json.loads(file.read_text())
    return sorted({int(size) for places in table.values() for slices in places.values() for size in slices})
