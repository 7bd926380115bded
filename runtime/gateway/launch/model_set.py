"""The set of models. Names, table rows and metrics change together here."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial

from cachetools import LRUCache

from launch.recipe_store import Arrangement, RecipeStore, StoredRecipes, arrange
from registry.errors import RoundhouseError, Unavailable
from registry.recipes.definition import Recipe
from registry.state.database import State
from runtime.gateway.files import ModelFiles, QueueMaker, add_replicas
from runtime.gateway.metrics import Metrics
from runtime.gateway.names import Names
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import ResidencyManager, removed_error
from runtime.residency.updates import RecipeExchange

log = logging.getLogger("roundhouse.gateway")
REMOVED = 1000
"""Number of removed models that are remembered."""


class ModelSet:
    """
    | a recipe          | model not served       | served with this recipe   | served with another recipe            |
    |-------------------|------------------------|---------------------------|---------------------------------------|
    | is in the files   | model added, ABSENT    | nothing                   | takes effect once the model is unused |
    | is not            | nothing                | model leaves: new and waiting requests get 404, running ones      |
    |                   |                        | finish, and other models can change meanwhile                     |
    | is in the files again while its model leaves       | added once the model has left                         |

    Args:
        given: the operator's own recipes, served in addition to the stored ones.
        stored: the stored recipes at startup.
        make_queue: creates the queue of a recipe's model.
        register: registers the adapters that a recipe names.
    """

    def __init__(
        self,
        given: Iterable[Recipe],
        store: RecipeStore,
        stored: StoredRecipes,
        names: Names,
        residency: ResidencyManager,
        make_queue: QueueMaker,
        files: ModelFiles,
        state: State,
        metrics: Metrics,
        register: Callable[[Recipe], Awaitable[None]],
    ) -> None:
        self.given, self.store = tuple(given), store
        self._names, self._residency, self._make_queue = names, residency, make_queue
        self._files, self._state, self._metrics, self._register = files, state, metrics, register
        self.writing = asyncio.Lock()
        """Lock for changes of the store, held from reading it until the models have followed."""
        self._changing = asyncio.Lock()
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._to_readd: set[str] = set()
        """Models to add again once they have left."""
        self._removed = LRUCache[str, bool](REMOVED)
        """Models that were removed by a request, not by the files of this server."""
        self._stored, self.faults = stored.recipes, (*stored.faults, *arrange(self.given, stored.recipes).notes)
        """Faults of the recipe files when last read. Recipes with faults stay unchanged."""

    def recipe(self, model: str) -> Recipe | None:
        """A model's recipe, or the next one if it is about to change. None if the model is leaving."""
        entry = self._residency.entries.get(model)
        if entry is None or model in self._leaving:
            return None
        return self._residency.exchanger.waiting(model) or entry.recipe

    def recipes(self) -> list[Recipe]:
        return [recipe for model in self._residency.entries if (recipe := self.recipe(model)) is not None]

    def is_leaving(self, model: str) -> bool:
        return model in self._leaving

    def was_removed(self, model: str) -> bool:
        """Whether a request removed the model, here or on another server of the fleet, since this server started."""
        return model in self._removed

    async def wait_until_removed(self, model: str) -> None:
        """Wait until the model has left. Returns immediately if it is not leaving."""
        if (leaving := self._leaving.get(model)) is not None:
            await asyncio.wait({leaving})

    def is_from_operator(self, model: str) -> bool:
        """Whether the recipe in effect comes from the operator's own files."""
        recipe = self.recipe(model)
        return recipe is not None and any((r.id, r.version) == (recipe.id, recipe.version) for r in self.given)

    def versions(self) -> set[tuple[str, int]]:
        """Id and version of every recipe, including former ones."""
        return {(recipe.id, recipe.version) for recipe in (*self.given, *self._stored)}

    def stored_versions(self) -> set[tuple[str, int]]:
        """Id and version of the recipes added at run time."""
        return {(recipe.id, recipe.version) for recipe in self._stored}

    async def reload(self, given: Iterable[Recipe] | None = None) -> Arrangement:
        """Apply the recipe files. Returns once removed models have left."""
        arranged, leaving = await self.follow(given)
        await wait_for_all(leaving)
        return arranged

    async def follow(self, given: Iterable[Recipe] | None = None) -> tuple[Arrangement, list[asyncio.Task[None]]]:
        """Apply the stored recipes and, if given, the operator's recipes. Returns the tasks of leaving models."""
        async with self._changing:
            stored = await asyncio.to_thread(self.store.read)
            if given is not None:
                self.given = tuple(given)
            arranged = arrange(self.given, stored.recipes)
            self._stored = stored.recipes
            self.faults = (*stored.faults, *arranged.notes)
            for fault in self.faults:
                log.error("a recipe is left out", extra={"cause": fault})
            recipes = {recipe.id: recipe for recipe in arranged.recipes}
            self._to_readd &= recipes.keys()
            gone = [m for m in self._residency.entries if m not in recipes and m not in self._leaving]
            if given is None:
                self._removed.update(dict.fromkeys(gone, True))
            for model in recipes:
                self._removed.pop(model, None)
            leaving = [self._drop(model) for model in gone]
            for recipe in arranged.recipes:
                await self._set(recipe)
        return arranged, leaving

    async def _set(self, recipe: Recipe) -> None:
        if recipe.id in self._leaving:
            self._to_readd.add(recipe.id)
            return
        entry, before = self._residency.entries.get(recipe.id), self.recipe(recipe.id)
        if before == recipe:
            return
        if entry is not None:
            fill = await asyncio.to_thread(self._files.read_files, recipe)
            for replica in list(entry.replicas):
                done = partial(self._apply, entry) if replica is entry else lambda: None
                self._residency.exchanger.start(replica, RecipeExchange(recipe, fill, done))
            return
        entry = await asyncio.to_thread(self._files.entry, recipe, self._make_queue)
        for replica in entry.replicas:
            self._residency.add(replica)  # no await from here until the names are set, so the change is atomic
        self._show(recipe)
        log.info("a model was added", extra={"model": recipe.id, "version": recipe.version})
        self._residency.table.spawn(self._prepare(entry), f"adapters-{entry.id}")  # adapters may come from a hub

    def _apply(self, entry: ModelEntry) -> None:
        """Apply a new recipe's adapters and pin."""
        self._show(entry.recipe)
        self._add_replicas(entry)
        for extra in entry.replicas:
            if extra.number > entry.recipe.replicas.most and not extra.is_leaving:
                self._residency.table.spawn(self._remove_replica(entry, extra), f"leave-{extra.id}")
        pinned = self._state.models.pins().get(entry.id, entry.recipe.residency.pin)
        if pinned != entry.pinned or len(entry.replicas) > 1:
            self._residency.pin(entry, pinned)
        self._residency.table.spawn(self._register_adapters(entry), f"adapters-{entry.id}")

    def _add_replicas(self, entry: ModelEntry) -> None:
        for more in add_replicas(entry, self._make_queue):
            self._residency.add(more)

    async def _remove_replica(self, entry: ModelEntry, extra: ModelEntry) -> None:
        gone = Unavailable(f"A replica of '{entry.id}' was removed. Send the request again.", retry_after=1.0)
        await self._residency.remove_replica(extra, gone)
        if not entry.is_leaving:
            self._add_replicas(entry)  # a further change of the recipe may need it again

    async def _register_adapters(self, entry: ModelEntry) -> None:
        if entry.path is not None:  # otherwise once its files have been fetched
            await self._register(entry.recipe)
            self._names.refresh()

    async def _prepare(self, entry: ModelEntry) -> None:
        await self._register_adapters(entry)
        self.preload(entry)

    def preload(self, entry: ModelEntry) -> None:
        """Request a model that is pinned or that its recipe preloads. Only logs a refusal."""
        if entry.pinned or entry.recipe.residency.preload:
            try:
                self._residency.request_load(entry)
            except RoundhouseError as error:
                log.error("preload refused", extra={"model": entry.id, "cause": error.message})

    def _show(self, recipe: Recipe) -> None:
        """Make the recipe's names visible to requests. The order of the recipes is kept."""
        known = {recipe.id: recipe for recipe in self._names.recipes}
        self._names.serve(list({**known, recipe.id: recipe}.values()))

    def _drop(self, model: str) -> "asyncio.Task[None]":
        """Hide a model and let it leave. Discards its next recipe, which would make it visible again."""
        for replica in self._residency.entries[model].replicas:
            self._residency.exchanger.forget(replica.id)
        self._names.serve([recipe for recipe in self._names.recipes if recipe.id != model])
        self._leaving[model] = task = asyncio.create_task(self._leave(model), name=f"leave-{model}")
        return task

    async def _leave(self, model: str) -> None:
        try:
            await self._residency.remove(self._residency.entries[model], removed_error(model))
            self._metrics.forget(model)
            log.info("a model was removed", extra={"model": model})
        finally:
            del self._leaving[model]
        if model in self._to_readd:
            self._to_readd.discard(model)
            await self.reload()


async def wait_for_all(leaving: Collection[asyncio.Task[None]]) -> None:
    """Wait for all tasks. Cancelling the wait cancels none of them."""
    if leaving:
        await asyncio.wait(leaving)
    for task in leaving:
        task.result()
