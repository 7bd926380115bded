"""Register an adapter that a request names by its hub id or address, as LoRAX does.

`base:org/name@revision`, `base:s3://bucket/folder`, or the same in `adapter_id`, on a base whose recipe sets
`memory.adapters.on_demand`. Each source becomes an adapter of the caller's team under its own name (`name_of`), with
the usual limits, versions and checks. A branch is resolved only once.

| the adapter is | request |
|---|---|
| registered | continues |
| unknown | starts the download and waits `WAIT` for it |
| being downloaded | waits `WAIT` for that download, then gets a 503 with Retry-After |
| refused in the last `FORGET` seconds | gets the same error |
"""

import asyncio
import copy
import hashlib
import re
from dataclasses import replace

from cachetools import TTLCache

from adapters.remote import SCHEMES
from adapters.types import UrlSource
from registry.catalog import Catalog
from registry.errors import Forbidden, NotFound, QueueFull, RoundhouseError, Unavailable, short
from registry.recipes.definition import Recipe, Task
from registry.recipes.fields import HubSource, is_revision
from runtime.gateway.adapters import Adapters
from runtime.gateway.names import ModelRef, Names, not_allowed
from tenants.caller import Caller, Scope

WAIT = 30.0
"""Seconds that a request waits for a download. Clients retry after that."""
FORGET = 30.0
MOST_PER_TEAM = 4
"""Downloads of one team at a time."""
RETRY = 10.0
LONGEST = 1024
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}\Z", re.ASCII)
_Key = tuple[str, str, str]
"""Team, base, name."""


class OnDemand:
    """Registers adapters on demand, on the gateway's event loop."""

    def __init__(self, names: Names, adapters: Adapters) -> None:
        self._names, self._adapters = names, adapters
        self._running: dict[_Key, asyncio.Task[None]] = {}
        self._refused: TTLCache[_Key, RoundhouseError] = TTLCache(1024, FORGET)

    async def provide(self, model_ref: ModelRef, caller: Caller) -> ModelRef | None:
        """Register the adapter that a reference names. None if it names no allowed source.

        Raises Forbidden without the scopes, QueueFull, Unavailable (source_not_downloaded) while it is being
        downloaded, and the errors of a registration.
        """
        if model_ref.task is not Task.CHAT or model_ref.written_by not in (None, caller.team):
            return None
        match = _find(model_ref, self._names.visible_to(caller))
        if match is None or not match[0].memory.adapters.on_demand:
            return None
        recipe, text = match
        source, name, param = source_of(text), name_of(text), "adapter_id" if model_ref.adapter else "model"
        if source is None:
            return None
        known = replace(model_ref, name=recipe.id, adapter=name)
        try:
            self._names.resolve(known, caller)
        except NotFound:
            _check(source, caller, param)
            if not caller.sees(recipe.id, name):
                raise not_allowed(text) from None
            await self._register((caller.team, recipe.id, name), source, caller, param)
        return known

    def hint(self, model_ref: ModelRef, caller: Caller) -> str:
        """Say how to get an adapter that is named by its source, where the request cannot register it; else ''."""
        if model_ref.task is not Task.CHAT:
            return ""
        catalog, name = self._names.visible_to(caller), model_ref.name
        match = _find(model_ref, catalog)
        if match is not None:
            if match[1].startswith(("/", ".")):  # LoRAX takes it, with `adapter_source: local`
                return " A folder is registered first, under a name of its own: POST /v1/adapters."
            if match[0].memory.adapters.on_demand:
                return ""
            where = f"memory.adapters.on_demand in the recipe of '{match[0].id}'"
            return f" Register it first (POST /v1/adapters), or let requests do so: {where}."
        if model_ref.adapter is not None or not isinstance(name, str) or not source_of(name[:LONGEST]):
            return ""
        bases = (one.id for one in catalog.recipes.values() if one.memory.adapters.on_demand and not one.is_former)
        if (base := next(bases, None)) is None:
            return ""
        return f" If it is an adapter to be fetched, also name its base: '{base}:{short(name, 200)}'."

    async def close(self) -> None:
        """Cancel the downloads."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _register(self, key: _Key, source: HubSource | UrlSource, caller: Caller, param: str) -> None:
        if (refused := self._refused.get(key)) is not None:
            raise _with_param(refused, param)
        task = self._running.get(key)
        if task is None:
            if sum(team == key[0] for team, _, _ in self._running) >= MOST_PER_TEAM:
                raise QueueFull(
                    f"{MOST_PER_TEAM} adapters of your team are being downloaded: try again.", retry_after=RETRY
                )
            task = self._running[key] = asyncio.create_task(self._download(key, source, caller), name="on-demand")
            task.add_done_callback(lambda _: self._running.pop(key, None))
        done, _ = await asyncio.wait([task], timeout=WAIT)
        if not done:
            raise Unavailable(
                "The adapter is being downloaded: try again.",
                code="source_not_downloaded",
                param=param,
                retry_after=RETRY,
            )
        if (refused := self._refused.get(key)) is not None:
            raise _with_param(refused, param)
        task.result()

    async def _download(self, key: _Key, source: HubSource | UrlSource, caller: Caller) -> None:
        try:
            await self._adapters.register(key[2], key[1], source, caller)
        except RoundhouseError as error:
            self._refused[key] = error


def _with_param(error: RoundhouseError, param: str) -> RoundhouseError:
    """The same error with the field that named the source as its param."""
    again = copy.copy(error).with_traceback(None)
    again.param = param
    return again


def _check(source: HubSource | UrlSource, caller: Caller, param: str) -> None:
    """Check the scopes. URLs need `paths` like folders, since the server's credentials and network read them."""
    needed = [Scope.ADAPTERS, *([Scope.PATHS] if isinstance(source, UrlSource) else [])]
    for scope in needed:
        if scope not in caller.scopes:
            raise Forbidden(
                f"This key may not register the adapter that the request names: that needs the scope '{scope}'.",
                code="insufficient_scope",
                param=param,
            )


def _find(model_ref: ModelRef, catalog: Catalog) -> tuple[Recipe, str] | None:
    """Find base and source in a request's names."""
    name, text = model_ref.name, model_ref.adapter
    if text is None:
        if not isinstance(name, str):
            return None
        bases = [(name[:at], name[at + 1 :]) for at, letter in enumerate(name[:LONGEST]) if letter == ":"]
    elif isinstance(name, str):
        bases = [(name, text)]
    else:
        ids = [recipe.id for recipe in catalog.recipes.values() if recipe.task is Task.CHAT and not recipe.is_former]
        bases = [(ids[0], text)] if model_ref.optional and len(ids) == 1 else []
    matches = [
        (recipe, rest)
        for base, rest in bases
        if (recipe := catalog.recipes.get(catalog.aliases.get(base, base))) is not None
        and "/" in rest
        and len(rest) <= LONGEST
    ]
    sources = [one for one in matches if source_of(one[1]) is not None]  # not the '7b:org/name' of a model 'gpt'
    return next(iter((*sources, *matches)), None)


def source_of(text: str) -> HubSource | UrlSource | None:
    """Parse `org/name`, `org/name@revision` or a URL."""
    scheme, separator, rest = text.partition("://")
    if separator:
        fits = scheme in SCHEMES and rest.strip("/") and "@" not in rest and text.isprintable()
        return UrlSource(url=text) if fits else None
    repository, _, revision = text.partition("@")
    if not _REPOSITORY.match(repository) or not is_revision(revision or "main"):
        return None
    return HubSource(hub=repository, revision=revision or "main")


def name_of(text: str) -> str:
    """The name of a source's adapter: its last part without a query, and a digest of the whole source."""
    last = text.partition("?")[0].rstrip("/").partition("@")[0].rpartition("/")[2]
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", last)[:40].strip(".-_") or "adapter"
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
