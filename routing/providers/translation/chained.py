"""What translates answers, and two of them one after the other: to a second dialect, and on from there."""

import sys
from typing import Protocol

from models import sse


class Translator(Protocol):
    """From the provider's dialect back to the client's, for one answer."""

    def whole(self, data: bytes) -> bytes:
        """Raises BadAnswer."""
        ...

    def event(self, event: bytes) -> bytes:
        """The client's events for one of the provider's; empty: none. Raises BadAnswer."""
        ...

    def end(self) -> bytes:
        """What comes after the provider's last event."""
        ...


class ChainedTranslator:
    """`Translator`."""

    def __init__(self, first: Translator, second: Translator) -> None:
        self._first, self._second = first, second

    def whole(self, data: bytes) -> bytes:
        return self._second.whole(self._first.whole(data))

    def event(self, event: bytes) -> bytes:
        return self._on(self._first.event(event))

    def end(self) -> bytes:
        return self._on(self._first.end()) + self._second.end()

    def _on(self, events: bytes) -> bytes:
        """They are our own: each is whole, and its length is bounded already."""
        return b"".join(self._second.event(event) for event in sse.Splitter(sys.maxsize).feed(events))
