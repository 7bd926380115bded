"""How urgent a request is."""

from enum import IntEnum
from typing import Self


class ServiceClass(IntEnum):
    """Lower goes first."""

    CRITICAL = 0
    INTERACTIVE = 1
    BATCH = 2

    @property
    def label(self) -> str:
        """As people write it."""
        return _LABELS[self]

    @classmethod
    def of(cls, label: str) -> Self:
        """Raises ValueError for a word that is no class."""
        for one in cls:
            if one.label == label:
                return one
        raise ValueError(f"a class is one of {', '.join(CLASSES)}")


_LABELS = tuple(one.name.lower() for one in ServiceClass)
CLASSES = tuple(one.label for one in ServiceClass)
