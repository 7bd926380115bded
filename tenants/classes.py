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
        return self.name.lower()

    @classmethod
    def of(cls, label: str) -> Self:
        """Raises ValueError for a word that is no class."""
        for one in cls:
            if one.label == label:
                return one
        raise ValueError(f"a class is one of {', '.join(CLASSES)}")


CLASSES = tuple(one.label for one in ServiceClass)
