"""The states of an engine that runs a library in this process: new, loading, loaded, closed."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from typing import Literal

from models.messages import Progress
from models.protocol import Report
from registry.errors import EngineFailed, RoundhouseError
from registry.recipe import Recipe

Phase = Literal["importing", "weights", "warming"]


class State(StrEnum):
    NEW = "new"
    LOADING = "loading"
    LOADED = "loaded"
    CLOSED = "closed"


class Phases:
    """Reports each phase as it begins, and keeps how long it took."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: Phase, fraction: float, detail: str = "") -> Iterator[None]:
        """`fraction` of the whole load lies behind when this phase begins."""
        self.report(Progress(phase=name, fraction=fraction, detail=detail))
        began = time.perf_counter()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - began, 4)


class Life:
    def __init__(self, what: str) -> None:
        self._what = what
        self.state = State.NEW

    def check(self) -> None:
        """Raise EngineFailed unless loaded."""
        if self.state is not State.LOADED:
            raise EngineFailed(f"the {self._what} engine is {self.state}")

    def close(self) -> None:
        self.state = State.CLOSED

    @asynccontextmanager
    async def loading(
        self, recipe: Recipe, report: Report, close: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[Phases]:
        """The one load of an engine. Whatever fails inside closes it and comes out as an error of ours."""
        if self.state is not State.NEW:
            raise EngineFailed("this engine was used before: load into a new one")
        self.state = State.LOADING
        phases = Phases(report)
        try:
            yield phases
            if self.state is not State.LOADING:
                raise EngineFailed("the engine was closed while it loaded")
            self.state = State.LOADED
        except RoundhouseError:
            await close()
            raise
        except Exception as error:
            await close()
            raise EngineFailed(f"{recipe.id} could not be loaded: {type(error).__name__}: {error}") from error
        report(Progress(phase="ready", fraction=1.0))
