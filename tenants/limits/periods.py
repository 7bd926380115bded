"""When the day or month of a budget begins and ends, by the clock of the team's own zone."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from registry.errors import BadRequest
from tenants.limits.records import Kind


def zone_of(name: str) -> ZoneInfo:
    """Raises BadRequest."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadRequest(f"'{name[:40]}' is not a time zone, such as Europe/Berlin or UTC.", param="timezone") from None


def period_of(kind: Kind, zone: ZoneInfo, at: float) -> tuple[int, int]:
    """Begin and end of the day or month around a moment, in seconds since the epoch."""
    local = datetime.fromtimestamp(at, zone)
    begin = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if kind is Kind.MONTH:
        begin = begin.replace(day=1)
        end = (begin + timedelta(days=32)).replace(day=1)
    else:
        end = begin + timedelta(days=1)  # the wall clock's next midnight, also where a day has 23 hours
    return int(begin.timestamp()), int(end.timestamp())
