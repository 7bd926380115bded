"""The adapters of one engine, by digest. Users' names never reach it.

| method  | unknown        | staged (host)     | moving to a place     | placed (device)                             |
|---------|----------------|-------------------|-----------------------|---------------------------------------------|
| stage   | reads the file | nothing to do     | nothing to do         | nothing to do                               |
| place   | EngineFailed   | copied to a place | waits for the move    | nothing to do                               |
| arrival | None           | None              | the move's future     | None                                        |
| drop    | nothing to do  | forgotten         | waits for the move    | forgotten; Conflict while a call uses it    |
| forget  | nothing to do  | forgotten         | waits for the move    | forgotten; EngineFailed while any call runs |

`place` with `evict` first removes that adapter from its place; it stays staged. Raises Conflict while a call uses it,
and if no place or no host memory is free: the caller counts places, and nothing is evicted without its knowledge.

A call with a moving adapter may be rendered in the meantime. It enters vLLM's engine once `arrival` is done, so never
before EngineCore has committed the adapter; otherwise EngineCore refuses it (`models.chat.vllm.core`).
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.content.tokenizer import own_template
from models.chat.vllm import core, launch
from models.messages import AdapterRef
from registry.errors import Conflict, EngineFailed, RoundhouseError, Unfit, short
from registry.names import DIGEST

BUSY_PAUSE = 0.005
POLL_FIRST, POLL_LAST = 0.0005, 0.004
"""Seconds between polls of a running copy. Short at first, because a small adapter takes 1 ms."""
IN_USE = "adapter_in_use"
NOT_LOADED = "The adapter could not be loaded: {}"
_FIRST_ID = 1_000
"""First of our ids; vLLM numbers its dummy adapters from 1. An id belongs to one digest for the engine's life."""


@dataclass
class StagedAdapter:
    number: int
    placed: bool = False
    template: str = ""
    """The adapter's own chat template; '' for the base's."""


class EngineAdapters:
    """The adapters of an engine. `names` is vLLM's `lora_requests`: adapters that calls may name, placed or moving."""

    def __init__(self, engine: Any, names: dict[str, Any]) -> None:
        self._engine = engine
        self._names = names
        self._staged: dict[str, StagedAdapter] = {}
        self._numbers = itertools.count(_FIRST_ID)
        self._locks: dict[str, asyncio.Lock] = {}
        self._places = asyncio.Lock()
        self._arrivals: dict[str, asyncio.Future[None]] = {}
        self.calls: Counter[str] = Counter()
        """Running calls per digest."""

    def may_be_named(self, digest: str) -> bool:
        """Return whether a call may name this adapter, because it is in a place or moving there."""
        adapter = self._staged.get(digest)
        return digest in self._arrivals or (adapter is not None and adapter.placed)

    def arrival(self, digest: str) -> asyncio.Future[None] | None:
        """Return a future of the adapter's move, which fails with the call's error. None if it is not moving."""
        return self._arrivals.get(digest)

    def template(self, digest: str) -> str:
        """Return the chat template of an adapter; '' if it uses the base's."""
        adapter = self._staged.get(digest)
        return adapter.template if adapter is not None else ""

    async def stage(self, adapter: AdapterRef) -> None:
        if not DIGEST.match(adapter.digest):
            raise Unfit("an adapter's digest is 'sha256:' and 64 hex digits", [adapter.digest])
        async with self._lock(adapter.digest):
            if adapter.digest in self._staged:
                return
            template = await asyncio.to_thread(own_template, Path(adapter.path))
            number = next(self._numbers)
            try:
                outcome = await self._finish(core.stage_adapter, number, adapter.path)
            except asyncio.CancelledError:
                await asyncio.shield(self._call(core.drop_adapter, number))
                raise
            if outcome[0] not in ("read", "done"):
                await asyncio.shield(self._call(core.drop_adapter, number))
                if outcome[0] == "full":
                    raise Conflict("no host room for another adapter: drop one first", code="adapters_full")
                faults, more = "; ".join(outcome[1:4]), len(outcome) - 4
                why = faults.replace(adapter.path, "its folder") + (f"; {more} more" if more > 0 else "")
                raise Unfit(f"adapter {adapter.digest} cannot be loaded: {short(why, 500)}", outcome[1:])
            self._staged[adapter.digest] = StagedAdapter(number, template=template)

    async def place(self, adapter: AdapterRef, evict: str | None, patience: float = 0.0) -> None:
        """See `models.protocol.ChatEngine`."""
        staged = self._staged.get(adapter.digest)
        if staged is not None and not staged.placed and adapter.digest not in self._arrivals:
            self._announce(adapter, staged)
        await asyncio.shield(asyncio.ensure_future(self._arrive(adapter, evict, patience)))

    def _announce(self, adapter: AdapterRef, staged: StagedAdapter) -> None:
        """Let calls name a moving adapter."""
        from vllm.lora.request import LoRARequest

        self._names[adapter.digest] = LoRARequest(adapter.digest, staged.number, adapter.path)
        arrival = self._arrivals[adapter.digest] = asyncio.get_running_loop().create_future()
        arrival.add_done_callback(lambda done: done.exception())  # retrieves the error, in case no call waits for it

    async def _arrive(self, adapter: AdapterRef, evict: str | None, patience: float) -> None:
        """Place an adapter, and let the calls that wait for it continue or fail."""
        digest, error = adapter.digest, EngineFailed(NOT_LOADED.format("the engine failed"), code="adapter_failed")
        try:
            await self._place_once_free(adapter, evict, patience)
        except RoundhouseError as fault:
            error = EngineFailed(NOT_LOADED.format(fault.message), code="adapter_failed")
            raise
        finally:
            staged, arrival = self._staged.get(digest), self._arrivals.pop(digest, None)
            if staged is None or not staged.placed:
                self._names.pop(digest, None)
                if arrival is not None:
                    arrival.set_exception(error)
            elif arrival is not None:
                arrival.set_result(None)

    async def _place_once_free(self, adapter: AdapterRef, evict: str | None, patience: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        while True:
            try:
                await self._place(adapter, evict)
                return
            except Conflict as conflict:
                if conflict.code != IN_USE or loop.time() > until:
                    raise
            await asyncio.sleep(BUSY_PAUSE)

    async def _place(self, adapter: AdapterRef, evict: str | None) -> None:
        async with self._places:
            staged = self._staged.get(adapter.digest)
            if staged is None:
                raise EngineFailed(f"adapter {adapter.digest} was not staged")
            if staged.placed:
                return
            leaving = self._staged.get(evict) if evict else None
            if evict and self.calls[evict]:
                raise Conflict(f"adapter {evict} is in use", code=IN_USE)
            name = self._names.pop(evict, None) if evict else None
            if leaving:
                leaving.placed = False
            outcome = await self._finish(core.place_adapter, staged.number, leaving.number if leaving else 0)
            if outcome[0] == "busy" and evict and leaving:
                self._names[evict] = name
                leaving.placed = True
                raise Conflict(f"adapter {evict} is in use", code=IN_USE)
            if outcome[0] == "full":
                raise Conflict("no free place: evict an adapter", code="places_full")
            if outcome[0] != "done":
                raise EngineFailed(f"adapter {adapter.digest} could not be placed: {'; '.join(outcome[1:])}")
            staged.placed = True

    async def drop(self, digest: str) -> None:
        await asyncio.shield(asyncio.ensure_future(self._drop(digest)))

    async def _drop(self, digest: str) -> None:
        async with self._lock(digest), self._places:
            staged = self._staged.get(digest)
            if staged is None:
                return
            if self.calls[digest]:
                raise Conflict(f"adapter {digest} is in use", code=IN_USE)
            name = self._names.pop(digest, None)
            if (await self._call(core.drop_adapter, staged.number))[0] == "busy":
                if name is not None:
                    self._names[digest] = name
                raise Conflict(f"adapter {digest} is in use", code=IN_USE)
            del self._staged[digest]
            self._locks.pop(digest, None)

    async def a_layer(self) -> tuple[str, int, int]:
        """Return name, inputs and outputs of a layer that adapters may change."""
        name, inputs, outputs = await launch.ask(self._engine, core.a_layer)
        return name, inputs, outputs

    async def forget(self) -> None:
        """Forget all adapters before the engine sleeps, so that no place counts as filled after the wake."""
        async with self._places:
            if (await self._call(core.forget_adapters))[0] != "done":
                raise EngineFailed("adapters cannot be forgotten while a request is in the engine")
            self._names.clear()
            self._staged.clear()
            self._locks.clear()

    def _lock(self, digest: str) -> asyncio.Lock:
        return self._locks.setdefault(digest, asyncio.Lock())

    async def _finish(self, call: Callable[..., Any], number: int, argument: str | int) -> list[str]:
        outcome, pause = await self._call(call, number, argument), POLL_FIRST
        while outcome[0] == "running":
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, POLL_LAST)
            outcome = await self._call(core.poll_adapter, number)
        return outcome

    async def _call(self, call: Callable[..., Any], *arguments: str | int) -> list[str]:
        outcome: core.Outcome = await launch.ask(self._engine, call, *arguments)
        return outcome
