"""Checks requests against their limits. Runs on one event loop, so a check and its reservation are atomic."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from zoneinfo import ZoneInfo

from registry.base.wording import plain
from tenants.caller import Caller
from tenants.limits.meters import Budget, Concurrency, Hold, LimitLevel, Meter, MeterSource, Rate, SharedMeter
from tenants.limits.records import Kind, Limit, Mode, period_of
from tenants.limits.refusals import BindingLimit, refusal, unknown

log = logging.getLogger("roundhouse.tenants")
UTC, DAY = ZoneInfo("UTC"), 86_400
OnLimit = Callable[[Limit, str], None]
"""Called with a binding limit and `refused`, `warned` or `shadow`."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """What a request uses, or may use at most. money: millionths of the currency."""

    tokens: int = 0
    audio_ms: int = 0
    money: int = 0
    explicit_tokens: int = 0
    """Tokens that the client requested as a number. The others are an upper bound."""

    def of(self, kind: Kind) -> int:
        match kind:
            case Kind.TOKENS:
                return self.tokens
            case Kind.AUDIO:
                return self.audio_ms
            case Kind.DAY | Kind.MONTH:
                return self.money
            case _:
                return 1


@dataclass(frozen=True, slots=True)
class PastRequest:
    """A past request in the ledger that ended at least `age` seconds ago."""

    team: str
    key: str
    """The first key of its rotation chain."""
    model: str
    age: float
    used: Amounts


@dataclass(slots=True)
class _LimitMeter:
    limit: Limit
    meter: Meter
    zone: ZoneInfo
    """The time zone in which a budget's days begin."""
    shared: SharedMeter | None = None
    """The same meter, if other servers share the limit."""
    warned: int = -1
    """Budget period, or day, of the last warning in the log."""

    def amount_to_reserve(self, most: Amounts) -> int:
        """Return the amount to reserve. An upper bound is capped at the whole limit."""
        amount = most.of(self.limit.kind)
        if self.limit.kind is Kind.TOKENS and most.explicit_tokens <= self.limit.amount:
            return min(amount, self.limit.amount)
        return min(amount, self.limit.amount) if self.limit.kind is Kind.AUDIO else amount


_COUNTED = (Kind.REQUESTS, Kind.AT_ONCE)
"""Kinds that count a request once, no matter how often it is retried."""


@dataclass(slots=True)
class Admission:
    """One admitted attempt at a request, until it is settled. Retries are further attempts."""

    caller: Caller
    model: str
    most: Amounts
    holds: list[tuple[_LimitMeter, Hold]] = field(default_factory=list)
    """Reservations of this attempt: tokens, audio, money."""
    counted: list[tuple[_LimitMeter, Hold]] = field(default_factory=list)
    """Reservations of the request, shared by all its attempts."""
    warnings: list[str] = field(default_factory=list)
    """Warnings of the request, shared by all its attempts."""
    reported: set[str] = field(default_factory=set)
    """Ids of limits already reported for the request."""
    is_settled: bool = False
    spends_only: bool = False
    """Whether only budgets count it, because it is a batch line."""

    def share(self, other: "Admission") -> None:
        """Share the counts of the request with another attempt at it."""
        self.counted, self.warnings, self.reported = other.counted, other.warnings, other.reported

    def hold(self, one: _LimitMeter, hold: Hold) -> None:
        (self.counted if one.limit.kind in _COUNTED else self.holds).append((one, hold))


class Limiter:
    """Starts without limits; `replace` sets the current ones.

    source: makes the meters of limits shared with other servers. None if limits are this server's own.
    """

    def __init__(
        self,
        on_limit: OnLimit = lambda _limit, _what: None,
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], float] = time.time,
        source: MeterSource | None = None,
    ) -> None:
        self._on_limit, self._clock, self._wall, self._source = on_limit, clock, wall, source
        self._metered: dict[tuple[str, str], list[_LimitMeter]] = {}
        self._running: dict[int, Admission] = {}
        self._ended: list[tuple[Admission, Amounts]] | None = None

    @property
    def is_empty(self) -> bool:
        return not self._metered

    @property
    def is_shared(self) -> bool:
        """Whether `prepare` must be called before `admit`."""
        return self._source is not None

    # --- a request --------------------------------------------------------------------------------------------------
    async def prepare(
        self,
        caller: Caller,
        model: str,
        most: Amounts,
        before: Admission | None = None,
        *,
        spends_only: bool = False,
    ) -> None:
        """Fetch what this server lacks of shared limits. Call `admit` with the same arguments right after it.

        Another request may use up what was fetched for this one. Then more is fetched, until nothing is left of any
        limit that lacks something: one that only warns must not end the search for the others.
        """
        empty = set[SharedMeter]()
        while True:
            meters = self._meters_of(caller, model, () if before is None else before.counted, spends_only)
            lacking = [
                (meter.shared, amount)
                for meter in meters
                if meter.shared is not None
                and meter.shared not in empty
                and meter.shared.wait(amount := meter.amount_to_reserve(most), self._clock()) not in (0.0, None)
            ]
            if not lacking:
                return
            empty.update([meter for meter, amount in lacking if not await meter.prepare(amount)])

    def admit(
        self,
        caller: Caller,
        model: str,
        most: Amounts,
        before: Admission | None = None,
        *,
        spends_only: bool = False,
    ) -> Admission:
        """Reserve the most that the request can use. Raises LimitExceeded without reserving anything.

        before: the previous attempt at the same request.
        spends_only: only budgets count it.
        """
        now = self._clock()
        admission = Admission(caller, model, most, spends_only=spends_only)
        if before is not None:
            admission.share(before)
        meters = self._meters_of(caller, model, admission.counted, spends_only)
        waits = [(meter, meter.meter.wait(meter.amount_to_reserve(most), now)) for meter in meters]
        binding = [(one, wait) for one, wait in waits if wait != 0.0 and one.limit.mode is Mode.ENFORCE]
        if binding:
            for one, _ in binding:
                self._on_limit(one.limit, "refused")
            if all(one.shared is not None and one.shared.is_unknown and wait is not None for one, wait in binding):
                raise unknown(binding[0][0].limit)
            named = [
                BindingLimit(one.limit, one.meter.level(now), one.amount_to_reserve(most), wait, one.shared is not None)
                for one, wait in binding
            ]
            raise refusal(named, self.levels(caller, model), has_audio=most.audio_ms > 0)
        for one, wait in waits:
            if wait != 0.0 and one.limit.id not in admission.reported:
                admission.reported.add(one.limit.id)
                self._report(one, admission)
            if wait != 0.0 and one.limit.mode is Mode.SHADOW:
                continue  # a refused request would have used nothing
            admission.hold(one, one.meter.take(one.amount_to_reserve(most), now))
        self._running[id(admission)] = admission
        return admission

    def has_room(self, caller: Caller, model: str, most: Amounts) -> bool:
        """Whether `admit` would admit the request now."""
        now = self._clock()
        meters = (one for one in self._of(caller.team, caller.metered, model) if one.limit.mode is Mode.ENFORCE)
        return all(
            meter.meter.wait(amount := meter.amount_to_reserve(most), now) == 0.0
            or (meter.shared is not None and amount <= meter.meter.level(now).remaining)
            for meter in meters
        )

    def settle(self, admission: Admission, used: Amounts, *, last: bool = True) -> None:
        """Settle an attempt however it ended. Further calls do nothing. last: the request ends with this attempt."""
        now = self._clock()
        if not admission.is_settled:
            admission.is_settled = True
            del self._running[id(admission)]
            for one, hold in admission.holds:
                one.meter.settle(hold, used.of(one.limit.kind), now)
            if self._ended is not None:
                self._ended.append((admission, used))
        if last:
            for one, hold in admission.counted:
                one.meter.settle(hold, 1, now)
            admission.counted.clear()

    def levels(self, caller: Caller, model: str) -> dict[Kind, LimitLevel]:
        """Return the limit with the least remaining of each kind, for headers."""
        levels: dict[Kind, LimitLevel] = {}
        now = self._clock()
        for one in self._of(caller.team, caller.metered, model):
            if one.limit.mode is not Mode.SHADOW:
                level, before = one.meter.level(now), levels.get(one.limit.kind)
                if before is None or level.remaining < before.remaining:
                    levels[one.limit.kind] = level
        return levels

    def spendable(self, caller: Caller, model: str) -> int | None:
        """Return what remains of this caller's budgets, in millionths of the currency. None without a budget."""
        now = self._clock()
        spends = (o for o in self._of(caller.team, caller.metered, model) if o.limit.kind.is_spend)
        return min((o.meter.level(now).remaining for o in spends if o.limit.mode is Mode.ENFORCE), default=None)

    def _meters_of(
        self, caller: Caller, model: str, counted: Sequence[tuple[_LimitMeter, Hold]], spends_only: bool
    ) -> list[_LimitMeter]:
        """Return the meters of an attempt. counted: reservations of earlier attempts for the whole request."""
        if not self._metered:
            return []
        held_ids = {id(one) for one, _ in counted}
        meters = [one for one in self._of(caller.team, caller.metered, model) if id(one) not in held_ids]
        return [meter for meter in meters if meter.limit.kind.is_spend] if spends_only else meters

    def _of(self, team: str, key: str | None, model: str) -> list[_LimitMeter]:
        both = (*self._metered.get(("team", team), ()), *(self._metered.get(("key", key), ()) if key else ()))
        return [one for one in both if one.limit.counts(model)]

    def _report(self, one: _LimitMeter, admission: Admission) -> None:
        """Report a request that exceeds a limit that does not refuse it."""
        if one.limit.mode is Mode.SHADOW:
            self._on_limit(one.limit, "shadow")
            return
        self._on_limit(one.limit, "warned")
        admission.warnings.append(f"{one.limit.words}: over {plain(one.limit.display_amount)}")
        period = one.meter.begin if isinstance(one.meter, Budget) else int(self._wall()) // DAY
        if one.warned != period:
            one.warned = period
            log.warning("over a limit", extra={"limit": one.limit.id, "words": one.limit.words})

    # --- the set of limits ------------------------------------------------------------------------------------------
    def new(self, limits: Iterable[Limit], zones: Mapping[str, ZoneInfo]) -> list[Limit]:
        """Return the limits for which `replace` would start a meter: new or redefined ones."""
        before = {one.limit.id: one for many in self._metered.values() for one in many}
        return [limit for limit in limits if _goes_on(before.get(limit.id), limit, zones) is None]

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect requests that end before `replace`, which must be called inside.

        The ledger may not have them yet.
        """
        self._ended = []
        try:
            yield
        finally:  # also if the ledger cannot be read, possibly for long
            self._ended = None

    def replace(
        self,
        limits: Iterable[Limit],
        zones: Mapping[str, ZoneInfo],
        recent: Sequence[PastRequest] = (),
        spent: Mapping[str, int] | None = None,
    ) -> None:
        """Set the limits. Meters of existing limits continue; new meters start from the ledger's figures.

        A request that ends while the ledger is read may count twice, but never too little.

        Args:
            zones: time zones by team and by key id.
            recent: requests that ended in the last minutes, oldest first.
            spent: spending in the current budget period, by limit id.
        """
        before = {one.limit.id: one for many in self._metered.values() for one in many}
        ended, self._ended, self._metered = self._ended or [], None, {}
        past: dict[tuple[str, str], list[PastRequest]] = {}
        for request in recent:  # once, because each of thousands of keys may have a limit
            for subject in (("team", request.team), ("key", request.key)):
                past.setdefault(subject, []).append(request)
        now = self._clock()
        for limit in limits:
            one = _goes_on(before.get(limit.id), limit, zones)
            if one is None:
                zone, its_past = zones.get(limit.subject, UTC), past.get((limit.owner, limit.subject), ())
                one = self._begun(limit, zone, its_past, (spent or {}).get(limit.id, 0), ended)
            else:
                one.meter.change(limit.amount, now)
            one.limit = limit
            self._metered.setdefault((limit.owner, limit.subject), []).append(one)

    def _begun(
        self,
        limit: Limit,
        zone: ZoneInfo,
        recent: Sequence[PastRequest],
        spent: int,
        ended: list[tuple[Admission, Amounts]],
    ) -> _LimitMeter:
        """Start a meter. recent: requests of the limit's team or key."""
        now, one = self._clock(), self._meter(limit, zone, spent)
        if isinstance(one.meter, Rate):
            for past in recent:
                if limit.counts(past.model):
                    amount, at = past.used.of(limit.kind), now - int(max(0.0, past.age) * 1e9)
                    one.meter.settle(one.meter.take(amount, at), amount, at)
        for admission, used in ended:
            if _counts(limit, admission):
                one.meter.settle(one.meter.take(used.of(limit.kind), now), used.of(limit.kind), now)
        for admission in self._running.values():
            if _counts(limit, admission) and not any(held_meter is one for held_meter, _ in admission.counted):
                admission.hold(one, one.meter.take(one.amount_to_reserve(admission.most), now))
        return one

    def _meter(self, limit: Limit, zone: ZoneInfo, spent: int) -> _LimitMeter:
        source = self._source
        if limit.kind is Kind.AT_ONCE:
            if source is None:
                return _LimitMeter(limit, Concurrency(limit.amount), zone)
            part = source.concurrency(limit)
            return _LimitMeter(limit, part, zone, part)
        if source is not None:
            since = period_of(limit.kind, zone, self._wall())[0] if limit.kind.is_spend else 0
            shared = source.meter(limit, zone, since, spent)
            return _LimitMeter(limit, shared, zone, shared)
        if limit.kind.is_spend:
            return _LimitMeter(
                limit, Budget(limit.amount, partial(period_of, limit.kind, zone), spent, self._wall), zone
            )
        # it begins before the oldest of the recent requests (`history_of`)
        return _LimitMeter(limit, Rate(limit.amount, self._clock() - 120 * 10**9), zone)


def _goes_on(before: _LimitMeter | None, limit: Limit, zones: Mapping[str, ZoneInfo]) -> _LimitMeter | None:
    """Return `before` if it counts the same thing and, for a budget, in the same days. None otherwise."""
    if before is None:
        return None
    old = before.limit
    if (old.owner, old.subject, old.kind, old.model) != (limit.owner, limit.subject, limit.kind, limit.model):
        return None
    return before if before.zone == zones.get(limit.subject, UTC) or not limit.kind.is_spend else None


def _counts(limit: Limit, admission: Admission) -> bool:
    if admission.spends_only and not limit.kind.is_spend:
        return False
    caller = admission.caller
    subject = caller.team if limit.owner == "team" else caller.metered or ""
    return limit.subject == subject and limit.counts(admission.model)
