"""Ledger rows at the start and the end of a request. Integers only."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tenants.costs.prices import PriceList

if TYPE_CHECKING:
    import sqlalchemy as sa

HOUR = 3600
BATCH: Final = "batch"
"""Source of batch lines. An attempt at a line that ends without an answer is repeated, so it counts nothing."""
NAMES = ("team", "key", "model", "adapter", "endpoint", "service_class", "source")
"""Names by which sums are stored. Their values are never None; '' stands for none."""
COUNTS = (
    "prompt_tokens", "cached_tokens", "completion_tokens", "audio_ms", "queue_ms", "total_ms",
    "pairs", "device_us", "cold_ms", "cost_micro", "own_micro",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """A request that is about to start."""

    uid: str
    """Our unique id. Clients may send the same X-Request-Id twice."""
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
    """`name@sha256:…`, or '' for the base model."""
    service_class: str
    source: str
    price: PriceList | None = None
    """Prices by which it is charged, even if the recipe changes in the meantime."""
    reserved_tokens: int = 0
    """The most that it can use, which counts if the server is killed before it ends."""
    reserved_micro: int = 0
    reserved_audio_ms: int = 0
    asked: str = ""
    """The model name as the client sent it."""
    router: str = ""
    """`name@version` of the router that chose. '' if the client named the model itself."""
    target: str = ""
    """The chosen target, by its name in the router's definition."""
    reason: str = ""
    score: float | None = None

    @property
    def price_version(self) -> str:
        return "" if self.price is None else self.price.version

    @property
    def hour(self) -> int:
        """Start of the hour in which the request began."""
        return int(self.at) // HOUR * HOUR


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of a request."""

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
    pairs: int = 0
    device_us: int = 0
    """Share of device time, in microseconds."""
    cold_ms: int = 0
    """Time of a load that it triggered, in milliseconds."""
    cost_micro: int = 0
    """Cost at list prices."""
    own_micro: int = 0
    """Cost at the machine's price."""

    @property
    def revision(self) -> str:
        """Revision that answered. It may have changed while the request waited."""
        return self.entry.revision


class Rider(Protocol):
    """A write in the transaction that settles a row, so that both are committed or neither."""

    def may_write(self, connection: "sa.Connection") -> bool:
        """Return whether there is still something to write, valid until this transaction ends.

        If not, the row ends at no cost. Called before any ledger row is locked.
        """
        ...

    def write(self, connection: "sa.Connection") -> None:
        """Write, only if the row was still open. May be called again after a rollback."""
        ...

    def end(self) -> None:
        """Finish: the row's end is committed, or will never be. Called in the ledger's thread; must not raise."""
        ...
