"""Use cases of adapters, for HTTP and at startup: register, remove, alias, pin."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal
from weakref import WeakKeyDictionary

import msgspec
from msgspec.structs import replace as replaced

from adapters.content.copies import CopyReader
from adapters.service import AdapterService
from adapters.types import AdapterSource, Base, CheckedAdapter, ComposedAdapter, NamedSource, PublicHubSource
from registry.errors import BadRequest, Conflict, Forbidden, NotFound, RoundhouseError, Unavailable, Unfit
from registry.recipes.definition import Recipe
from registry.recipes.fields import HubSource, origin
from registry.records import Adapter, AdapterKey, Probe, Version
from registry.state.adapters import AdapterTable
from runtime.gateway.local.backend import reference
from runtime.gateway.names import Names
from runtime.gateway.request import limit_warning
from runtime.gateway.views.values import AdapterView, Digest, adapter_view
from runtime.residency.entry import ModelEntry
from runtime.residency.manager import ResidencyManager
from runtime.scheduling.queue import ModelQueue
from tenants.caller import Caller, Scope
from tenants.limits.stored import StorageLimiter

log = logging.getLogger("roundhouse.gateway")


def _may_change(key: AdapterKey, caller: Caller) -> bool:
    return key.team == caller.team or Scope.ADMIN in caller.scopes


@dataclass(frozen=True, slots=True)
class Registration:
    """A registered adapter, the tag of its version, and whether that version is new."""

    adapter: AdapterView
    tag: str
    is_new: bool
    warnings: tuple[str, ...] = ()
    """Exceeded limits that only warn."""

    @property
    def headers(self) -> dict[str, str]:
        return limit_warning(self.warnings)


class AdapterDeletedView(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["adapter.deleted"] = "adapter.deleted"
    name: str
    base: str
    deleted: bool = True
    digests: list[Digest]  # nothing refers to these any more


class Adapters:
    def __init__(
        self,
        names: Names,
        residency: ResidencyManager,
        service: AdapterService,
        storage: StorageLimiter,
    ) -> None:
        self._names, self._residency, self._service, self._storage = names, residency, service, storage
        self._pinned = WeakKeyDictionary[ModelQueue, set[str]]()
        """Pinned digests of each queue."""
        self.copied: Callable[[Version], Awaitable[None]] | None = None
        """Waits until another server of the fleet has the files of a new version. None without a fleet."""
        self._faults: dict[str, dict[str, str]] = {}
        """Refused adapters of the recipes as last read, by model."""

    @property
    def faults(self) -> dict[str, str]:
        """Adapters of recipes that could not be registered, with the reason."""
        served = {model: faults for model, faults in self._faults.items() if model in self._residency.entries}
        return {f"{model}:{name}": why for model, faults in served.items() for name, why in faults.items()}

    # --- look up ----------------------------------------------------------------------------------------------------
    def is_stored(self, digest: str) -> bool:
        """Whether its files are on this server. Another server of the fleet may have registered it."""
        return digest in self._service.stored_digests

    async def open_copy(self, digest: str) -> CopyReader:
        """Open the files of an adapter for another server of the fleet. Raises NotFound."""
        return await self._service.open_copy(digest)

    @property
    def incoming(self) -> Path:
        """The folder for uploaded archives until they are registered."""
        return self._service.incoming

    def all(self, caller: Caller, base: str | None = None) -> Iterator[AdapterView]:
        """Iterate over the team's own and shared adapters, or those of all teams for an administrator.

        Includes those whose base was removed.
        """
        entry = self._base(base, caller.team) if base else None
        adapters = self._names.managed_by(caller).adapters(entry.id if entry else None)
        return (self._view(adapter, caller) for adapter in adapters)

    def show(self, name: str, caller: Caller) -> AdapterView:
        """Raises NotFound, BadRequest (ambiguous_model)."""
        key = self._names.managed_by(caller).adapter(name).key
        return self._view(self._service.show(key), caller)

    def _view(self, adapter: Adapter, caller: Caller) -> AdapterView:
        """Build the caller's view. Files, source, probe and usage of another team's adapter are left out."""
        entry = self._residency.entries.get(adapter.key.base)  # its recipe may have been removed
        queue = None if entry is None else entry.queue
        notes, made_for = self._service.notes.of(adapter.current.digest), adapter.current.base_origin
        if entry is not None and made_for not in (None, now := origin(entry.recipe.source)):
            notes = (*notes, f"It was registered for another base: {made_for}, which is now {now}.")
        view = adapter_view(adapter, self._names.managed_by(caller).spelled(adapter.key), queue, notes)
        if _may_change(adapter.key, caller):
            return view
        versions = [replaced(version, source="") for version in view.versions]
        private = dict.fromkeys(("probe", "running", "waiting", "hits", "misses", "evictions", "last_used"))
        return replaced(view, source="", versions=versions, notes=[], **private)

    def _owned(self, name: str, caller: Caller) -> AdapterKey:
        """Resolve an adapter that the caller may change. Raises NotFound, BadRequest, Forbidden."""
        key = self._names.managed_by(caller).adapter(name).key
        if not _may_change(key, caller):
            raise Forbidden(
                f"'{name}' belongs to the team '{key.team}', which shares it: your team may use it, and not change it.",
                code="not_your_adapter",
            )
        return key

    def _base(self, name: str, team: str) -> ModelEntry:
        resolved = self._names.catalog.of(team).resolve(name)  # error messages must not reveal other teams' adapters
        if resolved.adapter_name is not None:
            raise BadRequest(f"'{name}' is an adapter; 'base' must name a model.", param="base")
        return self._residency.get(resolved.recipe.id)

    def only_base(self) -> str:
        """Return the base for calls that name none, if exactly one model takes adapters."""
        takers = [e.id for e in self._residency.entries.values() if e.recipe.memory.adapters.device]
        if len(takers) != 1:
            names = ", ".join(takers) or "none"
            raise BadRequest(f"Say which base: 'base_model_name' is needed here. Models that take adapters: {names}.")
        return takers[0]

    def check_name(self, base: str, name: str | None, caller: Caller) -> None:
        """Check names before an upload. Raises NotFound, BadRequest, Conflict, StorageExceeded."""
        entry = self._base(base, caller.team)
        if name is not None:
            key = AdapterKey(entry.id, name, caller.team)
            self._names.check_adapter(key)
            self._storage.check(key, self._service.list)

    def admit_merge(self, key: AdapterKey, name: str, size: int) -> None:
        """Check that the team may store a merged model of this size. Raises StorageExceeded."""
        self._storage.admit(key, self._service.list, name, size)

    # --- registration -----------------------------------------------------------------------------------------------
    async def check(self, name: str, base: str, source: AdapterSource, caller: Caller) -> tuple[str, CheckedAdapter]:
        """Run every check of a registration without storing anything. Raises Unfit with all faults."""
        where = self.base_for(name, base, caller.team)
        source = _permitted(source, caller)
        checked = await self._service.validate(where, source, team=caller.team, trusted=_may_template(source, caller))
        self._check_owner(checked, source, where.id, caller.team)
        return where.id, checked

    async def register(
        self,
        name: str,
        base: str,
        source: AdapterSource,
        caller: Caller,
        *,
        probe: Probe | None = None,
        alias: str | None = None,
        shared: bool | None = None,
    ) -> Registration:
        """Register a new version of a name. Registering the current content again changes nothing.

        shared: whether all teams may use it. None keeps the present setting; new adapters are private to the team.

        Raises Forbidden (upload_needed) for a source that only names what another team owns, StorageExceeded.
        """
        where, team = self.base_for(name, base, caller.team), caller.team
        key, warnings = AdapterKey(where.id, name, team), tuple[str, ...]()
        self._storage.check(key, self._service.list)
        source = _permitted(source, caller)

        def accept(checked: CheckedAdapter) -> None:
            nonlocal warnings
            self._names.check_adapter(key)  # again: its files may have taken minutes to arrive
            self._check_owner(checked, source, where.id, team)
            warnings = self._storage.admit(key, self._service.list, checked.digest, checked.bytes)

        done = await self._service.register(
            name,
            where,
            source,
            probe=probe,
            alias=alias,
            team=team,
            shared=shared,
            accept=accept,
            trusted=_may_template(source, caller),
        )
        view = self._changed(done.adapter, caller)
        if done.unreferenced:
            await self._forget(key.base, done.unreferenced)
        if self.copied is not None:
            await self.copied(done.version)
        return Registration(view, done.version.tag, done.created, warnings)

    def _check_owner(self, checked: CheckedAdapter, source: AdapterSource, base: str, team: str) -> None:
        """Raises Forbidden (upload_needed) for unshared content that other teams own.

        Naming a source does not prove that the caller has the content.
        """
        if not isinstance(source, NamedSource):
            return
        digest = checked.digest
        owners = [one for one in self._service.list(base) if any(v.digest == digest for v in one.versions)]
        if owners and not any(owner.shared or owner.key.team == team for owner in owners):
            raise Forbidden(
                "This adapter cannot be taken from a source that is only named. Upload its files.",
                code="upload_needed",
                param="source",
            )

    async def register_from_recipe(self, recipe: Recipe) -> None:
        """Register a recipe's adapters for all teams, and record refusals in `faults`."""
        refused: dict[str, str] = {}
        self._faults[recipe.id] = refused
        for declared in recipe.adapters:
            key = AdapterKey(recipe.id, declared.name)
            current = next((one.current for one in self._service.list(recipe.id) if one.key == key), None)
            same_base = current is not None and current.base_origin in (None, origin(recipe.source))
            if same_base and current is not None and (self.copied is None or self.is_stored(current.digest)):
                continue
            try:
                base = self._checked_base(self._residency.get(recipe.id), key)
                accept = partial(_check_same, current)
                done = await self._service.register(
                    declared.name, base, declared.source, shared=True, trusted=True, accept=accept
                )
                if declared.pin:
                    self._apply_pins(recipe.id, replace(done.adapter, pinned=True))
                    await self._service.pin(key, True)
            except _OtherContentError:
                continue  # another server of the fleet sends its files
            except Exception as error:  # no single adapter may keep the others, or the server, from becoming ready
                message = error.message if isinstance(error, RoundhouseError) else f"{type(error).__name__}: {error}"
                faults = "; ".join(error.faults) if isinstance(error, Unfit) else ""
                refused[declared.name] = f"{message} {faults}".strip()
                log.error("adapter of a recipe refused", extra={"adapter": declared.name, "cause": message})
        self._apply_pins(recipe.id)

    def base_for(self, name: str, base: str, team: str) -> Base:
        """Return the base for which a team may register `name`. Raises the errors of a registration."""
        entry = self._base(base, team)
        return self._checked_base(entry, AdapterKey(entry.id, name, team))

    def _checked_base(self, entry: ModelEntry, key: AdapterKey) -> Base:
        """Return the model as a base. Raises as `Names.check_adapter`, or Unavailable if its files are missing."""
        self._names.check_adapter(key)
        if entry.broken is not None:
            raise entry.broken
        if entry.path is None:
            raise Unavailable(
                f"The files of model '{entry.id}' are not here yet: load it first, then its adapters can be checked.",
                code="source_not_downloaded",
                retry_after=entry.load_seconds,
            )
        return Base(entry.id, entry.path, entry.recipe.memory.adapters.max_rank, origin(entry.recipe.source))

    # --- changes ----------------------------------------------------------------------------------------------------
    async def remove(
        self, name: str, version: str | None, caller: Caller, *, force: bool = False
    ) -> AdapterDeletedView:
        """Remove an adapter, or one version. Raises Conflict while it is in use or has an alias."""
        key = self._owned(name, caller)
        gone = await self._service.remove(key, version, force=force)
        self._names.refresh()
        self._apply_pins(key.base)
        await self._forget(key.base, gone)
        return AdapterDeletedView(name=key.name, base=key.base, digests=list(gone))

    async def _forget(self, base: str, digests: Iterable[str]) -> None:
        """Remove adapters that no name refers to any more from engines, and their files."""
        if entry := self._residency.entries.get(base):  # its recipe may have been removed
            for digest in digests:
                for replica in entry.replicas:
                    replica.queue.forget_adapter(digest)
        try:
            await self._service.collect()
        except (RoundhouseError, OSError) as error:  # already unregistered; the next start or removal deletes the files
            log.warning("files of removed adapters stay for now", extra={"cause": str(error)})

    async def change(
        self, name: str, change: Callable[[AdapterTable, AdapterKey], Adapter], caller: Caller
    ) -> AdapterView:
        """Change aliases or the current version by a method of the table. Raises NotFound, Conflict, Forbidden."""
        return self._changed(await self._service.change(self._served(name, caller), change), caller)

    async def share(self, name: str, shared: bool, caller: Caller) -> AdapterView:
        """Share it with all teams, or make it private again."""
        return self._changed(await self._service.share(self._served(name, caller), shared), caller)

    async def pin(self, name: str, pinned: bool, caller: Caller) -> AdapterView:
        """Pin the current version to its place, or unpin it. Raises Conflict if no place may be pinned."""
        key = self._served(name, caller)
        changed = replace(self._service.show(key), pinned=pinned)
        self._apply_pins(key.base, changed)  # raises Conflict before the registry changes
        return self._changed(await self._service.pin(key, pinned), caller)

    def _served(self, name: str, caller: Caller) -> AdapterKey:
        """Like `_owned`, for an adapter whose base is served."""
        key = self._owned(name, caller)
        if key.base not in self._residency.entries:
            raise NotFound(
                f"The model '{key.base}' of adapter '{name}' is not served any more: add it, or remove the adapter.",
                code="model_not_found",
                param="base",
            )
        return key

    def _changed(self, adapter: Adapter, caller: Caller) -> AdapterView:
        """Apply a change of an adapter to names and pins."""
        self._names.refresh()
        self._apply_pins(adapter.key.base)
        return self._view(adapter, caller)

    async def follow(self) -> None:
        """Apply changes by other servers of the fleet to names, pins and files."""
        gone = self._service.unused()
        for base, entry in self._residency.entries.items():
            for digest in gone:
                for replica in entry.replicas:
                    replica.queue.forget_adapter(digest)
            self._apply_pins(base)
        if gone:
            await self._service.collect()

    def _apply_pins(self, base: str, changed: Adapter | None = None) -> None:
        """Pin exactly the current versions of a base's pinned adapters.

        Several adapters may have the same content, which stays pinned as long as one of them is.

        changed: an adapter as it will be. Raises Conflict if this one finds no place; others are skipped.
        """
        entry = self._residency.entries.get(base)
        if entry is None:  # its recipe was removed
            return
        for replica in entry.replicas:
            self._apply_pins_to(replica.queue, base, changed)

    def _apply_pins_to(self, queue: ModelQueue, base: str, changed: Adapter | None) -> None:
        pins = self._pinned.setdefault(queue, set())
        adapters = [changed if changed and one.key == changed.key else one for one in self._service.list(base)]
        pinned = {adapter.current.digest: adapter for adapter in adapters if adapter.pinned}
        for digest in pins - pinned.keys():
            pins.discard(digest)
            queue.unpin_adapter(digest)
        for digest, one in pinned.items():
            if digest in pins and one is not changed:
                continue
            if self.copied is not None and not self.is_stored(digest):
                continue  # its files are still being copied
            try:
                queue.pin_adapter(reference(self._service.stored(one.current)))
            except Conflict as error:
                if one is changed:
                    raise
                log.error("a pinned adapter is not held", extra={"adapter": one.key.name, "cause": error.message})
            else:
                pins.add(digest)


class _OtherContentError(Exception):
    """The fleet has different content under the name of a recipe's adapter."""


def _check_same(current: Version | None, checked: CheckedAdapter) -> None:
    if current is not None and current.digest != checked.digest:
        raise _OtherContentError


def _may_template(source: AdapterSource, caller: Caller) -> bool:
    """Whether the caller may register a chat template, which is a program."""
    return Scope.MODELS in caller.scopes or isinstance(source, ComposedAdapter)


def _permitted(source: AdapterSource, caller: Caller) -> AdapterSource:
    """Return the source with the caller's rights: only the scope `paths` may use the server's hub token."""
    if isinstance(source, HubSource) and Scope.PATHS not in caller.scopes:
        return PublicHubSource(hub=source.hub, revision=source.revision)
    return source
