"""Use cases of models: list, load, unload, plan, pin, estimates, aliases."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from msgspec.structs import replace as replaced

from registry.base.wording import quoted
from registry.catalog import Catalog
from registry.errors import NotFound, RoundhouseError
from registry.recipes.definition import Tier
from registry.state.database import State
from runtime.gateway.files import ModelFiles
from runtime.gateway.names import Names, untagged
from runtime.gateway.views.engine_series import engine_texts
from runtime.gateway.views.facts import FileFacts, file_facts
from runtime.gateway.views.signal import SignalListView, kv_use_of, signal_of
from runtime.gateway.views.values import (
    AdapterCardView,
    ModelView,
    PlanView,
    adapter_card,
    adapter_cards,
    model_view,
    plan_view,
)
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import ResidencyManager
from runtime.slots.pool import SlotPool
from tenants.caller import EVERYBODY, Caller, Scope


class Models:
    def __init__(
        self, names: Names, residency: ResidencyManager, pool: SlotPool, state: State, files: ModelFiles
    ) -> None:
        self._names, self._residency, self._pool, self._state, self._files = names, residency, pool, state, files

    # --- look up ----------------------------------------------------------------------------------------------------
    def all(self, caller: Caller) -> Iterator[ModelView | AdapterCardView]:
        """Iterate over the models that the caller may use, then the adapters."""
        catalog = self._names.visible_to(caller)
        entries = [entry for entry in self._residency.entries.values() if entry.id in catalog.recipes]
        for entry in entries:
            yield redacted(self._view(entry, catalog), caller)
        for entry in entries:
            yield from adapter_cards(catalog.adapters(entry.id), catalog.spelled, entry)

    def views(self, caller: Caller | None = None) -> list[ModelView]:
        """List all models with the adapters that the caller may use. None: the operator, who may use all."""
        catalog = None if caller is None else self._names.visible_to(caller)
        return [self._view(entry, catalog) for entry in self._residency.entries.values()]

    def show(self, name: str, caller: Caller = EVERYBODY) -> ModelView | AdapterCardView:
        """A model or adapter, with the progress of a load. Raises NotFound, Forbidden."""
        resolved = self._names.find(name, caller)
        entry = self._residency.get(resolved.recipe.id)
        catalog = self._names.visible_to(caller)
        if resolved.version is None:
            return redacted(self._view(entry, catalog), caller)
        key = resolved.version.key
        return adapter_card(self._state.adapters.get(key), catalog.spelled(key), entry, resolved.version)

    def untagged(self, name: str, caller: Caller) -> str:
        """Strip `:latest`, which Ollama's clients append."""
        return untagged(name, self._names.catalog.of(caller.team))

    def facts(self, model: str) -> Callable[[], FileFacts]:
        """Return a function, to run in a thread, that reads facts from a model's files."""
        return partial(file_facts, self._residency.get(model))

    def _view(self, entry: ModelEntry, catalog: Catalog | None = None) -> ModelView:
        catalog = catalog or self._names.everything
        adapters = [catalog.spelled(adapter.key) for adapter in catalog.adapters(entry.id)]
        return model_view(entry, self._tier(entry.lead), catalog.aliases, adapters)

    def _tier(self, entry: ModelEntry) -> Tier:
        """The model's tier, pre-warmed slots counted."""
        warm = (slot.prewarmed for slot in self._pool.prewarmed() if slot.warm)
        if entry.tier is Tier.DISK and entry.recipe.engine.name in warm:
            return Tier.PREWARMED
        return entry.tier

    def _entry(self, name: str) -> ModelEntry:
        return self._residency.get(self._names.model(name).id)

    async def signals(self, name: str | None) -> SignalListView:
        """Return a model's work and the replicas it needs, or those of all models. Raises NotFound."""
        entries = list(self._residency.entries.values()) if name is None else [self._entry(name)]
        texts = await engine_texts(replica for entry in entries for replica in entry.replicas)
        return SignalListView(data=[signal_of(entry, kv_use_of(texts, entry)) for entry in entries])

    # --- residency by hand ------------------------------------------------------------------------------------------
    async def load(self, name: str, *, wait: bool = True) -> ModelView:
        """Load the model, or only start loading it if `wait` is false. Raises the load's error."""
        entry = self._entry(name)
        if wait:
            await self._residency.load(entry)
        else:
            self._residency.begin_load(entry)
        return self._view(entry)

    async def unload(self, name: str, *, force: bool = False) -> ModelView:
        """Unload the model once its requests have ended. Raises Conflict if it is pinned, unless forced."""
        entry = self._entry(name)
        await self._residency.unload(entry, force)
        return self._view(entry)

    def cut_off(self, error: RoundhouseError) -> None:
        """Fail the requests that run or wait on this machine, because the time that a stop leaves them is over."""
        self._residency.cut_off(error)

    def plan(self, name: str) -> PlanView:
        """Plan a load. Changes nothing."""
        return plan_view(*self._residency.plans(self._entry(name)))

    async def pin(self, name: str, pinned: bool) -> ModelView:
        """Pin a model so that it is never evicted, or unpin it. Does not load it."""
        entry = self._entry(name)
        await asyncio.to_thread(self._state.models.set_pin, entry.id, pinned)
        self._residency.pin(entry, pinned)
        return self._view(entry)

    async def forget_estimate(self, name: str) -> ModelView:
        """Discard measured sizes, so that the next plan uses the size of the files."""
        entry = self._entry(name)
        await self._files.forget_estimate(entry)
        return self._view(entry)

    # --- aliases ----------------------------------------------------------------------------------------------------
    async def set_alias(self, alias: str, name: str) -> ModelView:
        """Add an alias to the model, or move it here from another model."""
        async with self._names.registering:
            self._names.check_not_taken(alias, "model", "alias")
            recipe = self._names.catalog.check_alias(alias, name)
            await asyncio.to_thread(self._state.models.set_alias, alias, recipe.id)
            self._names.refresh()
        return self._view(self._residency.get(recipe.id))

    async def remove_alias(self, alias: str, name: str) -> ModelView:
        """Remove an alias that was added by a call. Aliases in recipes stay."""
        async with self._names.registering:
            entry = self._entry(name)
            if self._names.catalog.aliases.get(alias) != entry.id:
                message = f"Model '{entry.id}' has no alias {quoted(alias)}."
                raise NotFound(message, code="alias_not_found", param="alias")
            await asyncio.to_thread(self._state.models.remove_alias, alias)
            self._names.refresh()
        return self._view(entry)


def redacted(view: ModelView, caller: Caller) -> ModelView:
    """Remove figures about other teams' usage, for callers without management scopes."""
    if caller.scopes & {Scope.MODELS, Scope.ADMIN}:
        return view
    return replaced(view, running=None, waiting=None, last_used=None, replicas=[])
