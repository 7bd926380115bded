"""Folders that are often mistaken for an adapter, recognised by their file names."""

import re
from collections.abc import Collection


def something_else(names: Collection[str]) -> str | None:
    """Describe a folder without an adapter by its file names; None: unknown."""
    if "adapter_config.json" in names:
        return None
    checkpoints = [name for name in names if re.fullmatch(r"checkpoint-\d{1,12}", name)]
    if checkpoints:
        last = max(checkpoints, key=lambda name: int(name.partition("-")[2]))
        return f"This is a trainer's output folder. The adapter is in {last}: give that folder."
    if "config.json" in names and any(name.endswith((".safetensors", ".bin", ".gguf")) for name in names):
        return "This is a full model, not an adapter: add it with 'roundhouse models add', or give it a recipe."
    return None
