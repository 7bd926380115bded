"""Tasks that look for work: at once when something changes, and now and then."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("roundhouse.batches")


async def look_repeatedly(
    look: Callable[[], Awaitable[None]], changed: asyncio.Event, seconds: float, complaint: str, pause: float = 0.0
) -> None:
    """Look once, then after each change and at least every so many seconds, until cancelled.

    pause: seconds after a change, in which others are waited for. complaint: for the log, at the first look that fails.
    """
    fails = False
    while True:
        changed.clear()
        try:
            await look()
            fails = False
        except Exception as error:  # whatever it is: the next look may succeed
            if not fails:
                log.error(complaint, exc_info=error)
            fails = True
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
            await asyncio.sleep(pause)
        except TimeoutError:
            pass
