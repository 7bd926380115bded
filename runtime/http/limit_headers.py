"""What is left of a caller's limits, in headers as the dialect's clients read them.

OpenAI's write times as Go does (`6m0s`), Anthropic's as moments (RFC 3339). Where several limits of one kind bind, the
one with the least left is told.
"""

import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from runtime.http.errors import Dialect

Levels = Mapping[str, tuple[int, int, float]]
"""By kind of limit: the limit, what remains, seconds until all of it is there again."""
_NAMES = {
    "requests_per_minute": "requests", "tokens_per_minute": "tokens", "audio_seconds_per_minute": "audio-seconds",
    "requests_at_once": "concurrent-requests",
}  # fmt: skip
_LAST = 253_402_300_799
"""The last second of the year 9999: RFC 3339 knows none after it."""
_ANTHROPICS = frozenset(("requests", "tokens"))
_UNITS = {"audio_seconds_per_minute": 1000}


def limit_headers(levels: Levels, dialect: Dialect) -> dict[str, str]:
    found: dict[str, str] = {}
    for kind, (limit, remaining, seconds) in levels.items():
        name = _NAMES.get(kind)
        if name is None:
            continue
        unit = _UNITS.get(kind, 1)
        if dialect is Dialect.ANTHROPIC and name in _ANTHROPICS:
            start = f"anthropic-ratelimit-{name}-"
            found |= {f"{start}limit": f"{limit // unit}", f"{start}remaining": f"{remaining // unit}"}
            found[f"{start}reset"] = format_time(time.time() + seconds)
        else:
            found |= {
                f"x-ratelimit-limit-{name}": f"{limit // unit}",
                f"x-ratelimit-remaining-{name}": f"{remaining // unit}",
                f"x-ratelimit-reset-{name}": format_duration(seconds),
            }
    return found


def format_duration(seconds: float) -> str:
    """As Go writes it, rounded up to a millisecond: 0s, 12ms, 1.5s, 6m0s."""
    ms = math.ceil(seconds * 1e3)
    if 0 < ms < 1000:
        return f"{ms}ms"
    minutes, rest = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1e3:g}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text


def format_time(at: float) -> str:
    """RFC 3339, rounded up to a second."""
    return datetime.fromtimestamp(min(math.ceil(at), _LAST), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
