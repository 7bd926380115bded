"""Rows of the model table, filled from recipes and, once fetched, from files."""

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from packaging.specifiers import SpecifierSet

from launch.checks.checker import FileChecker
from launch.conversion.whisper import Conversions
from models.engines import engine_version
from models.estimate import estimate
from models.messages import Progress
from models.sources import repository
from models.sources import resolve as sources
from models.sources.fetching import Downloads
from registry.errors import RoundhouseError, Unavailable, Unfit
from registry.recipes.definition import Recipe, Task
from registry.recipes.fields import GgufSource, HubSource, Source
from registry.state.database import State
from registry.storage.files import unusable
from registry.storage.reserve import DiskReserve
from runtime.config.device import Device
from runtime.residency.entry import ModelEntry
from runtime.residency.measurements import FileEstimates, apply_files, forget, load_history
from runtime.scheduling.queue import ModelQueue

log = logging.getLogger("roundhouse.gateway")
TRANSIENT_CODES = frozenset({"hub_unavailable", "disk_full", "storage_full", "download_ended", "download_failed",
                     "bad_download", "source_not_stored", "download_cancelled"})  # fmt: skip
"""Codes of errors that a retry may resolve, so they do not mark the model as failed."""
UNKNOWN = "unknown"
"""Revision of a model whose files are missing or unreadable."""


@dataclass(frozen=True, slots=True)
class FilesInUse:
    """The files that a set of models uses."""

    sources: frozenset[HubSource]
    """Their repositories."""
    folders: frozenset[Path]
    """The folders that their engines read."""


class QueueMaker(Protocol):
    """Makes a model's queue or, given the queue of the first replica, that of another one."""

    def __call__(self, recipe: Recipe, first: ModelQueue | None = None, number: int = 1) -> ModelQueue: ...


class ModelFiles:
    """Reads, fetches and deletes models' files.

    Args:
        converted: folder for conversions.
        reserve: disk space to keep free there.
        checker: checks files from a hub.
    """

    def __init__(
        self,
        state: State,
        device: Device,
        converted: Path,
        reserve: DiskReserve,
        checker: FileChecker,
    ) -> None:
        self._state, self._device, self._checker = state, device, checker
        self._downloads, self._conversions = Downloads(), Conversions(converted, reserve=reserve)

    def tidy(self) -> None:
        """Clean up at startup after a server that was killed. Blocks."""
        self._conversions.tidy()

    def entry(self, recipe: Recipe, make_queue: QueueMaker) -> ModelEntry:
        """Create the model's row, linked with those of its further replicas.

        A model without files is listed with the reason.
        """
        entry = ModelEntry(
            recipe=recipe,
            path=None,
            revision=UNKNOWN,
            needed=0,
            needed_detail="",
            load_seconds=10.0,
            queue=make_queue(recipe),
            pinned=self._state.models.pins().get(recipe.id, recipe.residency.pin),
        )
        self.read_files(recipe)(entry)
        add_replicas(entry, make_queue)
        return entry

    def read_files(self, recipe: Recipe) -> Callable[[ModelEntry], None]:
        """Read a model's files in this thread, and return a function that fills in its row."""
        try:
            with _readable():
                path = sources.resolve(recipe.source, Path.cwd(), download=False)
                served = self._conversions.find(recipe, path)
                if served is None:
                    return _leave_as_is  # converted on first use
                files = self._files(recipe, served)
        except RoundhouseError as error:
            if error.code == "source_not_downloaded":  # fetched on first use
                return _leave_as_is
            broken = _broken(recipe, error)
            log.error("model cannot be loaded", extra={"model": recipe.id, "cause": error.message})
            return lambda entry: setattr(entry, "broken", broken)
        known = load_history(recipe, self._state, self._device)
        return lambda entry: apply_files(entry, files, known)

    async def fetch(self, entry: ModelEntry, on_progress: sources.Fetched) -> None:
        """Fetch the model's files if they are missing or damaged. Raises the source's errors."""
        recipe = entry.recipe
        try:
            with _readable():
                if isinstance(recipe.source, HubSource):
                    path = await self._downloads.fetch(recipe.source, on_progress)
                    if not isinstance(recipe.source, GgufSource):  # GGUF files are checked once they are converted
                        await self._checker.check(recipe, path)
                else:
                    path = await asyncio.to_thread(sources.resolve, recipe.source, Path.cwd())
                path = await self._converted(entry, path)
                files = await asyncio.to_thread(self._files, recipe, path)
        except RoundhouseError as error:
            if error.code in TRANSIENT_CODES:
                raise
            entry.broken = _broken(recipe, error)
            raise entry.broken from error
        entry.broken = None
        apply_files(entry, files, await asyncio.to_thread(load_history, recipe, self._state, self._device))

    async def _converted(self, entry: ModelEntry, folder: Path) -> Path:
        """Return the folder that the engine reads, and convert the model's files if necessary."""
        recipe = entry.recipe
        if await asyncio.to_thread(self._conversions.find, recipe, folder) is None:
            entry.progress = Progress(phase="converting", fraction=0.0)
        path = await self._conversions.make(recipe, folder, partial(_report_conversion, entry))
        if recipe.task is Task.CHAT and path not in (folder, entry.path):
            await self._checker.check(recipe, path)
        return path

    async def revise(self, entry: ModelEntry) -> Hashable:
        """Read a model's revision again before a load, because files in an operator's folder may have changed.

        Converts changed files again if necessary. Returns their stamp. Raises Unavailable for files that cannot be
        read, and the errors of a conversion.
        """
        source = entry.recipe.source
        if entry.path is None or isinstance(source, HubSource):  # a hub's files are kept by their revision
            return None
        with _readable():
            folder = await asyncio.to_thread(self._original, entry.path, source)
            stamp = await asyncio.to_thread(sources.stamp, folder)
            path = await self._converted(entry, folder)
            revision = await asyncio.to_thread(sources.revision, source, path)
        if revision != entry.revision:
            about = {"model": entry.id, "before": entry.revision, "revision": revision}
            log.warning("the files of a model have changed", extra=about)
            entry.path, entry.revision, entry.fetched = path, revision, None
        return stamp

    def _original(self, path: Path, source: Source) -> Path:
        """Return the folder of a converted model's own files, unless that was removed; else `path`."""
        if self._conversions.made(path):
            with suppress(RoundhouseError):
                return sources.resolve(source, Path.cwd())
        return path

    def purge(self, removed: FilesInUse, used: FilesInUse) -> int:
        """Delete downloads and conversions that no other model uses. Returns the bytes freed.

        The operator's own folders are never deleted. Blocks.
        """
        freed = repository.purge(removed.sources, used.sources, used.folders)
        return freed + self._conversions.purge(removed.folders - used.folders)

    async def forget_estimate(self, entry: ModelEntry) -> None:
        """Plan by the size of its files again instead of by measurements."""
        files = await asyncio.to_thread(self._files, entry.recipe, entry.path) if entry.path is not None else None
        await asyncio.to_thread(self._state.models.forget, entry.model)
        for replica in entry.replicas:
            forget(replica, files)

    def _files(self, recipe: Recipe, path: Path) -> FileEstimates:
        """Estimate a model from its files. Raises Unfit for files that cannot be loaded here."""
        check_version(recipe)
        needs = estimate(recipe, path, self._device.kind)
        on_cpu = self._device.kind == "cpu"
        on_host = (0, 0) if on_cpu else (needs.host, needs.host_adapters)
        step = 0 if on_cpu else needs.devices * needs.activations
        revision = sources.revision(recipe.source, path)
        return FileEstimates(path, revision, needs.total, needs.explain(), *on_host, recipe.expected.load_seconds, step)


@contextmanager
def _readable() -> Iterator[None]:
    """Turn unreadable files into an error of that model, so that the server goes on."""
    try:
        yield
    except OSError as error:
        raise Unavailable(unusable(error)) from error


def add_replicas(entry: ModelEntry, make_queue: QueueMaker) -> list[ModelEntry]:
    """Add rows for a model's further replicas, up to the recipe's maximum.

    A number that is still leaving is added once it has left.
    """
    added, present = [], {replica.number for replica in entry.replicas}
    for number in sorted(set(range(1, entry.recipe.replicas.most + 1)) - present):
        queue = make_queue(entry.recipe, entry.queue, number)
        more = ModelEntry(
            entry.recipe, entry.path, entry.revision, entry.needed, entry.needed_detail, entry.load_seconds, queue,
            number, entry.replicas, clock=entry.clock, pinned=entry.pinned and number <= entry.recipe.replicas.least,
        )  # fmt: skip
        more.take_files(entry)
        added.append(more)
    entry.replicas.sort(key=lambda replica: replica.number)
    return added


def _leave_as_is(_entry: ModelEntry) -> None: ...


def _report_conversion(entry: ModelEntry, come: int, whole: int | None) -> None:
    entry.fetched = (come, whole)
    entry.progress = Progress(phase="converting", fraction=come / whole if whole else 0.0, detail=f"{come >> 20} MiB")


def _broken(recipe: Recipe, error: RoundhouseError) -> Unavailable:
    return Unavailable(f"Model '{recipe.id}' cannot be loaded: {error.message}", code="model_broken")


def check_version(recipe: Recipe) -> None:
    """Raises Unfit if the recipe's flags were written for another version of the engine."""
    have = engine_version(recipe.engine.name)
    if not SpecifierSet(recipe.engine.versions).contains(have, prereleases=True):
        raise Unfit(
            f"the recipe wants {recipe.engine.name} {recipe.engine.versions}, {have} is installed. "
            "Install a version that fits, or check the recipe's flags and widen engine.versions.",
            code="engine_version",
        )
