"""Limits as they are stored, and the periods of budgets in the team's time zone."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from registry.base.wording import plain, size_words
from registry.errors import BadRequest

MICRO = 1_000_000
"""Money is stored in whole millionths of the server's currency."""
MINUTE = 60
MAX_AMOUNT = 10**15


class Kind(StrEnum):
    """A limited quantity."""

    REQUESTS = "requests_per_minute"
    TOKENS = "tokens_per_minute"
    AUDIO = "audio_seconds_per_minute"
    AT_ONCE = "requests_at_once"
    DAY = "spend_per_day"
    MONTH = "spend_per_month"
    ADAPTERS = "adapters_stored"
    ADAPTER_BYTES = "adapter_bytes_stored"
    BATCH_TOKENS = "batch_tokens_queued"

    @property
    def is_spend(self) -> bool:
        return self in (Kind.DAY, Kind.MONTH)

    @property
    def is_stored(self) -> bool:
        """Whether it limits what a team stores instead of what its requests use."""
        return self in (Kind.ADAPTERS, Kind.ADAPTER_BYTES)

    @property
    def is_queued(self) -> bool:
        """Whether it limits the tokens of a team's unfinished batches."""
        return self is Kind.BATCH_TOKENS

    @property
    def is_of_requests(self) -> bool:
        """Whether it limits what requests use."""
        return not self.is_stored and not self.is_queued

    @property
    def unit(self) -> int:
        """The stored integer that corresponds to one unit as users write it."""
        return MICRO if self.is_spend else 1000 if self is Kind.AUDIO else 1


class Mode(StrEnum):
    """What happens to requests over a limit."""

    ENFORCE = "enforce"
    """They are refused."""
    WARN = "warn"
    """They are admitted with a response header, and a log line once per period."""
    SHADOW = "shadow"
    """They are admitted and counted, to show what enforcing the limit would do."""


Owner = Literal["team", "key"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of a team or key.

    amount: requests, tokens, milliseconds of audio, millionths of the currency, adapters or bytes.
    model: '' for all models together.
    """

    id: str
    owner: Owner
    subject: str
    """The team's or the key's id."""
    kind: Kind
    amount: int
    mode: Mode = Mode.ENFORCE
    model: str = ""

    def __post_init__(self) -> None:
        if not self.kind.is_of_requests and self.owner != "team":
            what = "adapters" if self.kind.is_stored else "batches"
            raise BadRequest(f"{self.kind} limits a team, since {what} belong to teams: name it.", param="owner")
        least = 0 if self.kind.is_spend or not self.kind.is_of_requests else 1
        if not least <= self.amount <= MAX_AMOUNT:
            bound = f"must be {least} or more" if self.amount < least else "is too large: give a smaller amount"
            raise BadRequest(f"{self.kind} {bound}.", param="amount")

    @property
    def display_amount(self) -> float:
        """The amount as users write it."""
        return self.amount if self.kind.unit == 1 else self.amount / self.kind.unit

    def display(self, value: int) -> str:
        """Format a value of this kind for people; bytes also in a larger unit."""
        if self.kind is not Kind.ADAPTER_BYTES:
            return plain(value / self.kind.unit)
        return f"{value} ({size_words(value)})" if value >= 1024 else str(value)

    def counts(self, model: str) -> bool:
        """Whether requests to `model` count. Requests to `id@version` count as the model's."""
        return self.model in ("", model, model.partition("@")[0])

    @property
    def words(self) -> str:
        whose = f"{self.owner} '{self.subject}'" + (f" on '{self.model}'" if self.model else "")
        return f"{self.kind.replace('_', ' ')} of {whose}"


def amount_of(kind: Kind, text: str) -> int:
    """Parse an amount such as '60', '0.5' or '12.50' into its stored form. Raises BadRequest."""
    from decimal import Decimal

    try:
        value = Decimal(text) * kind.unit
        if abs(value) > MAX_AMOUNT or value != value.to_integral_value():
            raise ValueError
    except (ArithmeticError, ValueError):  # not a number (also NaN), or too large for Decimal to multiply (1e999999999)
        raise BadRequest(f"'{text[:40]}' is not an amount for {kind}.", param="amount") from None
    return int(value)


def zone_of(name: str) -> ZoneInfo:
    """Return the time zone of this name. Raises BadRequest."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadRequest(f"'{name[:40]}' is not a time zone, such as Europe/Berlin or UTC.", param="timezone") from None


def period_of(kind: Kind, zone: ZoneInfo, at: float) -> tuple[int, int]:
    """Return begin and end of the day or month around a moment, in seconds since the epoch."""
    local = datetime.fromtimestamp(at, zone)
    begin = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if kind is Kind.MONTH:
        begin = begin.replace(day=1)
        end = (begin + timedelta(days=32)).replace(day=1)
    else:
        end = begin + timedelta(days=1)  # the wall clock's next midnight, even if the day has 23 hours
    return int(begin.timestamp()), int(end.timestamp())
