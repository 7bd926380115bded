"""Models that `POST /v1/adapters/{name}/merge` wrote: listed, and deleted while no model is served from them."""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from adapters.compose.model import size_of
from adapters.fetch import disk_errors
from registry.base.wording import quoted
from registry.errors import Conflict, NotFound
from registry.recipes.fields import PathSource
from runtime.gateway.launch.model_set import ModelSet
from runtime.gateway.views.values import Count, Epoch
from runtime.residency.manager import ResidencyManager
from tenants.caller import Caller, Scope

MERGED = "merged"
"""Folder for merged models in the data directory."""


class MergedModelView(msgspec.Struct, frozen=True, kw_only=True):
    """A merged model in a folder on the server."""

    object: Literal["merged.model"] = "merged.model"
    name: str
    team: str | None
    output: str
    bytes: Count
    created: Epoch
    models: list[str]  # served from it


class MergedModelListView(msgspec.Struct, frozen=True):
    data: list[MergedModelView]
    object: Literal["list"] = "list"


class MergedModelDeletedView(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["merged.deleted"] = "merged.deleted"
    name: str
    deleted: bool = True
    freed_bytes: Count


def merged_sizes(folder: Path) -> Callable[[str], Mapping[str, int]]:
    """Return a function that gives the bytes of a team's merged models below `folder`, by name."""
    return lambda team: {out.name: size_of(out) for out in folder.glob(f"{team}+*/")}


def tidy_merged(folder: Path) -> None:
    """Clean up `folder` at startup after a server that was killed during a merge."""
    for unfinished in folder.glob(".*"):
        shutil.rmtree(unfinished, ignore_errors=True)


class MergedModels:
    """The merged models below `folder`. Teams see their own, administrators all, also those that name no team."""

    def __init__(self, folder: Path, model_set: ModelSet, residency: ResidencyManager) -> None:
        self._folder, self._model_set, self._residency = folder, model_set, residency

    async def all(self, caller: Caller) -> list[MergedModelView]:
        """Return the caller's merged models, by name."""
        return await asyncio.to_thread(self._read, self._sources(), caller)

    async def delete(self, name: str, caller: Caller) -> MergedModelDeletedView:
        """Delete a merged model. Raises NotFound, Conflict (merged_in_use) while a model is served from it."""
        async with self._model_set.writing:  # no model is added from it meanwhile
            models = await asyncio.to_thread(self._read, self._sources(), caller)
            merged = next((one for one in models if one.name == name), None)
            if merged is None:
                raise NotFound(
                    f"There is no merged model {quoted(name)}; GET /v1/merged lists them.", code="merged_not_found"
                )
            if merged.models:
                raise Conflict(
                    f"{', '.join(merged.models)} is served from the merged model '{name}'. Remove what uses it first.",
                    code="merged_in_use",
                )
            with disk_errors():
                aside = await asyncio.to_thread(self._set_aside, name)
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True))
        return MergedModelDeletedView(name=name, freed_bytes=merged.bytes)

    def _set_aside(self, name: str) -> Path:
        """Rename it to what the next start deletes if this server is killed meanwhile."""
        aside = Path(tempfile.mkdtemp(prefix=f".{name}-"[:200], dir=self._folder))
        (self._folder / name).rename(aside)
        return aside

    def _sources(self) -> list[tuple[str, Path]]:
        """Return the folders of all models that are served, or will be, or leave, with the models' ids."""
        recipes = [*self._model_set.recipes(), *(entry.recipe for entry in self._residency.entries.values())]
        named = [(one.id, Path(one.source.path)) for one in recipes if isinstance(one.source, PathSource)]
        read = [(entry.model, entry.path) for entry in self._residency.entries.values() if entry.path is not None]
        return sorted({*named, *read})

    def _read(self, sources: list[tuple[str, Path]], caller: Caller) -> list[MergedModelView]:
        return list(self._views([(model, path.resolve()) for model, path in sources], caller))

    def _views(self, sources: list[tuple[str, Path]], caller: Caller) -> Iterator[MergedModelView]:
        for out in sorted(self._folder.glob("[!.]*/")):
            team, names_team, _ = out.name.partition("+")
            if Scope.ADMIN in caller.scopes or (names_team and team == caller.team):
                real = out.resolve()
                users = {model for model, path in sources if path.is_relative_to(real)}
                with suppress(FileNotFoundError):  # deleted meanwhile
                    yield MergedModelView(
                        name=out.name,
                        team=team if names_team else None,
                        output=str(out),
                        bytes=size_of(out),
                        created=out.stat().st_mtime,
                        models=sorted(users),
                    )
