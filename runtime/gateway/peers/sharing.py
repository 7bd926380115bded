"""Applies changes of shared names by other servers: names, pins, files and models."""

import asyncio
import logging
from contextlib import suppress

from registry.errors import RoundhouseError
from registry.state.database import State
from registry.state.shared.opening import SharedTables
from registry.state.shared.watch import SharedWatch
from runtime.gateway.adapters import Adapters
from runtime.gateway.launch.model_set import ModelSet
from runtime.gateway.names import Names
from runtime.gateway.peers.names import PeerNames
from runtime.gateway.peers.pulling import AdapterPuller, RouterPuller
from runtime.gateway.routing.store import RouterStore

log = logging.getLogger("roundhouse.fleet")
CATCH_UP_SECONDS = 2.0


class SharedNames:
    """The names that servers share. Requests see each change completely or not at all. For one event loop.

    Args:
        files: copies files of adapters. None on a front, which needs none.
        router_files: copies files of routers.
        model_set: follows recipes added at run time. None on a front, which has no models.
    """

    def __init__(
        self,
        tables: SharedTables,
        state: State,
        own: Names,
        peers: PeerNames,
        adapters: Adapters,
        routers: RouterStore,
        files: AdapterPuller | None,
        router_files: RouterPuller,
        model_set: ModelSet | None,
    ) -> None:
        self._state, self._own, self._peers, self._adapters, self._routers = state, own, peers, adapters, routers
        self._files, self._pullers = files, [router_files, *([] if files is None else [files])]
        self._loop = asyncio.get_running_loop()
        self._watch = SharedWatch(tables, state, self._announce)
        assert state.recipes is not None, "servers of a fleet share them"
        self._model_set, self._recipes = model_set, state.recipes
        self._followed = self._recipes.all()
        self._following: asyncio.Task[None] | None = None
        self._is_outdated = False

    def start(self) -> None:
        self._watch.start()
        self._peers.on_change, self._routers.is_shared = self._wake, True
        self._routers.adds_from_files = self._files is not None
        if self._files is not None:
            self._adapters.copied = self._files.wait_for_copy
        for puller in self._pullers:
            puller.start()

    async def close(self) -> None:
        await asyncio.to_thread(self._watch.close)
        for puller in self._pullers:
            await puller.close()
        if self._following is not None:
            await asyncio.wait({self._following})

    async def catch_up(self) -> None:
        """Apply what others have changed until now, without waiting for the notification.

        If the database does not answer in CATCH_UP_SECONDS, the watch applies it later.
        """
        with suppress(RoundhouseError, TimeoutError):
            async with asyncio.timeout(CATCH_UP_SECONDS):
                await asyncio.to_thread(self._state.refresh)
        self._changed()

    def _announce(self) -> None:
        """Announce changes. Called in the watch's thread."""
        self._loop.call_soon_threadsafe(self._changed)

    def _wake(self) -> None:
        for puller in self._pullers:
            puller.wake()

    def _changed(self) -> None:
        self._own.refresh()
        self._peers.names.refresh()
        self._routers.refresh()
        self._wake()
        if self._files is not None:
            self._is_outdated = True
            if self._following is None or self._following.done():
                self._following = asyncio.create_task(self._follow(), name="shared-adapters")

    async def _follow(self) -> None:
        while self._is_outdated:  # changes that arrive meanwhile are applied together
            self._is_outdated = False
            await self._follow_recipes()
            await self._adapters.follow()

    async def _follow_recipes(self) -> None:
        if self._model_set is None or self._recipes.all() is self._followed:
            return
        followed = self._recipes.all()
        try:
            await self._model_set.follow()
            self._followed = followed
        except Exception:  # no error here may keep adapters from following; the next change retries
            log.exception("the fleet's recipes cannot be followed")
