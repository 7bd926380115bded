"""A chat engine takes another model's weights: its processes stay, a switch costs weights and vLLM's application.

Only for a model that differs from the one that is there in the values of its weights alone (`models.twins`), when
nothing runs. EngineCore does its part and proves it (`adapters.vllm_swap`); here vLLM's application is built anew,
under the new model's name, from arguments that are compared with those of the first load. The tokenizer stays: its
files are the same, byte for byte. Whatever goes wrong after that comparison, the engine must not be used any more.
"""

import asyncio
from argparse import Namespace
from pathlib import Path
from typing import Any

from models import twins
from models.chat import settings as chat_settings
from models.chat.adapters import Adapters
from models.chat.vllm import launch as chat_vllm
from registry.errors import EngineFailed
from registry.recipe import Recipe

OWN = frozenset({"model", "served_model_name"})
"""vLLM's arguments that say which model it is."""
CALM_SECONDS = 5.0
"""Within which the last step of an ended request must have left EngineCore."""


class Swapper:
    """Made before vLLM starts, which changes some of its arguments, and reads the files.

    Args:
        arguments: vLLM's.
        key: `twins.key` of its model.
    """

    def __init__(self, arguments: Namespace, key: str | None) -> None:
        self._settings, self._key = _settings(arguments), key

    def arguments(self, recipe: Recipe, path: Path) -> Namespace:
        """vLLM's for the new model. Raises EngineFailed, with the engine as it was, when it is no twin of this one."""
        if self._key is None or twins.key(recipe, path, "cpu") != self._key:
            raise EngineFailed(f"{recipe.id} differs from the model in this engine by more than its weights")
        new = chat_settings.arguments(recipe, path, "cpu", chat_vllm.parser())
        mine, its = self._settings, _settings(new)
        differ = {name for name in mine.keys() | its.keys() if mine.get(name) != its.get(name)} - OWN
        if differ:
            raise EngineFailed(f"{recipe.id} wants other settings of vLLM: {', '.join(sorted(differ))}")
        return new

    async def take(self, engine: Any, arguments: Namespace, adapters: Adapters) -> Any:
        """Bring the new weights in; returns the application that answers with them. Raises EngineFailed."""
        if arguments.enable_lora:
            await adapters.forget()
        deadline = asyncio.get_running_loop().time() + CALM_SECONDS
        path, (name,) = arguments.model, arguments.served_model_name
        while (outcome := await _swap(engine, path, name))[0] == "busy":
            if asyncio.get_running_loop().time() > deadline:
                raise EngineFailed("a request is in the engine still")
            await asyncio.sleep(0.01)
        if outcome != ["done"]:
            raise EngineFailed(f"the weights were not swapped: {'; '.join(outcome[1:])}")
        config = engine.model_config
        config.model, config.tokenizer, config.served_model_name = path, path, name
        app = await chat_vllm.application(engine, arguments)
        adapters.answers(chat_vllm.adapter_names(app))
        return app


def _settings(arguments: Namespace) -> dict[str, str]:
    return {name: repr(value) for name, value in vars(arguments).items()}


async def _swap(engine: Any, path: str, name: str) -> list[str]:
    outcome: list[str] = await engine.engine_core.call_utility_async("swap_model", path, name)
    return outcome
