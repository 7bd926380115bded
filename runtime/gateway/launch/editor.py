"""Use cases of the recipes of served models: change, remove, show."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

from launch.files.listing import list_folder
from launch.proposal.chat import check_context, longest_context
from launch.proposal.code import check_flags
from launch.proposal.draft import DraftValue, put, recipe_of
from launch.recipe_store import changed, checked_text, plain, recipe_text
from models.estimate import Estimate, estimate
from registry.base.wording import quoted
from registry.errors import BadRequest, Conflict, DoesNotFit
from registry.recipes.definition import Recipe, Task
from registry.recipes.fields import HubSource, origin
from registry.state.database import State
from runtime.config.device import Device
from runtime.gateway.files import FilesInUse, ModelFiles, check_version
from runtime.gateway.launch.model_set import ModelSet, wait_for_all
from runtime.gateway.launch.views import ModelEditedView, ModelRemovedView
from runtime.gateway.names import Names
from runtime.residency.manager import ResidencyManager, check_unpinned
from runtime.residency.states import ModelState

FIXED_KEYS = frozenset({"id", "version", "task", "source"})
"""Keys that cannot be edited, since they would make it another model. A hub's revision may change."""


class Editor:
    def __init__(
        self,
        model_set: ModelSet,
        names: Names,
        residency: ResidencyManager,
        state: State,
        files: ModelFiles,
        device: Device,
        trusted: bool,
        most_versions: int,
    ) -> None:
        self._trusted, self._most_versions = trusted, most_versions
        self._model_set, self._names, self._residency = model_set, names, residency
        self._state, self._files, self._device = state, files, device

    def _recipe(self, name: str) -> Recipe:
        """The recipe for an id, an alias or `id@version`. Raises NotFound."""
        recipe = self._names.model(name)
        return self._model_set.recipe(recipe.id) or recipe

    # --- edit -------------------------------------------------------------------------------------------------------
    async def edit(self, name: str, changes: Mapping[str, object]) -> ModelEditedView:
        """Make a new version of the recipe; a value of None restores the key's default.

        Raises BadRequest for what cannot be edited, Unfit with every fault, DoesNotFit.
        """
        check_flags(changes, self._trusted)
        async with self._model_set.writing:  # two concurrent edits would get the same version number
            return await self._edit(name, changes)

    async def _edit(self, name: str, changes: Mapping[str, object]) -> ModelEditedView:
        before = self._recipe(name)
        if before.is_former:
            raise BadRequest(f"'{before.id}' is a former version: edit '{before.id.partition('@')[0]}'.", param="model")
        for key in changes:
            if key.partition(".")[0] in FIXED_KEYS and key != "source.revision":
                raise BadRequest(f"'{key}' cannot be edited: add it as another model.", param="changes")
        data = _applied(plain(before), changes)
        draft = recipe_of(data)
        keys = list(changed(plain(draft), plain(before)))
        for alias in set(draft.aliases) - set(before.aliases):  # recipe files may define an alias that a router has
            self._names.check_model(alias, before.id, "changes", self._model_set.recipes())
        if not keys:
            return ModelEditedView(id=before.id, version=before.version, before=before.version, changed=[], waits=False)
        highest = max(version for id_, version in self._model_set.versions() if id_ == before.id)
        recipe = draft.model_copy(update={"version": highest + 1})
        reasons = [DraftValue(key, None, f"changed after version {before.version}") for key in keys]
        text = await asyncio.to_thread(checked_text, recipe, reasons)
        if (recipe.engine.name, recipe.engine.versions) != (before.engine.name, before.engine.versions):
            check_version(recipe)
        await self._check(recipe)
        if self._recipe(name) != before:  # the operator's files were reloaded meanwhile and take precedence
            return await self._edit(name, changes)
        await asyncio.to_thread(self._model_set.store.write, recipe, text)
        old = self._old_versions(recipe)
        if old:
            await asyncio.to_thread(self._model_set.store.remove, recipe.id, old)
        await self._model_set.reload()
        for version in old:
            await asyncio.to_thread(self._forget, f"{recipe.id}@{version}")
        waits = self._residency.exchanger.waiting(recipe.id) is not None
        return ModelEditedView(id=recipe.id, version=recipe.version, before=before.version, changed=keys, waits=waits)

    def _old_versions(self, newest: Recipe) -> list[int]:
        """The stored versions beyond the bound whose models nobody uses."""
        versions = sorted(version for id_, version in self._model_set.stored_versions() if id_ == newest.id)
        old = [*versions, newest.version][: -self._most_versions]
        return [version for version in old if not self._is_used(f"{newest.id}@{version}")]

    def _is_used(self, model: str) -> bool:
        """Whether a model is pinned, in memory, or about to be."""
        entry = self._residency.entries.get(model)
        return entry is not None and any(
            replica.pinned or replica.state not in (ModelState.ABSENT, ModelState.FAILED) or replica.queue.waiting
            for replica in entry.replicas
        )

    async def _check(self, recipe: Recipe) -> None:
        path = self._residency.get(recipe.id).path
        if path is None:
            return
        needs = await asyncio.to_thread(self._needs, recipe, path)
        plan = self._residency.preview(recipe.id, needs)
        if plan.verdict == "impossible":
            raise DoesNotFit(f"{plan.why} Nothing was changed.")

    def _needs(self, recipe: Recipe, path: Path) -> Estimate:
        if recipe.task is Task.CHAT:
            longest = longest_context(list_folder(path).json("config.json"))
            check_context(recipe.context_length, longest, recipe.engine.flags)
        return estimate(recipe, path, self._device.kind)

    # --- remove -----------------------------------------------------------------------------------------------------
    async def remove(self, name: str, *, force: bool = False, purge: bool = False) -> ModelRemovedView:
        """Remove a model, or one former version of it. Running requests finish.

        Its files are kept. With `purge`, files that were downloaded from a hub or converted here are deleted unless
        another model uses them.

        Raises Conflict for a model of the operator's own recipe files and, unless forced, for one that is pinned or
        has adapters.
        """
        async with self._model_set.writing:  # a concurrent edit would bring the model back
            recipe = self._recipe(name)
            model, _, _ = recipe.id.partition("@")
            gone = self._versions_to_remove(recipe, force)
            files = self._files_of({model, *(f"{model}@{version}" for version in gone)})
            if not recipe.is_former and self._names.everything.adapters(model):
                await asyncio.to_thread(self._state.adapters.remember_base, model, origin(recipe.source))
            await asyncio.to_thread(self._model_set.store.remove, model, sorted(gone))
            _, leaving = await self._model_set.follow()
        await wait_for_all(leaving)
        still = self._model_set.recipe(model)
        for one in (model, *(f"{model}@{version}" for version in gone)):
            if self._model_set.recipe(one) is None:
                await asyncio.to_thread(self._forget, one)
        self._names.refresh()
        freed = 0
        if purge:
            async with self._model_set.writing:  # holds back additions that may need the same files
                freed = await asyncio.to_thread(self._files.purge, files, self._files_in_use())
        remaining = still.version if still and not recipe.is_former else None
        return ModelRemovedView(id=recipe.id, versions=sorted(gone), still=remaining, freed_bytes=freed)

    def _versions_to_remove(self, recipe: Recipe, force: bool) -> set[int]:
        """The versions to remove. Raises as `remove`."""
        model, _, _ = recipe.id.partition("@")
        mine = {version for id_, version in self._model_set.stored_versions() if id_ == model}
        gone = {recipe.version} if recipe.is_former else mine
        if not gone & mine or (not recipe.is_former and self._model_set.is_from_operator(model)):
            raise Conflict(
                f"The recipe of '{recipe.id}' is in the server's own files (--recipes): take it out there, then have "
                "them read again: kill -HUP, or POST /v1/recipes/reload.",
                code="recipe_given",
                param="model",
            )
        if not recipe.is_former and not force:
            self._check_unused(model)
        return gone

    def _files_of(self, models: Iterable[str]) -> FilesInUse:
        entries = [self._residency.entries[model] for model in models if model in self._residency.entries]
        sources = [entry.recipe.source for entry in entries]
        return FilesInUse(
            frozenset(source for source in sources if isinstance(source, HubSource)),
            frozenset(entry.path for entry in entries if entry.path is not None),
        )

    def _files_in_use(self) -> FilesInUse:
        """Files that any model uses, or will use once its next recipe takes effect."""
        used = self._files_of(self._residency.entries)
        pending = {recipe.source for recipe in self._model_set.recipes() if isinstance(recipe.source, HubSource)}
        return FilesInUse(used.sources | pending, used.folders)

    def _check_unused(self, model: str) -> None:
        check_unpinned(self._residency.get(model))
        if adapters := [adapter.key.label for adapter in self._names.everything.adapters(model)]:
            count = "an adapter" if len(adapters) == 1 else f"{len(adapters)} adapters"
            raise Conflict(
                f"Model '{model}' is the base of {count} ({', '.join(adapters[:5])}). Remove first what stands on it, "
                "or force it (force=true, --force): that stays, out of use, until the model comes back.",
                code="model_in_use",
            )

    def _forget(self, model: str) -> None:
        """Delete the model's settings and measurements from the state."""
        models = self._state.models
        models.set_pin(model, None)
        models.forget(model)
        for alias, target in models.aliases().items():
            if target == model and not models.shares_aliases:
                models.remove_alias(alias)

    # --- show -------------------------------------------------------------------------------------------------------
    async def export(self, name: str) -> str:
        """The recipe as YAML, as written with its reasons or else as in effect."""
        recipe = self._recipe(name)
        model, _, _ = recipe.id.partition("@")
        text = await asyncio.to_thread(self._model_set.store.text, model, recipe.version)
        return text if text is not None else recipe_text(recipe.model_copy(update={"id": model}))


def _applied(data: dict[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    for key, value in changes.items():
        put(data, key, value)
        if value is None:
            _take(data, key)
    if not changes:
        raise BadRequest(
            f"Say what to change: {quoted('memory.kv_cache')} and its value, for example.", param="changes"
        )
    return data


def _take(data: dict[str, object], key: str) -> None:
    *way, last = key.split(".")
    for part in way:
        inner = data[part]
        assert isinstance(inner, dict)
        data = inner
    data.pop(last, None)
