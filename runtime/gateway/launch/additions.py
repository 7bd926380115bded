"""Add models while the server runs: inspect, propose, store, serve, fetch."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from launch.checks.checker import FileChecker
from launch.conversion import gguf
from launch.conversion.gguf import describe, gguf_of, listing_of
from launch.files.listing import list_folder, look
from launch.proposal.code import check_flags
from launch.proposal.draft import Machine
from launch.proposal.propose import Proposal, propose
from launch.recipe_store import checked_text
from launch.request import AddedModel, ModelRequest, Step, parse_source
from models import nvml
from registry.base.threads import Threads
from registry.base.wording import size_words
from registry.errors import Conflict, DoesNotFit, Unfit
from registry.files.sources import locate
from registry.files.weights import read_weights
from registry.recipes.definition import Recipe
from registry.recipes.fields import GgufSource, HubSource, origin
from registry.storage.files import unusable
from runtime.config.device import Device
from runtime.gateway.files import check_version
from runtime.gateway.launch.model_set import ModelSet
from runtime.gateway.names import Names
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import ResidencyManager
from runtime.residency.measurements import apply_estimate
from runtime.residency.policy import Plan

GUESSED_LOAD = 10.0
"""Assumed seconds of a load before one was measured."""
REMOVAL_PENDING = "a model of this name is being removed: its last requests finish first"


@dataclass(frozen=True, slots=True)
class Preview:
    """The effects of an addition. `text`: the proposed recipe with its reasons."""

    proposal: Proposal
    text: str
    plan: Plan
    to_fetch: int
    """Bytes to download from a hub."""
    short_by: int
    """Missing bytes of memory if it does not fit, else 0."""
    is_leaving: bool = False
    """Whether a model with its id is being removed; it is added once that one's last requests have ended."""

    @property
    def recipe(self) -> Recipe:
        return self.proposal.recipe


class Additions:
    """Adds models at run time. For `add` and `preview` see `launch.request`."""

    def __init__(
        self,
        model_set: ModelSet,
        names: Names,
        residency: ResidencyManager,
        device: Device,
        trusted: bool,
        checker: FileChecker,
    ) -> None:
        self._trusted, self._checker = trusted, checker
        self._model_set, self._names, self._residency = model_set, names, residency
        known = [nvml.capability(b.driver_name) for b in device.budgets] if device.kind == "cuda" else []
        capability = min((one for one in known if one is not None), default=None)
        self._machine = Machine(device.kind, max(b.bytes for b in device.budgets), capability)
        self._threads = Threads("hub of models", each=2)

    async def preview(self, request: ModelRequest) -> Preview:
        """Preview an addition, and whether it fits. Changes nothing.

        Raises BadRequest, NotFound, Unavailable (of a hub), Unfit for what cannot be served here, Conflict
        (name_in_use).
        """
        check_flags(request.overrides, self._trusted)
        try:
            proposal, text, to_fetch = await self._threads.run_for(request.team, self._propose, request)
        except OSError as error:
            raise Unfit(unusable(error), code="source_not_found", param="source") from error
        if not isinstance(source := proposal.recipe.source, HubSource):  # hub files are checked after the download
            folder = locate(source)
            if gguf_of(folder) is None:  # GGUF files are checked after the conversion
                await self._checker.check(proposal.recipe, folder, request.team)
        plan = self._residency.preview(proposal.recipe.id, proposal.estimate, GUESSED_LOAD)
        short = max(0, plan.needed - plan.budget) if plan.verdict == "impossible" else 0
        if not (is_leaving := self._model_set.is_leaving(proposal.recipe.id)):
            self._check_names(proposal.recipe, request)
        return Preview(proposal, text, plan, to_fetch, short, is_leaving)

    def _propose(self, request: ModelRequest) -> tuple[Proposal, str, int]:
        """Return the proposal, its recipe as text, and the bytes to download from a hub."""
        source = parse_source(request.source, request.revision)
        to_fetch, weights, unfit, is_gguf = 0, None, None, isinstance(source, GgufSource)
        if isinstance(source, HubSource):
            on_hub = gguf.look(source) if isinstance(source, GgufSource) else look(source)
            source, listing, to_fetch = on_hub.source, on_hub.listing, on_hub.to_fetch
        else:
            folder = locate(source)
            if (file := gguf_of(folder)) is not None:
                is_gguf = True
                listing = listing_of(file, describe(file))
            else:
                listing = list_folder(folder)
                try:
                    weights = read_weights(folder)
                except Unfit as error:  # detection may give a better error
                    unfit = error
        proposal = propose(listing, source, request, self._machine, weights=weights)
        if unfit is not None:
            raise unfit
        check_version(proposal.recipe)
        if is_gguf:
            proposal = replace(proposal, notes=(*proposal.notes, gguf.conversion_note(listing)))
        return proposal, checked_text(proposal.recipe, proposal.choices, proposal.notes), to_fetch

    async def add(self, request: ModelRequest) -> AsyncGenerator[Step | AddedModel, None]:
        """Add a model and yield the steps. Raises as `preview`, DoesNotFit, source errors."""
        yield Step("looking", detail=request.source)
        while True:
            preview = await self.preview(request)
            recipe = preview.recipe
            async with self._model_set.writing:  # if two requests add the same model, the second one finds it
                if not self._model_set.is_leaving(recipe.id):
                    is_new = self._check_names(recipe, request)
                    if is_new:
                        if preview.plan.verdict == "impossible":
                            raise DoesNotFit(advice(preview))
                        await asyncio.to_thread(self._model_set.store.write, recipe, preview.text)
                        await self._model_set.reload()
                    break
            yield Step("waiting", recipe.id, detail=REMOVAL_PENDING)
            await self._model_set.wait_until_removed(recipe.id)
        entry = self._residency.get(recipe.id)
        if entry.path is None:
            apply_estimate(entry, preview.proposal.estimate)
            self._residency.begin_fetch(entry)
        yield Step("added", recipe.id, total=preview.to_fetch or None, detail="new" if is_new else "unchanged")
        async for step in self.fetch_steps(entry):
            yield step
        yield AddedModel(entry.recipe, is_new)

    def _check_names(self, recipe: Recipe, request: ModelRequest) -> bool:
        """Check the names of an addition. Returns False if the same model exists already. Raises Conflict."""
        existing = self._model_set.recipe(recipe.id)
        if existing is not None:
            if existing.source == recipe.source and not request.overrides:
                return False
            raise Conflict(
                f"There is a model '{recipe.id}' already. Give another id, or change that one: roundhouse models edit "
                f"{recipe.id}.",
                code="name_in_use",
                param="id",
            )
        self._check_adapters(recipe)
        for name, param in ((recipe.id, "id"), *((alias, "overrides") for alias in recipe.aliases)):
            self._names.check_model(name, recipe.id, param, self._model_set.recipes())
        return True

    def _check_adapters(self, recipe: Recipe) -> None:
        """Raises Conflict if adapters remain of another model that had this id."""
        own = origin(recipe.source)
        others = {
            adapter.key.label: version.base_origin
            for adapter in self._names.everything.adapters(recipe.id)
            for version in adapter.versions
            if version.base_origin not in (None, own)
        }
        if others:
            raise Conflict(
                f"There are still adapters ({', '.join(list(others)[:5])}) of a model that was named '{recipe.id}' and "
                f"was at {next(iter(others.values()))}; on other weights they would answer wrongly. Remove them first "
                "(roundhouse adapters remove), give another id, or add the model from there.",
                code="name_in_use",
                param="id",
            )

    async def fetch_steps(self, entry: ModelEntry) -> AsyncGenerator[Step, None]:
        """Yield the steps of the download until it is complete. Raises the source's errors."""
        fetching = asyncio.ensure_future(self._residency.fetch(entry))
        try:
            while not fetching.done():
                if entry.progress is not None and entry.path is None:
                    fetched, total = entry.fetched or (0, None)
                    converts = entry.progress.phase == "converting"
                    yield Step(
                        "converting" if converts else "fetching", entry.id, fetched, total, entry.progress.detail
                    )
                await asyncio.wait({fetching}, timeout=0.2)
            await fetching
        finally:
            fetching.cancel()  # ends only this wait; the download continues

    def cancel(self, model: str) -> bool:
        """Stop a model's download. Returns False if there is none."""
        return self._residency.fetcher.cancel(self._residency.get(model))


def advice(preview: Preview) -> str:
    """Say whether it fits: at once, after which models have left, or what is missing."""
    plan = preview.plan
    if preview.is_leaving and plan.verdict != "impossible":
        return f"It comes a little later: {REMOVAL_PENDING}."
    if plan.victims:
        return f"It fits once {', '.join(victim.id for victim in plan.victims)} has left, to free {plan.lacks}."
    if plan.verdict == "wait":
        return f"It fits once a model that is busy, pinned or just loaded has left: it lacks {plan.lacks}."
    if plan.verdict != "impossible":
        return "It fits, in a slot that is added for it." if plan.adds_slot else "It fits."
    if preview.proposal.estimate.weights > plan.budget:
        hint = "Its weights alone are larger: add a smaller model, or a quantized one."
    else:
        hint = "A smaller context_length or memory.kv_cache would do, or fewer memory.adapters.device."
    lacks = f" It lacks {preview.short_by:,} bytes ({size_words(preview.short_by)})." if preview.short_by else ""
    return f"{plan.why}{lacks} {hint}"
