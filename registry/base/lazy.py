"""Libraries that are imported when they are first used.

The server starts without those that only some requests need: numpy and aiohttp took 11 MiB and a tenth of a second.

    if TYPE_CHECKING:
        import numpy as np
    else:
        np = LazyModule("numpy")
"""

from importlib import import_module


class LazyModule:
    """A library that the first access to one of its attributes imports. Attributes are looked up once each."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        value: object = getattr(import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value
