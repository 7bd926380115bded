"""Errors for requests that limits refuse."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from registry.base.wording import plain
from registry.errors import BudgetExceeded, LimitExceeded, Refusal, Unavailable
from tenants.limits.meters import LimitLevel
from tenants.limits.records import Kind, Limit

CONTENTION = 60.0
"""Longest Retry-After, in seconds, for limits that other requests may free."""


@dataclass(frozen=True, slots=True)
class BindingLimit:
    """A limit without room for a request."""

    limit: Limit
    level: LimitLevel
    amount: int
    """The most of it that the request may use."""
    wait: float | None
    """Seconds until there is room, or None if there never will be."""
    is_shared: bool
    """Whether other servers share it."""


def unknown(limit: Limit) -> Unavailable:
    return Unavailable(
        f"Cannot determine what is left of {limit.words}: the fleet's database does not answer. Try again.",
        code="limits_unavailable",
        retry_after=5,
    )


def refusal(binding: Sequence[BindingLimit], levels: Mapping[Kind, LimitLevel], *, has_audio: bool) -> LimitExceeded:
    """Return the error that names all exceeded limits, budgets first. levels: of all limits, for headers."""
    spends = any(one.limit.kind.is_spend for one in binding)
    never = any(one.wait is None for one in binding)
    refusals, waits = [], [0.0]
    for one in binding:
        limit, unit = one.limit, one.limit.kind.unit
        again = one.level.seconds if one.wait is None else one.wait
        waits.append(again if limit.kind.is_spend else min(CONTENTION, again))
        left = one.level.remaining / unit
        refusals.append(
            Refusal(
                limit.id, limit.kind, limit.owner, limit.subject, limit.display_amount, left, again,
                _reason(one, has_audio),
            )
        )  # fmt: skip
    after = None if never else max(waits)
    kind = BudgetExceeded if spends else LimitExceeded
    error = kind(". ".join(refusal.reason for refusal in refusals) + ".", refusals, retry_after=after)
    error.should_retry = not (spends or never)
    if not spends and any(one.limit.kind is Kind.TOKENS for one in binding):
        error.type = "tokens"
    error.levels = {kind.value: (level.limit, level.remaining, level.seconds) for kind, level in levels.items()}
    return error


def _reason(one: BindingLimit, has_audio: bool) -> str:
    limit, unit = one.limit, one.limit.kind.unit
    reason = f"{limit.words} is {plain(limit.display_amount)}"
    if one.wait is None:
        may = "cost" if limit.kind.is_spend else "use"
        lower = "send the recording in parts, or as WAV" if has_audio else "lower max_tokens"
        return f"{reason}, and this request alone may {may} {plain(one.amount / unit)}: {lower}"
    if limit.kind.is_spend:
        left, cost = plain(one.level.remaining / unit), plain(one.amount / unit)
        reason += f", of which {left} is left; this request may cost {cost}"
    if one.is_shared:
        reason += "; up to 1/8 of it may lie unused on other servers for a moment"
    return reason
