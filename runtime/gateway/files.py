"""The model table's rows: what recipes and files tell of a model, at the start and once its files have been fetched."""

import asyncio
import logging
from pathlib import Path

from packaging.specifiers import SpecifierSet

from models.engines import engine_version
from models.estimate import estimate
from models.sources import resolve as sources
from registry.errors import RoundhouseError, Unavailable, Unfit
from registry.recipes.definition import Recipe
from registry.state.database import State
from runtime.residency.entry import ModelEntry
from runtime.residency.record import Found, forget, found
from runtime.scheduling.queue import ModelQueue
from runtime.server.device import Device

log = logging.getLogger("roundhouse.gateway")


class ModelFiles:
    def __init__(self, state: State, device: Device) -> None:
        self._state, self._device = state, device

    def entry(self, recipe: Recipe, queue: ModelQueue) -> ModelEntry:
        """A row of the model table. A model whose files are not there is listed, and says why when it is asked for."""
        files, broken = None, None
        try:
            files = self._files(recipe, sources.resolve(recipe.source, Path.cwd(), download=False))
        except RoundhouseError as error:
            if error.code != "source_not_downloaded":  # that is fetched when somebody wants it
                broken = Unavailable(f"Model '{recipe.id}' cannot be loaded: {error.message}", code="model_broken")
                log.error("model cannot be loaded", extra={"model": recipe.id, "cause": error.message})
        entry = ModelEntry(
            recipe=recipe,
            path=None,
            revision="unknown",
            needed=0,
            needed_detail="",
            load_seconds=10.0,
            queue=queue,
            pinned=self._state.models.pins().get(recipe.id, recipe.residency.pin),
            broken=broken,
        )
        if files is not None:
            found(entry, files, self._state, self._device)
        return entry

    async def fetch(self, entry: ModelEntry, told: sources.Fetched) -> None:
        """Bring the model's files. Raises what the source says."""
        source = entry.recipe.source
        path = await asyncio.to_thread(lambda: sources.resolve(source, Path.cwd(), fetched=told))
        files = await asyncio.to_thread(self._files, entry.recipe, path)
        await asyncio.to_thread(found, entry, files, self._state, self._device)

    async def forget_estimate(self, entry: ModelEntry) -> None:
        """Plan with what its files tell again, and not with what was measured."""
        files = await asyncio.to_thread(self._files, entry.recipe, entry.path) if entry.path is not None else None
        forget(entry, files, self._state, self._device)

    def _files(self, recipe: Recipe, path: Path) -> Found:
        """What a model's files tell. Raises Unfit for what cannot be loaded here."""
        _check_version(recipe)
        needs = estimate(recipe, path, self._device.kind)
        on_host = (needs.host, needs.host_adapters) if self._device.kind != "cpu" else (0, 0)
        revision = sources.revision(recipe.source, path)
        return Found(path, revision, needs.total, needs.explain(), *on_host, recipe.expected.load_seconds)


def _check_version(recipe: Recipe) -> None:
    """Raise Unfit when the installed engine is not one that the recipe's flags are known to work with."""
    have = engine_version(recipe.engine.name)
    if not SpecifierSet(recipe.engine.versions).contains(have, prereleases=True):
        raise Unfit(
            f"the recipe wants {recipe.engine.name} {recipe.engine.versions}, {have} is installed. "
            "Install a version that fits, or check the recipe's flags and widen engine.versions.",
            code="engine_version",
        )
