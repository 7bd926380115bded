"""Runs a periodic check, and at once when something changes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("roundhouse.batches")


async def look_repeatedly(
    look: Callable[[], Awaitable[None]], changed: asyncio.Event, seconds: float, complaint: str, pause: float = 0.0
) -> None:
    """Call `look` now, after each change, and at least every `seconds`, until cancelled.

    pause: seconds to wait after a change, to combine several. complaint: log message for the first failure in a row.
    """
    fails = False
    while True:
        changed.clear()
        try:
            await look()
            fails = False
        except Exception as error:  # any error: the next call may succeed
            if not fails:
                log.error(complaint, exc_info=error)
            fails = True
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
            await asyncio.sleep(pause)
        except TimeoutError:
            pass
