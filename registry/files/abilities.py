"""What a model can do beside its task: by its recipe's parsers, and by what its config.json says that it takes."""

import os
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from registry.base.json import read_object
from registry.recipes.definition import Recipe, Task


class Ability(StrEnum):
    TOOLS = "tools"
    THINKING = "thinking"
    VISION = "vision"


PARSERS = {Ability.TOOLS: "tool_call_parser", Ability.THINKING: "reasoning_parser"}
"""Flags of a chat model's recipe without which the ability stays off."""


def abilities_of(recipe: Recipe, folder: Path | None) -> frozenset[Ability]:
    """Abilities of a model, loaded or not. `folder` holds its files, if they are there."""
    if recipe.task is not Task.CHAT:
        return frozenset()
    flags = {name.replace("-", "_") for name, value in recipe.engine.flags.items() if value}
    abilities = {ability for ability, flag in PARSERS.items() if flag in flags}
    file = f"{folder}/config.json"  # runs for each request: a Path would take longer to build than stat takes
    try:
        if folder is not None and _sees(file, os.stat(file).st_mtime_ns):
            abilities.add(Ability.VISION)
    except OSError:
        pass  # a load says what is wrong with the files
    return frozenset(abilities)


@lru_cache(maxsize=1024)
def _sees(file: str, _changed: int) -> bool:
    return read_object(Path(file)).get("vision_config") is not None
