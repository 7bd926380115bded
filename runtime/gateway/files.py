"""The model table's rows: what recipes and files tell of a model, at the start and once its files have been fetched."""

import asyncio
import logging
from pathlib import Path

from packaging.specifiers import SpecifierSet

from models import sources
from registry.errors import RoundhouseError, Unavailable, Unfit
from registry.estimate import estimate
from registry.recipe import Recipe
from registry.state import State
from runtime.residency.entry import ModelEntry
from runtime.residency.record import recall
from runtime.scheduling.queue import ModelQueue
from runtime.server.device import Device

log = logging.getLogger("roundhouse.gateway")


class ModelFiles:
    def __init__(self, state: State, device: Device) -> None:
        self._state, self._device = state, device

    def entry(self, recipe: Recipe, queue: ModelQueue) -> ModelEntry:
        """A row of the model table. A model whose files are not there is listed, and says why when it is asked for."""
        entry = ModelEntry(
            recipe=recipe, path=None, revision="unknown", needed=0, needed_detail="", load_seconds=10.0, queue=queue
        )
        entry.pinned = self._state.models.pins().get(recipe.id, recipe.residency.pin)
        try:
            self._found(entry, sources.resolve(recipe.source, Path.cwd(), download=False))
        except RoundhouseError as error:
            if error.code != "source_not_downloaded":  # that is fetched when somebody wants it
                message = f"Model '{recipe.id}' cannot be loaded: {error.message}"
                entry.broken = Unavailable(message, code="model_broken")
                log.error("model cannot be loaded", extra={"model": recipe.id, "cause": error.message})
        return entry

    async def fetch(self, entry: ModelEntry, told: sources.Fetched) -> None:
        """Bring the model's files. Raises what the source says."""
        source = entry.recipe.source
        path = await asyncio.to_thread(lambda: sources.resolve(source, Path.cwd(), fetched=told))
        await asyncio.to_thread(self._found, entry, path)

    def _found(self, entry: ModelEntry, path: Path) -> None:
        """Fill in what a model's files and earlier loads tell."""
        recipe = entry.recipe
        _check_version(recipe)
        sum_of = estimate(recipe, path, self._device.kind)
        entry.needed, entry.needed_detail = sum_of.total, sum_of.explain()
        if self._device.kind != "cpu":
            entry.host_needed, entry.host_adapters = sum_of.host, sum_of.host_adapters
        if recipe.expected.load_seconds is not None:
            entry.load_seconds = recipe.expected.load_seconds
        recall(entry, self._state, self._device)
        entry.revision, entry.path = sources.revision(recipe.source, path), path


def _check_version(recipe: Recipe) -> None:
    """Raise Unfit when the installed engine is not one that the recipe's flags are known to work with."""
    have = sources.engine_version(recipe.engine.name)
    if not SpecifierSet(recipe.engine.versions).contains(have, prereleases=True):
        raise Unfit(
            f"the recipe wants {recipe.engine.name} {recipe.engine.versions}, {have} is installed. "
            "Install a version that fits, or check the recipe's flags and widen engine.versions.",
            code="engine_version",
        )
