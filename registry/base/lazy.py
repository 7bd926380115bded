"""Libraries that are imported when they are first used.

The server starts without those that only some requests need: numpy and aiohttp took 11 MiB and a tenth of a second.

    if TYPE_CHECKING:
        import numpy as np
    else:
        np = LazyModule("numpy")

    await import_in_thread("numpy")  # before the first use on an event loop, which would stand still meanwhile
"""

import asyncio
import threading
from importlib import import_module

_imported = set[str]()
_one = threading.Lock()
"""One import at a time. Only threads of `import_in_thread` wait for it, never the event loop."""


class LazyModule:
    """A library that the first access to one of its attributes imports. Attributes are looked up once each."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        value: object = getattr(import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


async def import_in_thread(name: str) -> None:
    """Import a module unless it was imported so before, while others on the event loop go on.

    Only for what imports nothing that imports it again: then two threads never wait for each other.
    """
    if name not in _imported:
        await asyncio.to_thread(_import, name)


def _import(name: str) -> None:
    with _one:
        import_module(name)
        _imported.add(name)
