"""Use cases that combine adapters, or merge one into its base."""

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from adapters.compose.jobs import Combine, Method, WeightedAdapter, compose, plan
from adapters.compose.model import check_room, merge_model, needs, size_of
from adapters.fetch import disk_errors
from adapters.service import AdapterService
from adapters.types import ComposedAdapter
from models.sources.resolve import revision, stamp
from registry.base.turns import FairTurns, NoTurn
from registry.catalog import ResolvedName
from registry.errors import BadRequest, Conflict, EngineFailed, Unavailable
from registry.records import AdapterKey, Version
from registry.state.versions import check_alias
from runtime.gateway.adapters import Adapters, Registration
from runtime.gateway.names import Names
from tenants.caller import Caller

LONGEST_NAME = 128
"""Most characters of the names of base and adapter in a folder's name, which has at most 255 bytes."""
WAIT = 60.0
"""Seconds that a team's job waits for other teams' jobs."""


@dataclass(frozen=True, slots=True)
class Combination:
    """A client's request. `parts`: adapters by name, with their weights."""

    name: str
    parts: tuple[tuple[str, float], ...]
    method: Method
    density: float
    halves: bool = False
    seed: int = 0
    alias: str | None = None


class AdapterMergedView(msgspec.Struct, frozen=True, kw_only=True):
    """A merged model in a folder on the server, usable as the source in `POST /v1/models`."""

    object: Literal["adapter.merged"] = "adapter.merged"
    name: str
    base: str
    version: str
    digest: str
    output: str
    bytes: int


class Combiner:
    """Combines or merges, one job at a time because each uses all cores.

    A team may have one job. It waits `WAIT` seconds for its turn, so that no team that begins one after another keeps
    others out.
    """

    def __init__(self, names: Names, service: AdapterService, adapters: Adapters) -> None:
        self._names, self._service, self._adapters = names, service, adapters
        self._turns, self._teams = FairTurns(), set[str]()

    async def combine(self, combination: Combination, caller: Caller) -> Registration:
        """Combine adapters and register the result like any other adapter.

        Raises BadRequest, NotFound, Conflict, StorageExceeded before any work; Unavailable (combine_busy,
        compose_timeout, disk_full, storage_full), Conflict (adapter_deleted), EngineFailed (compose_failed); Unfit as a
        registration does.
        """
        async with self._turn(caller.team):
            return await self._combine(combination, caller)

    async def merge(self, name: str, caller: Caller, folder: Path) -> AdapterMergedView:
        """Merge base and adapter into a model below `folder`, unless it exists already.

        Raises BadRequest, NotFound, StorageExceeded, Unavailable (combine_busy, out_of_memory, disk_full,
        storage_full), Unfit, EngineFailed.
        """
        target = self._names.find(name, caller)
        [version] = _versions([target])
        key = version.key
        base = self._adapters.base_for(version.key.name, version.key.base, caller.team)
        async with self._turn(caller.team):
            await self._service.ready(version.digest)
            before = await asyncio.to_thread(stamp, base.path)
            base_revision = await asyncio.to_thread(revision, target.recipe.source, base.path)
            readable = f"{version.key.base}-{version.key.name}"[:LONGEST_NAME]
            words = f"{readable}-{version.digest[7:19]}-{base_revision[:12]}"
            out = folder / f"{caller.team}+{re.sub(r'[^A-Za-z0-9._-]', '-', words)}"
            if out.is_dir():
                size = await asyncio.to_thread(size_of, out)
            else:
                with disk_errors():
                    required = await asyncio.to_thread(_make_room, base.path, folder)
                    self._adapters.admit_merge(AdapterKey(key.base, key.name, caller.team), out.name, required)
                    trusted = target.recipe.engine.flags.get("trust_remote_code") is True
                    with self._service.reserve.hold(required):
                        size = await merge_model(base.path, self._service.stored(version).path, out, trusted=trusted)
                        if await asyncio.to_thread(stamp, base.path) != before:  # it may have parts of both revisions
                            await asyncio.to_thread(shutil.rmtree, out, ignore_errors=True)
                            raise Unavailable(
                                f"The files of model '{base.id}' changed while they were merged. Merge again once they "
                                "are complete."
                            )
        return AdapterMergedView(
            name=key.name, base=key.base, version=version.tag, digest=version.digest, output=str(out), bytes=size
        )

    @asynccontextmanager
    async def _turn(self, team: str) -> AsyncIterator[None]:
        if team in self._teams:
            raise _busy_error()
        self._teams.add(team)
        try:
            async with self._turns.take(team, WAIT):
                yield
        except NoTurn:
            raise _busy_error() from None
        finally:
            self._teams.remove(team)

    async def _combine(self, combination: Combination, caller: Caller) -> Registration:
        service = self._service
        if combination.alias is not None:
            check_alias(combination.alias)
        targets = [self._names.find(name, caller) for name, _ in combination.parts]
        versions = _versions(targets)
        self._adapters.check_name(versions[0].key.base, combination.name, caller)
        base = self._adapters.base_for(combination.name, versions[0].key.base, caller.team)
        kind, rank = plan(combination.method, [v.rank for v in versions], base.max_rank, halves=combination.halves)
        parts = []
        for version, (_, weight) in zip(versions, combination.parts, strict=True):
            await service.ready(version.digest)
            parts.append(WeightedAdapter(folder=service.stored(version).path, weight=weight))
        with disk_errors():
            service.incoming.mkdir(exist_ok=True)
        try:
            with disk_errors(), tempfile.TemporaryDirectory(dir=service.incoming) as folder:
                job = Combine(
                    base=base,
                    parts=tuple(parts),
                    kind=kind,
                    rank=rank,
                    density=combination.density,
                    seed=combination.seed,
                    out=Path(folder),
                )
                with service.reserve.hold(2 * sum(version.bytes for version in versions)):  # in float32
                    await compose(job, service.bounds.combine_seconds)
                source = ComposedAdapter(Path(folder), _words(combination, versions, kind))
                return await self._adapters.register(combination.name, base.id, source, caller, alias=combination.alias)
        except EngineFailed:
            if deleted := [
                name for (name, _), part in zip(combination.parts, parts, strict=True) if not part.folder.is_dir()
            ]:
                raise Conflict(
                    f"{', '.join(deleted)} was deleted while it was combined. Nothing was registered.",
                    code="adapter_deleted",
                ) from None
            raise


def _busy_error() -> Unavailable:
    return Unavailable("Another combination is being made. Try again.", code="combine_busy", retry_after=10)


def _make_room(base: Path, folder: Path) -> int:
    """Return the disk space that merging into `base` needs. Raises Unavailable (out_of_memory, disk_full)."""
    folder.mkdir(parents=True, exist_ok=True)
    required = needs(base)
    check_room(required, folder)
    return required.disk


def _versions(targets: list[ResolvedName]) -> list[Version]:
    versions = []
    for number, target in enumerate(targets):
        if target.version is None:
            raise BadRequest(f"'{target.recipe.id}' is a model; name an adapter.", param=f"adapters.{number}.name")
        versions.append(target.version)
    bases = sorted({version.key.base for version in versions})
    if len(bases) > 1:
        raise BadRequest(f"The adapters are of several bases: {', '.join(bases)}. Choose one base.", param="adapters")
    return versions


def _words(combination: Combination, versions: list[Version], kind: str) -> str:
    """Describe a combination for the version's source: '0.7 × legal@v2 + 0.3 × polite@v1, cat'."""
    weighted = zip(versions, combination.parts, strict=True)
    terms = " + ".join(f"{weight:g} × {version.key.label}@{version.tag}" for version, (_, weight) in weighted)
    more = f", density {combination.density:g}" if combination.method != "linear" else ""
    return f"{terms}, {kind}{more}" + (f", seed {combination.seed}" if combination.method == "dare" else "")
