"""Render an adapter's own chat template, which is a program that a client sent, in a thread that can be stopped.

vLLM renders all prompts in one thread. A template that loops would keep it for 30 s, refuse the requests that wait
there, and go on in the thread forever.
"""

import asyncio
import ctypes
import hashlib
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import psutil
from cachetools import TTLCache

from registry.base.turns import FairTurns
from registry.errors import BadRequest

T = TypeVar("T")
SECONDS = 5.0
"""Longest processor time for one prompt. Usual templates take a few milliseconds."""
PERIODS = 6
"""Most times that as many seconds may pass, if the machine is too busy to give the thread its processor time."""
REFUSED_SECONDS = 60.0
"""Time for which a template that took too long is refused, since its requests keep others out while they wait."""
MOST_SLOW = 1000
"""Most templates that are remembered for that."""
POLL_SECONDS = 0.05


class _Stopped(BaseException):
    """Raised in a thread to stop it. Not an Exception, since jinja2 would handle that."""


class TemplateThreads:
    """Renders one prompt at a time; templates take turns. For one event loop."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._turns, self._seconds = FairTurns(), seconds
        self._slow: TTLCache[bytes, None] = TTLCache(MOST_SLOW, REFUSED_SECONDS)

    async def render(self, template: str, work: Callable[[], T]) -> T:
        """Run `work`, which renders `template`, and return its result. Raises BadRequest if it takes too long."""
        digest = hashlib.sha256(template.encode(errors="replace")).digest()
        async with self._turns.take(template):
            if digest in self._slow:
                raise self._refusal()
            loop = asyncio.get_running_loop()
            result: asyncio.Future[T] = loop.create_future()
            thread = threading.Thread(target=_run, args=(work, result, loop), name="template", daemon=True)
            thread.start()
            try:
                for _ in range(PERIODS):
                    await asyncio.wait((result,), timeout=self._seconds)
                    if result.done():
                        return result.result()
                    if _processor_seconds(thread) >= self._seconds:
                        break
                self._slow[digest] = None
                raise self._refusal()
            finally:
                if not result.done():  # too slow, or the client left; otherwise the thread ends by itself
                    result.cancel()
                    await _end(thread)

    def _refusal(self) -> BadRequest:
        return BadRequest(
            f"The chat template of this adapter computed for more than {self._seconds:g} s, and is refused for a "
            "minute: correct it, and register the adapter again.",
            code="template_too_slow",
        )


def _run(work: Callable[[], T], result: "asyncio.Future[T]", loop: asyncio.AbstractEventLoop) -> None:
    with suppress(_Stopped, RuntimeError):  # RuntimeError: the loop has ended
        try:
            value = work()
        except Exception as error:
            loop.call_soon_threadsafe(_settle, result, None, error)
        else:
            loop.call_soon_threadsafe(_settle, result, value, None)


def _settle(result: "asyncio.Future[Any]", value: object, error: Exception | None) -> None:
    if result.done():  # it was given up
        return
    if error is None:
        result.set_result(value)
    else:
        result.set_exception(error)


def _processor_seconds(thread: threading.Thread) -> float:
    times = (one for one in psutil.Process().threads() if one.id == thread.native_id)
    return sum(one.user_time + one.system_time for one in times)


async def _end(thread: threading.Thread) -> None:
    """Stop a thread, and wait until it is gone: between two steps of its program, not within one."""
    while thread.is_alive():
        await asyncio.sleep(POLL_SECONDS)
        if thread.is_alive() and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Stopped))
