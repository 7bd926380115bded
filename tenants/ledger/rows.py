"""What is told of a request: at its beginning, and at its end. Whole numbers only."""

from dataclasses import dataclass

HOUR = 3600
NAMES = ("team", "key", "model", "adapter", "endpoint", "service_class", "source")
"""By what sums are kept. No value of them is None: '' is none."""
COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens", "audio_ms", "queue_ms", "total_ms")


@dataclass(frozen=True, slots=True)
class Entry:
    """A request that is to begin."""

    uid: str
    """Ours, and unique; clients may send one X-Request-Id twice."""
    request: str
    attempt: int
    at: float
    """Seconds since the epoch."""
    team: str
    key: str
    endpoint: str
    model: str
    revision: str
    adapter: str
    """`name@sha256:…`; '' is the base."""
    service_class: str
    source: str

    @property
    def hour(self) -> int:
        """When the hour began in which it did."""
        return int(self.at) // HOUR * HOUR


@dataclass(frozen=True, slots=True)
class Settled:
    """How it ended."""

    entry: Entry
    end: str
    status: int | None
    code: str | None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    audio_ms: int = 0
    queue_ms: int = 0
    first_ms: int | None = None
    total_ms: int = 0
