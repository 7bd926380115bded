"""States of an in-process engine: new, loading, loaded, asleep, closed, broken."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from typing import Literal, Protocol

from models.messages import MemoryFootprint, Progress
from models.protocol import Report
from registry.errors import EngineFailed, RoundhouseError
from registry.recipes.definition import Recipe

Phase = Literal["importing", "starting", "weights", "warming"]


class EngineState(StrEnum):
    NEW = "new"
    LOADING = "loading"
    LOADED = "loaded"
    CHANGING = "falling asleep or waking"
    ASLEEP = "asleep"
    BROKEN = "broken"
    CLOSED = "closed"


class LoadPhases:
    """Reports each phase as it starts, and records its duration."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: Phase, fraction: float, detail: str = "") -> Iterator[None]:
        """Run a phase. fraction: the part of the load that is complete when it starts."""
        self.report(Progress(phase=name, fraction=fraction, detail=detail))
        began = time.perf_counter()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - began, 4)


class Sleepable(Protocol):
    """Moves an engine's weights to host memory and back."""

    async def down(self) -> MemoryFootprint: ...
    async def up(self) -> MemoryFootprint: ...


class Lifecycle:
    def __init__(self, what: str) -> None:
        self._what = what
        self.state = EngineState.NEW

    def check(self) -> None:
        """Raise EngineFailed unless loaded."""
        if self.state is not EngineState.LOADED:
            raise EngineFailed(f"the {self._what} engine is {self.state}")

    def check_alive(self) -> None:
        """Raise EngineFailed unless loaded or asleep."""
        if self.state is not EngineState.ASLEEP:
            self.check()

    def close(self) -> None:
        self.state = EngineState.CLOSED

    async def sleep(self, sleeper: "Sleepable | None") -> MemoryFootprint:
        """Put a loaded engine to sleep. sleeper: None if it cannot. A failure breaks the engine."""
        self.check()
        if sleeper is None:
            raise EngineFailed(f"this {self._what} engine cannot sleep")
        return await self._change(sleeper.down, EngineState.ASLEEP)

    async def wake(self, sleeper: "Sleepable | None") -> MemoryFootprint:
        """Wake a sleeping engine. A failure raises EngineFailed and breaks the engine."""
        if sleeper is None or self.state is not EngineState.ASLEEP:
            raise EngineFailed(f"the {self._what} engine is {self.state}")
        return await self._change(sleeper.up, EngineState.LOADED)

    async def _change(self, work: Callable[[], Awaitable[MemoryFootprint]], state: EngineState) -> MemoryFootprint:
        self.state = EngineState.CHANGING
        try:
            memory = await work()
        except Exception as error:
            self.state = EngineState.BROKEN
            if isinstance(error, RoundhouseError):
                raise
            raise EngineFailed(f"the engine failed: {type(error).__name__}: {error}") from error
        if self.state is not EngineState.CHANGING:
            raise EngineFailed(f"the {self._what} engine was closed")
        self.state = state
        return memory

    @asynccontextmanager
    async def loading(
        self, recipe: Recipe, report: Report, close: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[LoadPhases]:
        """Run the only load of an engine. A failure closes it, and is raised as our error."""
        if self.state is not EngineState.NEW:
            raise EngineFailed("this engine was used before: load into a new one")
        self.state = EngineState.LOADING
        phases = LoadPhases(report)
        try:
            yield phases
            if self.state is not EngineState.LOADING:
                raise EngineFailed("the engine was closed while it loaded")
            self.state = EngineState.LOADED
        except RoundhouseError:
            await close()
            raise
        except Exception as error:
            await close()
            raise EngineFailed(f"{recipe.id} could not be loaded: {type(error).__name__}: {error}") from error
        report(Progress(phase="ready", fraction=1.0))
