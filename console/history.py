"""The latest requests without their texts, and sums of the last minute."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

LAST_DECISIONS = 50
Kind = Literal["swap", "load", "wake", "sleep", "leave", "fail", "died"]


class LoggedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """`subject` and `object` are names, `words` is the text between them. None of them is markup."""

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
    """The latest decisions. Calls `on_change` after each."""

    def __init__(self, on_change: Callable[[], None], clock: Callable[[], float] = time.time) -> None:
        self._last: deque[LoggedDecision] = deque(maxlen=LAST_DECISIONS)
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

    def last(self, most: int = LAST_DECISIONS) -> list[LoggedDecision]:
        """Return the latest decisions, newest first."""
        return list(self._last)[: -most - 1 : -1]


LAST = 1_000
"""Most requests in memory."""
MINUTE = 60
MOST_SAMPLES = 200
"""Most first-byte times stored per second."""
MOST_TEAMS, OTHER = 20, "other"
CAUSES = ("queue", "load", "swap", "prefill", "decode", "provider")


class RequestRoute(msgspec.Struct, frozen=True, kw_only=True):
    """The target that a router chose for a request, and why."""

    router: str
    """`auto@v1`"""
    target: str
    reason: str
    score: float | None
    scores: dict[str, float]
    alternatives: list[str]
    saw: dict[str, str]


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """An ended request. Times are in seconds."""

    id: str
    at: float
    """End of the request, in seconds since the epoch."""
    team: str
    endpoint: str
    asked: str
    """The model name that it requested, '' if unknown."""
    model: str
    adapter: str
    digest: str
    provider: str = ""
    """The provider that answered, '' for this machine."""
    replica: int = 0
    """Number of the model's replica that answered. 0 if the model has only one."""
    replica_reason: str = ""
    """Why this replica was chosen: see docs/devices.md."""
    route: RequestRoute | None = None
    """None if no router was involved."""
    service_class: str
    source: str
    end: str
    status: int | None
    code: str | None
    causes: dict[str, float]
    """Seconds by cause, from `CAUSES`."""
    total: float
    first: float | None
    is_stream: bool = False
    prompt_tokens: int
    completion_tokens: int
    audio_seconds: float
    cached_tokens: int = 0
    """Prompt tokens that were in the prefix cache."""
    failed_attempts: list[str] = []
    """Model and error code of each attempt before the last."""
    warning: str = ""
    """Fields of the request that were ignored, as named in the response header."""
    limits: list[str] = []
    """Limits that it exceeded without being refused."""
    pool: str = ""
    key: str = ""
    """Id of its key, '' without one."""

    @property
    def tokens_per_second(self) -> float | None:
        """Speed of a streamed answer after its first token. None if it is too short or was not streamed."""
        if not self.is_stream or self.first is None or self.completion_tokens < 2 or self.total <= self.first:
            return None
        return (self.completion_tokens - 1) / (self.total - self.first)


@dataclass(slots=True)
class SecondBucket:
    at: int
    requests: int = 0
    tokens: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    teams: Counter[str] = field(default_factory=Counter)
    firsts: list[float] = field(default_factory=list)
    swaps: int = 0


class MinuteSeries(msgspec.Struct, frozen=True):
    """Sums of the last sixty seconds, and their values in twelve intervals for sparklines."""

    requests: int
    tokens: int
    swaps: int
    causes: dict[str, float]
    first_p90: float | None
    firsts: list[float]
    rates: list[float]
    """Tokens per second."""
    swap_rates: list[int]
    request_rates: list[int]


class History:
    """Ended requests and their sums. Taking a row is O(1)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rows: deque[RequestRow] = deque(maxlen=LAST)
        self._seconds: deque[SecondBucket] = deque(maxlen=MINUTE + 1)

    def take(self, row: RequestRow) -> None:
        self._rows.append(row)
        second = self._second()
        second.requests += 1
        second.tokens += row.completion_tokens
        second.causes.update(row.causes)
        team = row.team if row.team in second.teams or len(second.teams) < MOST_TEAMS else OTHER
        spent = sum(row.causes.get(cause, 0.0) for cause in ("prefill", "decode", "provider"))
        second.teams[team] += spent  # type: ignore[assignment]
        if row.first is not None and len(second.firsts) < MOST_SAMPLES:
            second.firsts.append(row.first)

    def swapped(self) -> None:
        """Count an adapter that moved into a place."""
        self._second().swaps += 1

    def rows(self, team: str | None = None, most: int = LAST, words: str = "") -> list[RequestRow]:
        """Return requests, newest first. team: None for all. words: words that a row must contain."""
        matches: list[RequestRow] = []
        search = words.lower().split()
        for row in reversed(self._rows):
            if len(matches) >= most:
                break
            if team not in (None, row.team):
                continue
            text = _words(row) if search else ""
            if all(word in text for word in search):
                matches.append(row)
        return matches

    def find(self, id_: str, team: str | None = None) -> RequestRow | None:
        """Return the newest row with this id: clients may reuse ids."""
        return next((row for row in reversed(self._rows) if row.id == id_ and team in (None, row.team)), None)

    def minute(self) -> MinuteSeries:
        seconds = self._recent()
        parts = [[s for s in seconds if self._part(s) == number] for number in range(12)]
        every = [first for s in seconds for first in s.firsts]
        causes: Counter[str] = Counter()
        for second in seconds:
            causes.update(second.causes)
        return MinuteSeries(
            requests=sum(s.requests for s in seconds),
            tokens=sum(s.tokens for s in seconds),
            swaps=sum(s.swaps for s in seconds),
            causes={cause: round(causes[cause], 4) for cause in CAUSES},
            first_p90=_p90(every),
            firsts=[round(_p90(f for s in part for f in s.firsts) or 0.0, 4) for part in parts],
            rates=[sum(s.tokens for s in part) / 5 for part in parts],
            swap_rates=[sum(s.swaps for s in part) for part in parts],
            request_rates=[sum(s.requests for s in part) for part in parts],
        )

    def shares(self) -> dict[str, float]:
        """Return the seconds that engines worked in the last minute, by team, largest first."""
        shares: Counter[str] = Counter()
        for second in self._recent():
            shares.update(second.teams)
        return {team: round(value, 3) for team, value in shares.most_common(8)}

    def _second(self) -> SecondBucket:
        now = int(self._clock())
        if not self._seconds or self._seconds[-1].at != now:
            self._seconds.append(SecondBucket(now))
        return self._seconds[-1]

    def _recent(self) -> list[SecondBucket]:
        since = int(self._clock()) - MINUTE
        return [second for second in self._seconds if second.at > since]

    def _part(self, second: SecondBucket) -> int:
        return min(11, (second.at - int(self._clock()) + MINUTE - 1) // 5)


def _p90(values: Iterable[float]) -> float | None:
    ordered = sorted(values)
    return ordered[int(0.9 * (len(ordered) - 1))] if ordered else None


def _words(row: RequestRow) -> str:
    route = f"{row.route.router} {row.route.reason}" if row.route else ""
    who = f"{row.team} {row.asked} {row.model} {row.adapter} {row.provider} {route}"
    return f"{row.id} {who} {row.end} {row.status} {row.code} {row.endpoint}".lower()
