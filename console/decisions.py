"""Recent decisions: which adapter or model came or left, and why."""

import time
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

LAST = 50
Kind = Literal["swap", "load", "wake", "sleep", "leave", "fail", "died"]


class LoggedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """`subject` and `object` are names, `words` say the rest; none of them is markup."""

    number: int
    at: float
    kind: Kind
    model: str
    subject: str
    words: str
    object: str = ""
    more: str = ""
    seconds: float | None = None


class Decisions:
    """The last decisions. `on_change` is called after each."""

    def __init__(self, on_change: Callable[[], None], clock: Callable[[], float] = time.time) -> None:
        self._last: deque[LoggedDecision] = deque(maxlen=LAST)
        self._on_change, self._clock, self._number = on_change, clock, 0

    def record(
        self, kind: Kind, model: str, subject: str, words: str, object: str = "", more: str = "",
        seconds: float | None = None,
    ) -> None:  # fmt: skip
        self._number += 1
        took = None if seconds is None else round(seconds, 4)
        self._last.append(
            LoggedDecision(
                number=self._number, at=round(self._clock(), 3), kind=kind, model=model, subject=subject, words=words,
                object=object, more=more, seconds=took,
            )
        )  # fmt: skip
        self._on_change()

    def last(self, most: int = LAST) -> list[LoggedDecision]:
        """Newest first."""
        return list(self._last)[: -most - 1 : -1]
