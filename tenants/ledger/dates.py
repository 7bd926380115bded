"""Times as users write them, in UTC: 2026-11-23, or seconds since the epoch."""

import re
from datetime import UTC, date, datetime, timedelta

from registry.base.wording import quoted
from registry.errors import BadRequest

_LAST = 10_000_000_000
"""Seconds since the epoch that a user may write."""


def day_of(text: str, param: str = "date") -> tuple[int, int]:
    """A day's beginning and end. Raises BadRequest."""
    try:
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            raise ValueError
        day = date.fromisoformat(text)
        begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
        return int(begin.timestamp()), int((begin + timedelta(days=1)).timestamp())
    except (ValueError, OverflowError):
        raise BadRequest(f"{quoted(text)} is not a day, such as 2026-11-23.", param=param) from None


def moment_of(text: str, param: str) -> int:
    """A day's beginning, or a time in seconds. Raises BadRequest."""
    if text.isascii() and text.isdigit():
        if len(text) > len(str(_LAST)) or int(text) > _LAST:
            raise BadRequest("Times are seconds since 1970, not milliseconds.", param=param)
        return int(text)
    return day_of(text, param)[0]


def span(day: str | None, begin: str | None, end: str | None, now: float) -> tuple[int, int]:
    """A day, or from `begin` to `end`; what is left out: today. Raises BadRequest."""
    if day is not None:
        if begin is not None or end is not None:
            raise BadRequest("Give a date, or from and to.", param="date")
        return day_of(day)
    today, tomorrow = day_of(datetime.fromtimestamp(now, UTC).date().isoformat())
    first = today if begin is None else moment_of(begin, "from")
    last = tomorrow if end is None else moment_of(end, "to")
    if last <= first:
        raise BadRequest("'to' must be after 'from'.", param="to")
    return first, last
