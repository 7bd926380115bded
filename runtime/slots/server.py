"""The slot: one Unix socket, one gateway, at most one engine.

| event                    | empty slot             | slot with an engine          | slot with a sleeping engine  |
|--------------------------|------------------------|------------------------------|------------------------------|
| Load                     | loads                  | Failed: a slot is for one model | Failed                    |
| Call, Stage, Place, Drop | Failed                 | runs each in its own task    | Failed                       |
| Sleep                    | Failed                 | sleeps once running work has ended | Failed                 |
| Wake                     | Failed                 | Failed                       | wakes                        |
| Ping                     | Failed; during a load: Done | pings the engine        | pings the engine             |
| Ping, during Sleep, Wake | -                      | Done                         | Done                         |
| Count                    | Failed                 | the engine's metrics         | the same                     |
| Cancel                   | nothing                | cancels the task, which      | nothing                      |
|                          |                        | aborts the work in the engine; a sleep or wake continues    |
| the engine ends by itself | -                     | Broken, unless a load, sleep | Broken                       |
|                          |                        | or wake fails because of it  |                              |
| gateway gone             | ends the process group | ends the process group       | ends the process group       |
| SIGTERM                  | exits with 0           | closes the engine, exits with 0 | the same                  |

A slot is not reused for a second model, because only ending its process is certain to free the memory.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import cast

from models.broken_files import refuse_broken_settings, refuse_broken_vocabulary
from models.messages import Event, MemoryFootprint, Progress, Usage
from models.process_control import is_out_of_memory, keep_to
from models.protocol import Breakable, ChatEngine, Engine, MetricsSource
from models.tasks import TASKS
from registry.base.control_groups import OomKills
from registry.base.limits import NO_PROCESSES, is_out_of_processes
from registry.errors import EngineFailed, RoundhouseError
from registry.recipes.definition import Recipe, Task
from runtime.slots import frames

log = logging.getLogger("roundhouse.slot")
STAY_SECONDS = 10.0
BUSY_SECONDS = 30.0
"""Seconds that an adapter waits for a place until cancelled calls on the previous adapter have ended."""
CLOSE_SECONDS = 4.0  # LitServe gives a worker 5 s between SIGTERM and SIGKILL


class SlotServer:
    """Serves one gateway connection.

    Args:
        create: creates the engine for (engine name, task).
        loads: context manager around the load.
        warms: the engine whose libraries are imported at once, because a model will be needed soon.
    """

    def __init__(
        self, address: str, create: Callable[[str, str], Engine], *, exit_on_disconnect: bool = True,
        loads: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        warms: str | None = None,
    ) -> None:  # fmt: skip
        self.address = address
        self._create, self._loads, self._warms = create, loads, warms
        self._exit_on_disconnect = exit_on_disconnect
        self._engine: Engine | None = None
        self._task: Task | None = None
        self._loading = False
        self._asleep = self._changing = False
        self._working: set[asyncio.Task[None]] = set()
        """Tasks that need the engine to be awake."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self) -> None:
        """Serve until SIGTERM or until the gateway is gone."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop.set)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.address)
        server = await asyncio.start_unix_server(self._connection, self.address, limit=1 << 20)
        os.chmod(self.address, 0o600)
        warming = asyncio.create_task(self._warm()) if self._warms else None
        await self._stop.wait()
        if warming is not None:
            warming.cancel()
        server.close()
        await self.close()

    def is_busy(self) -> bool:
        """Whether requests are running or adapters are moving."""
        return bool(self._working)

    async def _warm(self) -> None:
        from models.engines import prewarm

        assert self._warms is not None
        try:
            await asyncio.to_thread(prewarm, self._warms, lambda: self._loading)
        except Exception:  # the load that follows fails with the reason
            log.warning("importing the libraries of %s in advance failed", self._warms, exc_info=True)

    async def close(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        if self._engine is not None:
            with contextlib.suppress(Exception):  # the slot is ending, so an error affects no request
                await asyncio.wait_for(self._engine.close(), CLOSE_SECONDS)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.address)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        out = frames.Outbox(writer)
        self._writers.add(writer)
        out.put(frames.Hello(0, os.getpid(), self._warms))
        try:
            while True:
                for frame in await frames.read_frames(reader, frames.to_slot_decoder):
                    self._take(frame, out)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            if isinstance(error, ConnectionError):
                log.warning("the gateway's connection broke: %s", error)
        finally:
            self._writers.discard(writer)
            writer.close()
            if self._exit_on_disconnect:
                # Nothing can reach this engine any more. SIGKILL to the group ends its children, too.
                os.killpg(0, signal.SIGKILL)

    def _take(self, frame: frames.ToSlot, out: frames.Outbox) -> None:
        if isinstance(frame, frames.Cancel):
            if task := self._tasks.get(frame.uid):
                task.cancel()
            return
        self._tasks[frame.uid] = task = asyncio.create_task(self._answer(frame, out))

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.pop(frame.uid, None)
            # Perhaps before it began. The gateway reuses the place only after CallDone. A slot that stops sends none:
            # the gateway learns from the end of the connection that its calls were cut off.
            if task.cancelled() and not self._stop.is_set():
                out.put(frames.CallDone(frame.uid))

        task.add_done_callback(ended)

    async def _answer(self, frame: frames.ToSlot, out: frames.Outbox) -> None:
        """Process one frame and answer with exactly one Done or Failed, unless it is cancelled."""
        uid = frame.uid
        try:
            match frame:
                case frames.Load():
                    out.put(await self._load(frame, out))
                    return
                case frames.Prewarm():
                    if self._engine is None and not self._loading:
                        from models.engines import prewarm

                        await asyncio.to_thread(prewarm, frame.engine)
                case frames.Ping():
                    # while it loads, falls asleep or wakes up, an answer of this loop is sign of life enough
                    if not self._changing and (self._engine is not None or not self._loading):
                        await self._ready().ping()
                case frames.Sleep() | frames.Wake():
                    held = await asyncio.shield(asyncio.ensure_future(self._change(isinstance(frame, frames.Sleep))))
                    out.put(frames.CallDone(uid, held=held))
                    return
                case frames.Count():
                    out.put(frames.CallDone(uid, counted=await self._counted()))
                    return
                case frames.Call() | frames.Stage() | frames.Place() | frames.Drop():
                    await self._work(frame, out)
            out.put(frames.CallDone(uid))
        except RoundhouseError as error:
            out.put(frames.CallFailed.of(uid, error))
        except Exception as error:  # the boundary: whatever a library raises becomes one structured error
            number = frame.request_id if isinstance(frame, frames.Call) else None
            log.exception("unmapped error in a slot", extra={"request_id": number} if number else None)
            out.put(frames.CallFailed.of(uid, EngineFailed(f"The engine failed: {type(error).__name__}.")))

    async def _load(self, frame: frames.Load, out: frames.Outbox) -> frames.CallDone:
        if self._engine is not None or self._loading:
            raise EngineFailed("This slot already has an engine.")
        self._loading = True

        def report(progress: Progress) -> None:
            out.put(frames.Report(frame.uid, progress))

        keep_to(frame.visible, frame.cores)
        recipe, folder = Recipe.model_validate_json(frame.recipe), Path(frame.path)
        await asyncio.to_thread(refuse_broken_settings, folder)
        engine = self._create(recipe.engine.name, recipe.task.value)
        kills = OomKills()
        try:
            with self._loads():
                loaded = await engine.load(recipe, folder, frame.device, report)
        except Exception as error:
            if is_out_of_memory(error) or kills.has_killed():
                raise EngineFailed(f"{recipe.id} ran out of memory while it loaded.", code="out_of_memory") from error
            if is_out_of_processes(error):
                raise EngineFailed(f"{recipe.id} could not be loaded: {NO_PROCESSES}.") from error
            await asyncio.to_thread(refuse_broken_vocabulary, folder)
            raise
        self._engine, self._task = engine, recipe.task
        if isinstance(engine, Breakable):
            engine.on_broken = lambda how: self._broken(how, out)
        return frames.CallDone(frame.uid, loaded)

    def _broken(self, how: EngineFailed, out: frames.Outbox) -> None:
        """Report a broken engine before its calls end."""
        if not self._changing:
            out.put(frames.EngineBroken(0, how.status, how.code, how.message))

    async def _change(self, sleep: bool) -> MemoryFootprint:
        """Fall asleep or wake up. Must not be cancelled midway."""
        engine = self._ready()
        if self._changing or self._asleep is sleep:
            raise EngineFailed(f"This engine is {'busy' if self._changing else 'asleep' if sleep else 'awake'}.")
        self._changing = True
        try:
            if sleep:
                await self._requests_gone()
            held = await (engine.sleep() if sleep else engine.wake())
            self._asleep = sleep
            return held
        finally:
            self._changing = False

    async def _counted(self) -> bytes:
        engine = self._ready()
        return await engine.metrics() if isinstance(engine, MetricsSource) else b""

    async def _requests_gone(self) -> None:
        """Wait until cancelled requests have left. Raises EngineFailed if one stays."""
        if self._working:
            await asyncio.wait(self._working, timeout=STAY_SECONDS)
        if self._working:
            raise EngineFailed("Requests are still running on this engine.")

    async def _work(self, frame: frames.Call | frames.Stage | frames.Place | frames.Drop, out: frames.Outbox) -> None:
        engine = self._ready()
        if self._asleep or self._changing:
            raise EngineFailed("This engine is asleep.")
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._working.add(task)
        try:
            match frame:
                case frames.Call():
                    await self._call(frame, out)
                case frames.Stage():
                    await cast(ChatEngine, engine).stage(frame.adapter)
                case frames.Place():
                    await cast(ChatEngine, engine).place(frame.adapter, frame.evict, BUSY_SECONDS)
                case frames.Drop():
                    await cast(ChatEngine, engine).drop(frame.digest)
        finally:
            self._working.discard(task)

    def _ready(self) -> Engine:
        if self._engine is None:
            raise EngineFailed("No model is loaded in this slot.")
        return self._engine

    async def _call(self, frame: frames.Call, out: frames.Outbox) -> None:
        """Run one request. Raises EngineFailed if it is for another task."""
        assert self._task is not None, "a model is loaded"
        kind = TASKS[self._task]

        def emit(event: Event, usage: Usage | None = None) -> None:
            tokens = (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) if usage else None
            out.put(frames.Emit(frame.uid, event, tokens))

        await kind.run(self._ready(), frame.decoded(kind.message), emit)
