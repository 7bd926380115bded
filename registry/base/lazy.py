"""Import libraries at first use.

The server starts without libraries that only some requests need, such as numpy and aiohttp.

    if TYPE_CHECKING:
        import numpy as np
    else:
        np = LazyModule("numpy")

    await import_in_thread("numpy")  # before the first use on an event loop, which it would block
"""

import asyncio
import threading
from importlib import import_module

_imported = set[str]()
_one = threading.Lock()
"""One import at a time. Only threads of `import_in_thread` wait for it, never the event loop."""


class LazyModule:
    """Imports a library at the first access to one of its attributes. Attributes are cached."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        value: object = getattr(import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


async def import_in_thread(name: str) -> None:
    """Import a module in a thread, once, without blocking the event loop.

    Not for modules in import cycles, so that two threads never wait for each other.
    """
    if name not in _imported:
        await asyncio.to_thread(_import, name)


def _import(name: str) -> None:
    with _one:
        import_module(name)
        _imported.add(name)
