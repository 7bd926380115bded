"""Read the operator's recipe files again: on SIGHUP, by a call, or on change."""

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
    """Reads recipe files again. Args: paths: the files and folders of `--recipes`.

    route: takes the routers in them. provide: takes the providers. with_models: False on a front, which serves none.
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
        """Load the routers of the files at the start, once models and adapters are there."""
        try:
            async with self._following:
                await self._route((await self._read()).routers)
        except Unfit as unfit:  # they were changed since the server read them
            self._model_set.faults = unfit.faults

    async def _read(self) -> Documents:
        documents = await asyncio.to_thread(load_documents, self._paths, may_be_empty=True)
        return documents if self._with_models else replace(documents, models=())

    async def reload(self) -> ReloadedView:
        """Follow the files; returns once leaving models are gone. Faults change nothing."""
        view, leaving = await self._follow()
        await wait_for_all(leaving)
        return view

    async def _follow(self) -> tuple[ReloadedView, list[asyncio.Task[None]]]:
        """Follow the models that leave by a reload: nothing else waits for their last requests."""
        async with self._following:  # what was read first must not count last
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
        """Read the files again whenever they changed and then stayed so for one look.

        It looks, and is not told: editors put another file in a file's place, and a folder may go and come back.
        """
        read = before = await asyncio.to_thread(self._marks)
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = await asyncio.to_thread(self._marks)
            if now == before != read:
                read = now
                try:
                    await self._follow()
                except Exception:  # whatever it is: the next change is read
                    log.exception("the recipes could not be read again")
            before = now

    def _marks(self) -> list[tuple[Path, int, int, int]]:
        """Identity, size and time of change of each file."""
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
