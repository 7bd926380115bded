"""Replays a router's decisions with other thresholds. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

STEPS = 20
ABSTAINED, INTENT = "abstained", "intent:"


class ReplayRow(Protocol):
    @property
    def target(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def score(self) -> float | None: ...
    @property
    def accepted(self) -> bool | None: ...
    @property
    def cost_micro(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """The outcome of all requests that one target answered for one reason."""

    target: str
    """The model that answered, even if it replaced the chosen one: `model` or `model:adapter`."""
    reason: str
    requests: int
    judged: int
    accepted: float | None
    """Share of the judged requests. None if none was judged."""
    cost_micro: float
    """Mean cost per request."""


@dataclass(frozen=True, slots=True)
class ReplayPoint:
    """The outcome at another threshold, for requests that were decided by intents or left to the default."""

    threshold: float
    answered: float
    """Share of requests that an intent would decide."""
    accepted: float | None
    cost_micro: float


def outcomes(rows: Iterable[ReplayRow]) -> list[ReplayOutcome]:
    """Return outcomes by target and reason, most requests first."""
    groups: dict[tuple[str, str], list[ReplayRow]] = defaultdict(list)
    for row in rows:
        groups[row.target, row.reason].append(row)
    results = [
        ReplayOutcome(target, reason, len(group), len(_judged(group)), _share(group), _mean(group))
        for (target, reason), group in groups.items()
    ]
    return sorted(results, key=lambda result: (-result.requests, result.target, result.reason))


def replay(rows: Iterable[ReplayRow]) -> list[ReplayPoint]:
    """Estimate the outcome of each threshold from past requests.

    Requests above a threshold count as they were, those below it like the abstained ones. A threshold below the
    router's own changes nothing: how an intent would have done instead of the default is unknown.
    """
    scored = [row for row in rows if row.score is not None and row.reason.startswith((INTENT, ABSTAINED))]
    decided = [row for row in scored if row.reason.startswith(INTENT)]
    rest = [row for row in scored if row.reason.startswith(ABSTAINED)]
    if not scored:
        return []
    points = []
    for step in range(STEPS + 1):
        threshold = step / STEPS
        above = [row for row in decided if (row.score or 0.0) >= threshold]
        fallen = len(scored) - len(above)
        shares = [(share, size) for share, size in ((_share(above), len(above)), (_share(rest), fallen)) if size]
        judged_shares = [(share, size) for share, size in shares if share is not None]
        accepted = (
            sum(share * size for share, size in judged_shares) / len(scored)
            if len(judged_shares) == len(shares)
            else None
        )
        cost = (_mean(above) * len(above) + _mean(rest or decided) * fallen) / len(scored)
        points.append(ReplayPoint(threshold, len(above) / len(scored), accepted, cost))
    return points


def _judged(rows: Sequence[ReplayRow]) -> list[bool]:
    return [row.accepted for row in rows if row.accepted is not None]


def _share(rows: Sequence[ReplayRow]) -> float | None:
    judged = _judged(rows)
    return sum(judged) / len(judged) if judged else None


def _mean(rows: Sequence[ReplayRow]) -> float:
    return sum(row.cost_micro for row in rows) / len(rows) if rows else 0.0
