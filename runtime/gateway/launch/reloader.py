"""Rereads the operator's recipe files on SIGHUP, on request, or when they change."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from registry.errors import Unfit
from registry.recipes.loading import Documents, load_documents
from registry.recipes.provider import Provider
from registry.recipes.router import RouterSpec
from runtime.gateway.launch.model_set import ModelSet, wait_for_all
from runtime.gateway.launch.views import ReloadedView

log = logging.getLogger("roundhouse.gateway")
POLL_SECONDS = 0.5


class RecipeReloader:
    """Rereads recipe files.

    Args:
        paths: the files and folders of `--recipes`.
        route: called with the routers in them.
        provide: called with the providers in them.
        with_models: False on a front, which serves no models.
    """

    def __init__(
        self,
        model_set: ModelSet,
        paths: Sequence[Path],
        route: Callable[[Sequence[RouterSpec]], Awaitable[None]],
        provide: Callable[[Sequence[Provider]], None],
        *,
        with_models: bool = True,
    ) -> None:
        self._model_set, self._paths, self._route, self._provide = model_set, tuple(paths), route, provide
        self._with_models = with_models
        self._following = asyncio.Lock()

    async def begin(self) -> None:
        """Load the routers of the files at startup, once models and adapters are known."""
        try:
            async with self._following:
                await self._route((await self._read()).routers)
        except Unfit as unfit:  # the files have changed since startup
            self._model_set.faults = unfit.faults

    async def _read(self) -> Documents:
        documents = await asyncio.to_thread(load_documents, self._paths, may_be_empty=True)
        return documents if self._with_models else replace(documents, models=())

    async def reload(self) -> ReloadedView:
        """Apply the files. Returns once removed models have left. If there are faults, nothing changes."""
        view, leaving = await self._follow()
        await wait_for_all(leaving)
        return view

    async def _follow(self) -> tuple[ReloadedView, list[asyncio.Task[None]]]:
        """Apply the files, and return the tasks of leaving models so that the lock is not held for them."""
        async with self._following:  # keeps an older reading from overwriting a newer one
            try:
                given = await self._read()
            except Unfit as unfit:
                self._model_set.faults = unfit.faults
                for fault in unfit.faults:
                    log.error("the recipes stay as they were", extra={"cause": fault})
                return ReloadedView(changed=False, models=[], faults=list(unfit.faults)), []
            arranged, leaving = await self._model_set.follow(given.models)
            self._provide(given.providers)
            await self._route(given.routers)
        log.info("the recipes were read again", extra={"models": len(arranged.recipes)})
        models = [recipe.id for recipe in arranged.recipes]
        return ReloadedView(changed=True, models=models, faults=list(self._model_set.faults)), leaving

    async def watch(self) -> NoReturn:
        """Reload the files once they have changed and stayed the same for one interval.

        Polls, because editors replace files and folders may disappear and come back.
        """
        read = before = await asyncio.to_thread(self._marks)
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = await asyncio.to_thread(self._marks)
            if now == before != read:
                read = now
                try:
                    await self._follow()
                except Exception:  # no error may end the loop
                    log.exception("the recipes could not be read again")
            before = now

    def _marks(self) -> list[tuple[Path, int, int, int]]:
        """Identity, size and modification time of each file."""
        marks = []
        for path in self._paths:
            files = [path]
            with suppress(OSError):
                files += sorted(path.glob("*.y*ml"))
            for file in files:
                with suppress(OSError):
                    stat = file.stat()
                    marks.append((file, stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return marks
