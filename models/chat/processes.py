"""The processes of a chat engine: what they hold, and how they ended."""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess

import psutil

from models.memory_group import OomKills
from registry.errors import EngineFailed


def memory_of(processes: Sequence[BaseProcess]) -> int:
    """Bytes of this process and EngineCore's.

    A fork shares most pages with its parent: the proportional set size counts each page once over both.
    """
    own = [psutil.Process(), *(psutil.Process(process.pid) for process in processes)]
    return sum(process.memory_full_info().pss for process in own)


class EngineProcesses:
    """EngineCore's processes, watched. vLLM forgets them when one dies, perhaps before we hear of it."""

    def __init__(self) -> None:
        self._processes: Sequence[BaseProcess] = []
        self._sentinels: list[int] = []
        self._read_cause: Callable[[], EngineFailed | None] = lambda: None
        self._kills = OomKills()

    def watch(
        self,
        processes: Sequence[BaseProcess],
        on_death: Callable[[EngineFailed], None],
        read_cause: Callable[[], EngineFailed | None] = lambda: None,
    ) -> None:
        """Watch on the running event loop.

        Args:
            on_death: called with how the first process ended.
            read_cause: reads the cause that a process left of its end.
        """

        def died() -> None:
            self.unwatch()
            on_death(self.how_ended())

        self._processes, self._read_cause = processes, read_cause
        for process in processes:
            self._sentinels.append(process.sentinel)
            asyncio.get_running_loop().add_reader(process.sentinel, died)

    def unwatch(self) -> None:
        loop = asyncio.get_running_loop()
        for sentinel in self._sentinels:
            loop.remove_reader(sentinel)
        self._sentinels.clear()

    def alive(self) -> None:
        """They have answered: if the kernel has killed anybody for want of memory, it was none of them."""
        self._kills.reset()

    def how_ended(self) -> EngineFailed:
        """What to tell of the one that has ended."""
        words, code = how_ended(self._processes)
        if code == -signal.SIGKILL and self._kills.has_killed():
            return EngineFailed(f"{words}, by the kernel, because memory had run out", code="out_of_memory")
        if code >= 0 and (cause := self._read_cause()):
            return EngineFailed(f"{words}: {cause.message}", code=cause.code)
        return EngineFailed(words)


def how_ended(processes: Sequence[BaseProcess]) -> tuple[str, int]:
    """In words, by the exit codes of EngineCore's processes, and the code of the one that it goes by; 0: not known.

    Waits up to a second for one that is just ending.
    """
    deadline = time.monotonic() + 1
    while True:
        for process in processes:
            process.join(0.05)  # vLLM's threads may ask at the same time: the second sees no code yet
        codes = [process.exitcode for process in processes]
        for code in codes:
            if code is not None and code < 0:
                return f"the engine's process was ended by {signal.Signals(-code).name}", code
            if code:
                return f"the engine's process ended with status {code}", code
        if None not in codes or time.monotonic() > deadline:
            return "the engine's process ended", 0
