"""Limits on stored and queued items. Runs on one event loop: nothing may run between `admit` and the commit."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from registry.errors import Refusal, StorageExceeded
from registry.names import model_of
from registry.records import Adapter, AdapterKey
from tenants.limits.limiter import DAY, OnLimit
from tenants.limits.records import Kind, Limit, Mode

log = logging.getLogger("roundhouse.tenants")
USUAL_ADAPTERS = 5000
"""Adapters of a team without a limit of its own. The event loop reads all names again after each registration."""


class _TeamLimits:
    """Limits of teams on what they store or queue."""

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

    def _report(self, limit: Limit) -> None:
        """Report what exceeds a limit that does not refuse it. The log warns once a day."""
        self._on_limit(limit, "shadow" if limit.mode is Mode.SHADOW else "warned")
        today = int(self._wall()) // DAY
        if limit.mode is Mode.WARN and self._warned.get(limit.id) != today:
            self._warned[limit.id] = today
            log.warning("over a limit", extra={"limit": limit.id, "words": limit.words})


class StorageLimiter(_TeamLimits):
    """Checks what a team stores against the limits that `replace` sets, and against USUAL_ADAPTERS.

    merged: the sizes of a team's merged models, which count like adapters' bytes.
    """

    def __init__(
        self,
        on_limit: OnLimit = lambda _limit, _what: None,
        wall: Callable[[], float] = time.time,
        merged: Callable[[str], Mapping[str, int]] = lambda _team: {},
    ) -> None:
        super().__init__(on_limit, wall)
        self._merged = merged

    def check(self, key: AdapterKey, stored: Callable[[], Sequence[Adapter]]) -> None:
        """Refuse a new name if there is no room, before its content is known. Raises StorageExceeded."""
        self._refuse(self._exceeded(key, stored, "", 0))

    def admit(
        self, key: AdapterKey, stored: Callable[[], Sequence[Adapter]], digest: str, size: int
    ) -> tuple[str, ...]:
        """Admit a version of `size` bytes. Returns the warnings of limits that only warn. Raises StorageExceeded."""
        exceeded = self._exceeded(key, stored, digest, size)
        self._refuse(exceeded)
        limits = [limit for limit, _, _ in exceeded]
        for limit in limits:
            self._report(limit)
        return tuple(
            f"{limit.words}: over {limit.display(limit.amount)}" for limit in limits if limit.mode is Mode.WARN
        )

    def _exceeded(
        self, key: AdapterKey, stored: Callable[[], Sequence[Adapter]], digest: str, size: int
    ) -> list[tuple[Limit, int, int]]:
        """Return the limits without room for it, each with its current use and the addition."""
        exceeded = []
        limits = self._limits.get(key.team, ())
        if not any(limit.kind is Kind.ADAPTERS and not limit.model for limit in limits):
            limits = (*limits, Limit("usual", "team", key.team, Kind.ADAPTERS, USUAL_ADAPTERS))
        for limit in limits:
            if limit.counts(key.base):
                used, added = self._use(limit, key, stored(), digest, size)
                if added and used + added > limit.amount:
                    exceeded.append((limit, used, added))
        return exceeded

    def _refuse(self, exceeded: Iterable[tuple[Limit, int, int]]) -> None:
        refusals = []
        for limit, used, added in exceeded:
            if limit.mode is Mode.ENFORCE:
                self._on_limit(limit, "refused")
                amount, taken, more = map(limit.display, (limit.amount, used, added))
                reason = f"{limit.words} is {amount}, of which {taken} are used; this registration adds {more}"
                refusals.append(
                    Refusal(
                        limit.id, limit.kind, limit.owner, limit.subject, limit.display_amount,
                        max(0, limit.amount - used), None, reason,
                    )
                )  # fmt: skip
        if refusals:
            raise StorageExceeded(
                f"{'. '.join(refusal.reason for refusal in refusals)}. Remove adapters or versions that are not needed "
                "(`roundhouse adapters remove`), or merged models (`roundhouse adapters merged --remove`), or ask the "
                "server's operator to raise the limit (`roundhouse limits set`).",
                refusals,
            )

    def _use(self, limit: Limit, key: AdapterKey, stored: Iterable[Adapter], digest: str, size: int) -> tuple[int, int]:
        """Return the team's use of a limit, and what this content would add. Identical content counts once."""
        own = [one for one in stored if one.key.team == key.team and limit.counts(one.key.base)]
        if limit.kind is Kind.ADAPTERS:
            return len(own), int(all(one.key != key for one in own))
        sizes = {version.digest: version.bytes for one in own for version in one.versions}
        if not limit.model:
            sizes |= self._merged(key.team)
        return sum(sizes.values()), 0 if digest in sizes else size


class QueueLimiter(_TeamLimits):
    """Checks a batch against the limits that `replace` sets. Thread-safe."""

    def is_limited(self, team: str) -> bool:
        return team in self._limits

    def refusal(self, team: str, added: Mapping[str, int], queued: Mapping[str, int]) -> str | None:
        """Return why a batch has no room and what to do. None if it has room.

        added: the batch's tokens by model or adapter; queued: the same for the team's other unfinished batches.
        """
        refusals = []
        for limit in self._limits.get(team, ()):
            new, used = _counted(limit, added), _counted(limit, queued)
            if not new or used + new <= limit.amount:
                continue
            if limit.mode is not Mode.ENFORCE:
                self._report(limit)
                continue
            self._on_limit(limit, "refused")
            advice = (
                "split the file into smaller batches"
                if new > limit.amount
                else "create it again once some of the team's batches have ended"
            )
            refusals.append(
                f"{limit.words} is {limit.amount}, of which {used} are used; this batch has about {new}: {advice}"
            )
        return f"{'. '.join(refusals)}." if refusals else None


def _counted(limit: Limit, tokens: Mapping[str, int]) -> int:
    """Return the tokens that a limit counts. An adapter's tokens count as its model's.

    tokens: by name, with the version if it is known. An adapter may also follow behind a space.
    """
    counted = 0
    for name, count in tokens.items():
        model = name.partition(" ")[0]
        counted += count if limit.counts(model) or limit.counts(model_of(model)) else 0
    return counted
