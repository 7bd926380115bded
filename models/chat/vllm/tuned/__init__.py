"""Kernel configurations from `benchmarks.gpu.tune_lora`, one file per card.

A file is named by its card, in vLLM's words: `NVIDIA_H100_80GB_HBM3_SHRINK.json`, `..._EXPAND_TRUE.json`, and
`..._EXPAND_FALSE.json` for VLLM_LORA_ENABLE_DUAL_STREAM. In it: places with the base, slices, tokens, inputs, outputs.
vLLM takes the nearest number but for the slices: without one of 1, 2 and 3 a step ends the engine. Other cards have
vLLM's defaults. A server takes another folder by VLLM_TUNED_CONFIG_FOLDER.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from models import nvml

FOLDER = Path(__file__).parent
VARIABLE = "VLLM_TUNED_CONFIG_FOLDER"


def use() -> None:
    """Have vLLM read these files, if there are any and no others are named."""
    if any(FOLDER.glob("*.json")):
        os.environ.setdefault(VARIABLE, str(FOLDER))


def file_name(card: str, kind: str) -> str:
    """kind: SHRINK, EXPAND_TRUE or EXPAND_FALSE."""
    return f"{card.replace(' ', '_').replace('-', '_')}_{kind}.json"


def sizes_for(device: str) -> Iterable[int]:
    """`sizes` for the card of a device ('cuda:0'), without CUDA; none where the driver does not tell it."""
    try:
        return sizes(nvml.gpu(device).name)
    except nvml.NoGpu:
        return []


def sizes(card: str) -> Iterable[int]:
    """Numbers of tokens that have a configuration of their own on a card; none: it has no file."""
    file = Path(os.environ.get(VARIABLE) or FOLDER) / file_name(card, "SHRINK")
    if not file.is_file():
        return []
    table = json.loads(file.read_text())
    return sorted({int(size) for places in table.values() for slices in places.values() for size in slices})
