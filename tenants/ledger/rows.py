"""Ledger rows at the beginning and the end of a request. Whole numbers only."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tenants.costs.prices import PriceList

if TYPE_CHECKING:  # a server without keys loads no database
    import sqlalchemy as sa

HOUR = 3600
BATCH: Final = "batch"
"""Source of lines of batches. An attempt at one that ends without an answer is repeated, so it counts nothing."""
NAMES = ("team", "key", "model", "adapter", "endpoint", "service_class", "source")
"""Names by which sums are kept. No value of them is None: '' stands for none."""
COUNTS = (
    "prompt_tokens", "cached_tokens", "completion_tokens", "audio_ms", "queue_ms", "total_ms",
    "pairs", "device_us", "cold_ms", "cost_micro", "own_micro",
)  # fmt: skip


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
    price: PriceList | None = None
    """Price list by which it is charged, even when the recipe has changed by then."""
    reserved_tokens: int = 0
    """The most that it can use: what counts if the server is killed under it."""
    reserved_micro: int = 0
    reserved_audio_ms: int = 0
    asked: str = ""
    """The name as the client wrote it."""
    router: str = ""
    """`name@version` of the router that chose; '': the model was named itself."""
    target: str = ""
    """The chosen target, by its name in the router's definition."""
    reason: str = ""
    score: float | None = None

    @property
    def price_version(self) -> str:
        return "" if self.price is None else self.price.version

    @property
    def hour(self) -> int:
        """The start of the hour in which it began."""
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
    """Share of the machine's own time, in microseconds."""
    cold_ms: int = 0
    """Load time that it caused, in milliseconds."""
    cost_micro: int = 0
    """Cost by the list price."""
    own_micro: int = 0
    """Cost by the machine's price."""

    @property
    def revision(self) -> str:
        """Revision that answered: it may have changed while the request waited."""
        return self.entry.revision


class Rider(Protocol):
    """A write in the transaction that settles a row, so that both are committed or neither."""

    def may_write(self, connection: "sa.Connection") -> bool:
        """Whether there still is something to write, until this transaction ends. If not, the row ends at no cost.

        Called before any row of the ledger is locked.
        """
        ...

    def write(self, connection: "sa.Connection") -> None:
        """Write, only if the row was still open. May be called again after a transaction that was rolled back."""
        ...

    def end(self) -> None:
        """The row's end is committed, or the row will never have one. Called in the ledger's thread; never raises."""
        ...
