"""Limits of the input tokens that a team's unfinished batches hold. They are checked when a batch is validated."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from tenants.limits.limiter import DAY, OnLimit
from tenants.limits.records import Limit, Mode

log = logging.getLogger("roundhouse.tenants")


class QueueLimiter:
    """Checks a batch against the limits that `replace` sets. Called in any thread."""

    def __init__(self, on_limit: OnLimit = lambda _limit, _what: None, wall: Callable[[], float] = time.time) -> None:
        self._on_limit, self._wall = on_limit, wall
        self._limits: dict[str, list[Limit]] = {}
        self._warned: dict[str, int] = {}
        """The day of the log's last warning, by limit id."""

    def replace(self, limits: Iterable[Limit]) -> None:
        by_team: dict[str, list[Limit]] = {}
        for limit in limits:
            by_team.setdefault(limit.subject, []).append(limit)
        self._limits = by_team

    def is_limited(self, team: str) -> bool:
        return team in self._limits

    def refusal(self, team: str, added: Mapping[str, int], queued: Mapping[str, int]) -> str | None:
        """Return why a batch has no room, and what to do; None: it has.

        added: the batch's tokens by model or adapter; queued: the same of the team's other unfinished batches.
        """
        refusals = []
        for limit in self._limits.get(team, ()):
            new, there = _counted(limit, added), _counted(limit, queued)
            if not new or there + new <= limit.amount:
                continue
            if limit.mode is Mode.ENFORCE:
                self._on_limit(limit, "refused")
                advice = (
                    "split the file into smaller batches"
                    if new > limit.amount
                    else "create it again once some of the team's batches have ended"
                )
                refusals.append(
                    f"{limit.words} is {limit.amount}, of which {there} are used; this batch has about {new}: {advice}"
                )
                continue
            self._on_limit(limit, "shadow" if limit.mode is Mode.SHADOW else "warned")
            today = int(self._wall()) // DAY
            if limit.mode is Mode.WARN and self._warned.get(limit.id) != today:
                self._warned[limit.id] = today
                log.warning("over a limit", extra={"limit": limit.id, "words": limit.words})
        return f"{'. '.join(refusals)}." if refusals else None


def _counted(limit: Limit, tokens: Mapping[str, int]) -> int:
    """Tokens that a limit counts; those of an adapter count as its model's."""
    return sum(count for name, count in tokens.items() if limit.counts(name) or limit.counts(name.partition(":")[0]))
